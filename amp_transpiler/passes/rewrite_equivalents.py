"""Operators that lose their CUDA kernel at opset 22, written with operators that keep theirs.

ONNX Runtime matches a kernel only to the schema version it was registered for, and these operators have no kernel for
their newer version. A rewriting gives the same values, up to the last bits where the order of rounding differs.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.max_pool import max_pool_from_phases, max_pool_from_slices, why_not_max_pool
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["EQUIVALENTS", "Equivalent", "RewriteEquivalents", "has_equivalent"]

logger = logging.getLogger(__name__)

_EYE_ELEMENTS = 1 << 20  # a larger identity matrix is not written into the model


@dataclasses.dataclass(frozen=True, slots=True)
class Equivalent:
    """A way to write an operator with others.

    Attributes:
        applies: node -> None if it can be rewritten, else the reason why not (a clause: "its mask is used").
        rewrite: edits the node, for which `applies` gave None.
        opset: the lowest opset at which the operators it writes are valid.
    """

    applies: Callable[[ir.Node], str | None]
    rewrite: Callable[[ir.Node, NodeBuilder], None]
    opset: int = 13


class RewriteEquivalents(Pass[PassResult]):
    """Writes operators as others, where an equivalent is known and applies; counts them.

    The rewritten node itself becomes the last of its new operators, so its output keeps name, readers and place among
    the graph outputs. The others stand before it, with its metadata and names that begin with its own.

    Args:
        wanted: which nodes to rewrite.
        training: whether gradients will be computed of what is written.
    """

    def __init__(self, wanted: Callable[[ir.Node], bool], *, training: bool = False) -> None:
        self._wanted = wanted
        self._equivalents = {**EQUIVALENTS, **(_TRAINED if training else {})}

    def call(self, model: ir.Model) -> PassResult:
        nodes = [node for node in all_nodes(model) if self._wanted(node)]
        names, opset, count = NameAllocator(model), opset_of(model, ""), 0
        for node in nodes:
            equivalent = self._equivalents.get(node.op_type) if is_standard(node) else None
            reason = "no equivalent is known" if equivalent is None else equivalent.applies(node)
            if equivalent is not None and opset < equivalent.opset:
                reason = f"its equivalent needs opset {equivalent.opset}"
            if equivalent is None or reason is not None:
                logger.debug("node '%s' (%s) is not rewritten: %s", node.name, node.op_type, reason)
                continue
            equivalent.rewrite(node, NodeBuilder(node, names))
            count += 1
        return PassResult(model, modified=bool(count), count=count)


# ---- Dropout ----


def _why_not_dropout(node: ir.Node) -> str | None:
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return "its mask is used"
    training = node.inputs[2] if len(node.inputs) > 2 else None
    mode = constant_array(training)
    if training is None or (mode is not None and not mode.any()):
        return None
    ratio = constant_array(node.inputs[1])
    return None if ratio is not None and not ratio.any() else "it drops elements: training_mode may be true"


def _dropout(node: ir.Node, build: NodeBuilder) -> None:
    build.become("Identity", [node.inputs[0]])


# ---- activations ----


def _why_not_float(node: ir.Node) -> str | None:
    dtype = None if node.inputs[0] is None else node.inputs[0].dtype
    if dtype is None:
        return "the element type of its input is unknown"
    return None if dtype.is_floating_point() else f"its input is {dtype}"


def _data(node: ir.Node) -> tuple[ir.Value, ir.DataType]:
    value = node.inputs[0]
    if value is None or value.dtype is None:
        raise ValueError(f"node '{node.name}' ({node.op_type}): {_why_not_float(node)}")
    return value, value.dtype


def _float(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()


def _elu(node: ir.Node, build: NodeBuilder) -> None:
    _scaled_elu(node, build, 1.0, _float(node, "alpha", 1.0))


def _selu(node: ir.Node, build: NodeBuilder) -> None:
    gamma = _float(node, "gamma", 1.05070102214813232421875)
    _scaled_elu(node, build, gamma, _float(node, "alpha", 1.67326319217681884765625))


def _scaled_elu(node: ir.Node, build: NodeBuilder, gamma: float, alpha: float) -> None:
    """Write gamma * max(x, 0) + gamma * alpha * (exp(min(x, 0)) - 1): one of the terms is zero, so the sum is exact."""
    data, dtype = _data(node)

    def number(value: float) -> ir.Value:
        return build.constant(np.asarray(value, dtype.numpy()))

    def scaled(value: ir.Value, factor: float) -> ir.Value:
        return value if factor == 1.0 else build.node("Mul", [value, number(factor)], dtype=dtype)

    zero = number(0.0)
    positive = scaled(build.node("Max", [data, zero], dtype=dtype), gamma)
    power = build.node("Exp", [build.node("Min", [data, zero], dtype=dtype)], dtype=dtype)
    negative = scaled(build.node("Sub", [power, number(1.0)], dtype=dtype), gamma * alpha)
    build.become("Add", [positive, negative])


def _thresholded_relu(node: ir.Node, build: NodeBuilder) -> None:
    """Give x where x > alpha, else 0; a comparison, since a product would make NaN of infinities."""
    data, dtype = _data(node)
    alpha = build.constant(np.asarray(_float(node, "alpha", 1.0), dtype.numpy()))
    above = build.node("Greater", [data, alpha], dtype=ir.DataType.BOOL)
    build.become("Where", [above, data, build.constant(np.asarray(0.0, dtype.numpy()))])


# ---- InstanceNormalization ----


def _why_not_instance_norm(node: ir.Node) -> str | None:
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return "its input has no spatial axes" if shape is not None and len(shape) < 3 else _why_not_float(node)


def _instance_norm(node: ir.Node, build: NodeBuilder) -> None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, in float32 at least, as the operator's own kernels do."""
    data, declared = _data(node)
    low = declared in LOW_DTYPES
    dtype = ir.DataType.FLOAT if low else declared
    wide, scale, bias = (_cast(build, value, dtype) if low else value for value in node.inputs)
    spatial = 1 if data.shape is None else len(data.shape) - 2
    if data.shape is None:  # then as one spatial axis
        wide = build.node("Reshape", [wide, build.constant(np.array([0, 0, -1], np.int64))], dtype=dtype)
    axes = build.constant(np.arange(2, 2 + spatial, dtype=np.int64))
    column = build.constant(np.array([-1] + [1] * spatial, np.int64))

    def arithmetic(op_type: str, *inputs: ir.Value | None) -> ir.Value:
        return build.node(op_type, inputs, {"keepdims": 1} if op_type == "ReduceMean" else None, dtype)

    centred = arithmetic("Sub", wide, arithmetic("ReduceMean", wide, axes))
    variance = arithmetic("ReduceMean", arithmetic("Mul", centred, centred), axes)
    epsilon = build.constant(np.asarray(_float(node, "epsilon", 1e-5), dtype.numpy()))
    normal = arithmetic("Div", centred, arithmetic("Sqrt", arithmetic("Add", variance, epsilon)))
    result = [arithmetic("Mul", normal, arithmetic("Reshape", scale, column)), arithmetic("Reshape", bias, column)]
    if data.shape is not None and not low:
        build.become("Add", result)
        return
    total = arithmetic("Add", *result)
    if data.shape is not None:
        build.become("Cast", [total], {"to": int(declared)})
        return
    total = _cast(build, total, declared) if low else total
    build.become("Reshape", [total, build.node("Shape", [data], dtype=ir.DataType.INT64)])


