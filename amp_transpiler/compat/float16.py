"""`onnxconverter_common.float16` and `onnxruntime.transformers.float16`: the same functions, on this package's engine.

An import changes::

    from amp_transpiler.compat.float16 import convert_float_to_float16

    model = convert_float_to_float16(onnx.load("model.onnx"), keep_io_types=True, op_block_list=["Softmax"])
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir

from amp_transpiler.compat.arguments import checked_names, converted, logger, refuse
from amp_transpiler.compat.blocked import block, every_node
from amp_transpiler.compat.clipping import clip_constants, clipped
from amp_transpiler.compat.initializers import halve_initializers
from amp_transpiler.compat.two_formats import convert_with_bfloat16
from amp_transpiler.errors import OptionError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.graph.proto import from_proto
from amp_transpiler.graph.regions import DISABLE_AMP, drop_region, region_of
from amp_transpiler.program.program import Program

__all__ = [
    "DEFAULT_OP_BLOCK_LIST",
    "convert_float_to_float16",
    "convert_float_to_float16_model_path",
    "convert_np_to_float16",
    "convert_tensor_float_to_float16",
    "remove_identity_node_from_model",
]

DEFAULT_OP_BLOCK_LIST = [
    *("ArrayFeatureExtractor", "Binarizer", "CastMap", "CategoryMapper", "DictVectorizer", "FeatureVectorizer"),
    *("Imputer", "LabelEncoder", "LinearClassifier", "LinearRegressor", "Normalizer", "OneHotEncoder"),
    *("RandomUniformLike", "SVMClassifier", "SVMRegressor", "Scaler", "TreeEnsembleClassifier"),
    *("TreeEnsembleRegressor", "TreeEnsemble", "ZipMap", "NonMaxSuppression", "TopK", "RoiAlign", "Range", "CumSum"),
    *("Min", "Max", "Upsample"),
]
"""ONNX Runtime's list. onnxconverter-common's has Resize as well, which has a float16 form."""

_SMALLEST, _LARGEST = FLOAT16.smallest, FLOAT16.max
_NAME = "convert_float_to_float16"
_REMEDIES = {
    "force_fp16_inputs": (
        "schemas and kernels say which inputs of a node may be float16 (Resize's scales may not); leave it out, or "
        "give target= the backend that runs the model"
    ),
}


def convert_float_to_float16(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str],
    min_positive_val: float | None = None,
    max_finite_val: float | None = None,
    keep_io_types: bool | Collection[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Collection[str] | None = None,
    node_block_list: Collection[str] | None = None,
    *,
    check_fp16_ready: bool = True,
    force_fp16_initializers: bool = False,
    force_fp16_inputs: Mapping[str, Sequence[int]] | None = None,
    use_bfloat16_as_blocked_nodes_dtype: bool = False,
    use_symbolic_shape_infer: bool = True,
    **options: Any,
) -> onnx.ModelProto:
    """Return the model in float16, as onnxconverter-common's and ONNX Runtime's functions of this name do.

    Every node becomes float16 except blocked ones and those without a float16 kernel. The result is checked: it loads,
    runs, and has no infinity or NaN that float32 has not. The model given is not changed.

    Args:
        model: the model, or its path.
        min_positive_val: Constants nearer to zero than this are moved to it. None: single numbers never become zero,
            and nodes that read a tensor which would lose too much stay float32. The originals clip by default.
        max_finite_val: Constants beyond this are limited to it. None: nodes that read a constant beyond float16's range
            stay float32, except masks, whose "minus infinity" is limited.
        keep_io_types: True, or the names of the inputs and outputs that stay float32. Unknown names are warned of.
        disable_shape_infer: has no effect: types are always inferred, of models beyond 2 GB too.
        op_block_list: operators that stay float32, in bodies of control flow too. None: `DEFAULT_OP_BLOCK_LIST`.
        node_block_list: names of nodes that stay float32. Names that no node has are warned of.
        check_fp16_ready: refuse a model that holds float16 already.
        force_fp16_initializers: store the initializers of blocked nodes as float16, too. They lose their precision.
        force_fp16_inputs: refused.
        use_bfloat16_as_blocked_nodes_dtype: blocked nodes are bfloat16 instead of float32, where they can be. The
            result is then not compared with float32; its types are checked.
        use_symbolic_shape_infer: has no effect, likewise.
        options: options of `amp_transpiler.transpile`, such as `level="auto"`, `inputs="samples.npz"`,
            `tolerance="1%"`, `target="tensorrt"` or `verify=False`. The level is O2 by default.

    Raises:
        OptionError: (a ValueError) an argument is wrong, or the model holds float16 already.
        TypeError: an argument that neither the originals nor `transpile` have.
        CheckFailed: the result is invalid, or values became infinite or NaN.
    """
    refuse(_NAME, {"force_fp16_inputs": force_fp16_inputs}, _REMEDIES)
    range_ = _checked_range(min_positive_val, max_finite_val)
    operators = checked_names(DEFAULT_OP_BLOCK_LIST if op_block_list is None else op_block_list, "op_block_list")
    names = checked_names(node_block_list, "node_block_list")
    program = load(_as_message(model)).clone()
    if check_fp16_ready and _holds_float16(program.model):
        raise OptionError(
            f"{_NAME}: the model is already converted to float16 (in part); check_fp16_ready=False converts the rest"
        )
    _warn_of_unknown(names, (str(node.name) for node in every_node(program.model)), "node_block_list")
    own_regions = any(DISABLE_AMP in region_of(node) for node in every_node(program.model))
    blocked = block(program.model, lambda node: node.op_type in operators or str(node.name) in names)
    if range_ is not None:
        clip_constants(program.model, blocked, *range_)
    io_types = _types_kept(keep_io_types, program)
    if use_bfloat16_as_blocked_nodes_dtype:
        result = convert_with_bfloat16(program, blocked, io_types, options)
    else:
        result, _ = converted(_NAME, program, options, {"level": "O2", "keep_io_types": io_types})
    if not own_regions:  # the next conversion shall not heed the lists of this one
        drop_region(result.model, DISABLE_AMP)
    if force_fp16_initializers:
        halve_initializers(result.model)
        result.touch()
    return result.to_onnx()


def convert_float_to_float16_model_path(
    model_path: str | os.PathLike[str],
    min_positive_val: float | None = None,
    max_finite_val: float | None = None,
    keep_io_types: bool | Collection[str] = False,
    **options: Any,
) -> onnx.ModelProto:
    """Return the model of a file in float16; `convert_float_to_float16` takes paths as well, and says the rest."""
    return convert_float_to_float16(model_path, min_positive_val, max_finite_val, keep_io_types, **options)


def convert_np_to_float16(
    np_array: np.ndarray, min_positive_val: float = _SMALLEST, max_finite_val: float = _LARGEST
) -> np.ndarray:
    """Return an array in float16, with finite magnitudes other than zero moved into a range first."""
    return clipped(np.asarray(np_array), min_positive_val, max_finite_val).astype(np.float16)


def convert_tensor_float_to_float16(
    tensor: onnx.TensorProto, min_positive_val: float = _SMALLEST, max_finite_val: float = _LARGEST
) -> onnx.TensorProto:
    """Make a float32 tensor float16, in place, and return it; another one stays as it is.

    Raises:
        OptionError: (a ValueError) it is no TensorProto.
    """
    if not isinstance(tensor, onnx.TensorProto):
        raise OptionError(f"expected an onnx.TensorProto, got {type(tensor).__name__}")
    if tensor.data_type == onnx.TensorProto.FLOAT:
        array = convert_np_to_float16(onnx.numpy_helper.to_array(tensor), min_positive_val, max_finite_val)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return tensor


def remove_identity_node_from_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the model without the Identity nodes between others, with inferred shapes."""
    copied = from_proto(model)
    ir.passes.common.IdentityEliminationPass()(copied)
    return Program(copied).to_onnx()


