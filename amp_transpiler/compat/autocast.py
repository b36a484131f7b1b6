"""`modelopt.onnx.autocast`: the same functions, on this package's engine, for TensorRT unless `target=` says otherwise.

An import changes::

    from amp_transpiler.compat.autocast import convert_to_mixed_precision

    model = convert_to_mixed_precision("model.onnx", "fp16", keep_io_types=True, op_types_to_exclude=["Softmax"])
"""

from __future__ import annotations

import errno
import os
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import onnx
import onnx_ir as ir

from amp_transpiler.compat.arguments import checked_names, converted, logger, refuse
from amp_transpiler.compat.blocked import block, every_node
from amp_transpiler.errors import OptionError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.graph.names import NameAllocator, name_nodes
from amp_transpiler.graph.regions import DISABLE_AMP, drop_region
from amp_transpiler.graph.user_patterns import compile_pattern
from amp_transpiler.ops.names import operator_name
from amp_transpiler.program.program import Program

__all__ = ["DEFAULT_DATA_MAX", "DEFAULT_INIT_MAX", "NodeRule", "convert_to_f16", "convert_to_mixed_precision"]

DEFAULT_DATA_MAX = 512
DEFAULT_INIT_MAX = FLOAT16.max

_REMEDIES = {
    "init_conversion_max_bytes": "initializers of any size are converted when the file is written; leave it out",
    "trt_plugins": "no plugin is loaded here; leave it out, and say with trt_plugins_precision what its operators take",
}


class NodeRule(Protocol):
    """A rule of one's own, such as an object of AutoCast's `NodeRuleBase`."""

    def check(self, node: onnx.NodeProto) -> bool:
        """Whether the node stays float32."""


def convert_to_mixed_precision(
    onnx_path: str | os.PathLike[str],
    low_precision_type: str = "fp16",
    nodes_to_exclude: Collection[str] | None = None,
    op_types_to_exclude: Collection[str] | None = None,
    nodes_to_include: Collection[str] | None = None,
    op_types_to_include: Collection[str] | None = None,
    data_max: float | None = DEFAULT_DATA_MAX,
    init_max: float | None = DEFAULT_INIT_MAX,
    keep_io_types: bool = False,
    calibration_data: str | os.PathLike[str] | None = None,
    custom_rule: NodeRule | None = None,
    init_conversion_max_bytes: int | None = None,
    providers: Sequence[str] = ("cpu",),
    trt_plugins: Sequence[str] = (),
    trt_plugins_precision: Sequence[str] = (),
    max_depth_of_reduction: int | None = None,
    opset: int | None = None,
    use_standalone_type_inference: bool = False,
    **options: Any,
) -> onnx.ModelProto:
    """Return the model of a file in mixed precision, as AutoCast's function of this name does.

    Args:
        onnx_path: the file.
        low_precision_type: `fp16` or `bf16`.
        nodes_to_exclude: patterns that begin the names of nodes that stay float32.
        op_types_to_exclude: operators that stay float32.
        nodes_to_include: patterns that begin the names of nodes that become low whatever else is said.
        op_types_to_include: operators that do.
        data_max: Nodes that read or compute a larger magnitude stay float32. None for no such limit.
        init_max: Nodes that read a larger constant stay float32. None for no such limit.
        keep_io_types: inputs and outputs stay float32.
        calibration_data: an .npz file or a folder of them. None: made-up inputs.
        custom_rule: says of further nodes of the main graph that they stay float32.
        init_conversion_max_bytes: refused.
        providers: has no effect on the result; `trt` is refused.
        trt_plugins: refused.
        trt_plugins_precision: operators of plugins with the types that they take and return, such as `Scale:fp16` or
            `Scale:[fp16,fp32]:[fp16]`. Others stay float32.
        max_depth_of_reduction: Nodes that sum more terms stay float32.
        opset: the opset of the result. None: the model's, or a higher one.
        use_standalone_type_inference: has no effect: types are always inferred here.
        options: further options of `amp_transpiler.transpile`. The level is O2 by default, the target `tensorrt`, and
            float64 becomes float32, also at inputs and outputs, as AutoCast has it.

    Raises:
        FileNotFoundError: there is no such file.
        OptionError: (a ValueError) an argument is wrong.
        CheckFailed: the result is invalid, or values became infinite or NaN.
    """
    name = "convert_to_mixed_precision"
    refused = {
        "init_conversion_max_bytes": init_conversion_max_bytes,
        "trt_plugins": trt_plugins,
    }
    refuse(name, refused, _REMEDIES)
    if "trt" in providers:
        raise OptionError(f"{name}: provider 'trt' is not supported: models are run on the CPU; leave it out")
    if str(calibration_data or "").endswith(".json"):
        raise OptionError(
            f"{name}: calibration_data is JSON: save the arrays with numpy.savez, or give a folder of them"
        )
    if not pathlib.Path(onnx_path).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(onnx_path))
    program = load(onnx_path).clone()
    name_nodes(program.model, NameAllocator(program.model))
    included = _named(program.model, nodes_to_include, op_types_to_include, "include")
    high = _named(program.model, nodes_to_exclude, op_types_to_exclude, "exclude")
    if custom_rule is not None:
        high |= {node.name for node in program.to_onnx().graph.node if custom_rule.check(node)}
    defaults = {
        **_defaults(name, low_precision_type, keep_io_types, opset),
        "include": f"^(?:{'|'.join(map(re.escape, sorted(included)))})$" if included else (),
        "inputs": calibration_data,
        "data_max": float("inf") if data_max is None else float(data_max),
        "init_max": _finite(init_max),
        "max_depth_of_reduction": max_depth_of_reduction,
        "custom_op_types": checked_names(trt_plugins_precision, "trt_plugins_precision") or None,
    }
    return _converted(name, program, lambda node: str(node.name) in high - included, defaults, options)