def _cast(build: NodeBuilder, value: ir.Value | None, dtype: ir.DataType) -> ir.Value:
    return build.node("Cast", [value], {"to": int(dtype)}, dtype)


# ---- EyeLike ----


def _why_not_eye(node: ir.Node) -> str | None:
    shape = _eye_shape(node)
    if shape is None:
        return "the shape of its input is not known before it runs"
    if shape[0] * shape[1] > _EYE_ELEMENTS:
        return "the matrix is too large to be written into the model"
    return "its element type is unknown" if _eye_dtype(node) is None else None


def _eye_shape(node: ir.Node) -> tuple[int, int] | None:
    sizes = [] if node.inputs[0] is None or node.inputs[0].shape is None else list(node.inputs[0].shape)
    rows, columns = sizes if len(sizes) == 2 else (None, None)
    return (rows, columns) if isinstance(rows, int) and isinstance(columns, int) else None


def _eye_dtype(node: ir.Node) -> ir.DataType | None:
    attribute = node.attributes.get("dtype")
    if attribute is not None:
        return ir.DataType(attribute.as_int())
    return None if node.inputs[0] is None else node.inputs[0].dtype


def _eye(node: ir.Node, build: NodeBuilder) -> None:
    shape, dtype, offset = _eye_shape(node), _eye_dtype(node), node.attributes.get("k")
    if shape is None or dtype is None:
        raise ValueError(f"node '{node.name}' (EyeLike): {_why_not_eye(node)}")
    matrix = np.eye(*shape, k=0 if offset is None else offset.as_int()).astype(dtype.numpy())
    build.become("Constant", [], {"value": ir.Tensor(matrix, dtype=dtype)})


EQUIVALENTS: Mapping[str, Equivalent] = {
    "MaxPool": Equivalent(why_not_max_pool, max_pool_from_slices),
    "Dropout": Equivalent(_why_not_dropout, _dropout),
    "Elu": Equivalent(_why_not_float, _elu),
    "Selu": Equivalent(_why_not_float, _selu),
    "ThresholdedRelu": Equivalent(_why_not_float, _thresholded_relu),
    "InstanceNormalization": Equivalent(_why_not_instance_norm, _instance_norm, opset=18),
    "EyeLike": Equivalent(_why_not_eye, _eye),
}
_TRAINED: Mapping[str, Equivalent] = {"MaxPool": Equivalent(why_not_max_pool, max_pool_from_phases, opset=18)}
"""What is written otherwise where gradients will be computed of it."""


def has_equivalent(node: ir.Node) -> bool:
    """Whether `node` can be written with operators that keep their kernels."""
    equivalent = EQUIVALENTS.get(node.op_type)
    return equivalent is not None and equivalent.applies(node) is None