def _as_message(model: Any) -> Any:
    """Return the model of a path or as it is.

    Raises:
        OptionError: it is nothing that the originals take.
    """
    if isinstance(model, (onnx.ModelProto, ir.Model, Program, str, os.PathLike)) or hasattr(model, "model"):
        return model
    raise OptionError(f"{_NAME}: expected an onnx.ModelProto or a path, got {type(model).__name__}")


def _checked_range(least: float | None, most: float | None) -> tuple[float, float] | None:
    """Return the range of constants; None if none is asked for."""
    if least is None and most is None:
        return None
    low, high = _SMALLEST if least is None else float(least), _LARGEST if most is None else float(most)
    if low < 0.999 * _SMALLEST:
        raise OptionError(f"{_NAME}: min_positive_val is {low!r}: float16's smallest number is {_SMALLEST:.3g}")
    if high > _LARGEST:
        raise OptionError(f"{_NAME}: max_finite_val is {high!r}: float16's largest number is {_LARGEST:g}")
    if low > high:
        raise OptionError(f"{_NAME}: min_positive_val {low!r} is more than max_finite_val {high!r}")
    return low, high


def _holds_float16(model: ir.Model) -> bool:
    nodes = list(every_node(model))
    values: list[ir.Value | None] = [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]
    values += [value for node in nodes for value in (*node.inputs, *node.outputs)]
    if any(value is not None and value.dtype == ir.DataType.FLOAT16 for value in values):
        return True
    casts = [node.attributes.get("to") for node in nodes if node.op_type == "Cast"]
    return any(to is not None and to.as_int() == ir.DataType.FLOAT16 for to in casts)


def _types_kept(wanted: bool | Collection[str], program: Program) -> bool | dict[str, Literal["keep", "low"]]:
    """Return `keep_io_types` as `transpile` takes it: names are names, not patterns, and unknown ones do not matter."""
    if isinstance(wanted, bool):
        return wanted
    kept_names = set(checked_names(wanted, "keep_io_types"))
    floats = [
        str(value.name)
        for value in (*program.model.graph.inputs, *program.model.graph.outputs)
        if value.dtype == ir.DataType.FLOAT
    ]
    _warn_of_unknown(
        sorted(kept_names),
        (str(value.name) for value in (*program.model.graph.inputs, *program.model.graph.outputs)),
        "keep_io_types",
    )
    return {name: "low" for name in floats if name not in kept_names}


def _warn_of_unknown(names: Iterable[str], known: Iterable[str], argument: str) -> None:
    known_names = frozenset(known)
    if unknown := [name for name in names if name not in known_names]:
        logger.warning("%s: %s names nothing in the model: %s", _NAME, argument, ", ".join(unknown))