def convert_to_f16(
    model: onnx.ModelProto,
    low_precision_type: str = "fp16",
    keep_io_types: bool = True,
    op_block_list: Collection[str] = (),
    tensor_block_dict: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
    trt_plugins: Sequence[str] | None = (),
    use_standalone_type_inference: bool = False,
    opset: int | None = None,
    **options: Any,
) -> onnx.ModelProto:
    """Return the model in the low format, except for the operators of a list.

    Args:
        model: the model; not changed.
        low_precision_type: `fp16` or `bf16`.
        keep_io_types: inputs and outputs stay float32.
        op_block_list: operators that stay float32.
        tensor_block_dict: operator -> `inp` -> indices of inputs that stay float32, where the operator has a form with
            others in the low format; operators that the model lacks are warned of. `out` is refused.
        trt_plugins: refused.
        use_standalone_type_inference: has no effect: types are always inferred here.
        opset: the opset of the result. None: the model's, or a higher one.
        options: further options of `amp_transpiler.transpile`. The level is O2 by default, the target `tensorrt`, and
            float64 becomes float32, also at inputs and outputs, as AutoCast has it.

    Raises:
        OptionError: (a ValueError) an argument is wrong.
        CheckFailed: the result is invalid, or values became infinite or NaN.
    """
    name = "convert_to_f16"
    refuse(name, {"trt_plugins": trt_plugins}, _REMEDIES)
    blocked = checked_names(op_block_list, "op_block_list")
    program = load(model).clone()
    defaults = {
        **_defaults(name, low_precision_type, keep_io_types, opset),
        "float32_inputs": _float32_inputs(name, program, tensor_block_dict),
    }
    return _converted(name, program, lambda node: node.op_type in blocked, defaults, options)


def _float32_inputs(
    name: str, program: Program, blocked: Mapping[str, Mapping[str, Sequence[int]]] | None
) -> dict[str, Sequence[int]] | None:
    """Return the inputs that stay float32, of the operators that the model has."""
    present = {operator_name(node) for node in every_node(program.model)}
    inputs: dict[str, Sequence[int]] = {}
    for operator, slots in (blocked or {}).items():
        if any(indices for slot, indices in slots.items() if slot != "inp"):
            raise OptionError(
                f"{name}: tensor_block_dict has {slots!r} for {operator}: only inputs can be kept, as "
                "{'inp': [1]}; keep whole operators with op_block_list"
            )
        if operator not in present:
            logger.warning("%s: tensor_block_dict names an operator that the model lacks: %s", name, operator)
        elif slots.get("inp"):
            inputs[operator] = slots["inp"]
    return inputs or None


def _defaults(name: str, low_precision_type: str, keep_io_types: bool, opset: int | None) -> dict[str, Any]:
    if low_precision_type not in ("fp16", "bf16"):
        raise OptionError(f"{name}: low_precision_type is {low_precision_type!r}: expected 'fp16' or 'bf16'")
    return {
        "level": "O2",
        "target": "tensorrt",
        "dtype": low_precision_type,
        "keep_io_types": keep_io_types,
        "opset": opset,
        "float64": "float32-io",
    }


def _converted(
    name: str,
    program: Program,
    is_blocked: Callable[[ir.Node], bool],
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
) -> onnx.ModelProto:
    block(program.model, is_blocked)
    result, _ = converted(name, program, options, defaults)
    drop_region(result.model, DISABLE_AMP)  # the next conversion shall not heed the lists of this one
    return result.to_onnx()


def _named(model: ir.Model, patterns: Iterable[str] | None, operators: Collection[str] | None, which: str) -> set[str]:
    """Return the names of the nodes that a user means."""
    listed = checked_names(operators, f"op_types_to_{which}")
    node_names = {str(node.name) for node in every_node(model) if node.op_type in listed}
    for text in patterns or ():
        pattern = compile_pattern(text, f"nodes_to_{which}")
        node_names |= {str(node.name) for node in every_node(model) if pattern.match(str(node.name))}
    return node_names


def _finite(threshold: float | None) -> float | None:
    return None if threshold is None or threshold == float("inf") else float(threshold)
