"""Which constants of an inference model are weights: those that reach a slot where operators take parameters.

A table of operators lists these slots. A weight may reach its slot through operators that move or retype it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import read
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import FLOAT_DTYPES
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.names import is_standard

__all__ = ["STATISTIC_SLOTS", "THROUGH", "TRAINABLE_SLOTS", "float_constants", "weight_slot"]

# Whether a node takes `value` at this input, computed from the constant `tensor`, as a weight.
Test = Callable[[ir.Node, int, ir.Value, ir.TensorProtocol], bool]

_MASKED = 1e4  # learnt biases are smaller; attention masks are larger


def _tensor(_node: ir.Node, _index: int, _value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    """Anything but a scalar. A vector of one element counts: it is the bias of one channel."""
    return len(tensor.shape) > 0


def _several(_node: ir.Node, _index: int, _value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    return tensor.size > 1


def _embedding(node: ir.Node, _index: int, value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    axis = node.attributes.get("axis")
    return tensor.size > 1 and len(value.shape or ()) == 2 and (axis is None or axis.as_int() == 0)


def _bias(node: ir.Node, index: int, value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    """A vector along one axis, or a table such as learnt positions; not a mask, nor a grid of coordinates."""
    other = node.inputs[1 - index]
    if tensor.size < 2 or constant_of(other) is not None or value.shape is None:
        return False
    axes = sum(size != 1 for size in value.shape)
    return read(tensor, _is_unmasked) if axes == 1 else read(tensor, _has_fractions)


def _is_unmasked(array: np.ndarray) -> bool:
    magnitude = float(np.abs(array.astype(np.float64)).max())
    return bool(np.isfinite(magnitude)) and magnitude < _MASKED


def _has_fractions(array: np.ndarray) -> bool:
    """Whether not all numbers are multiples of one half, as those of masks and of the centres of grid cells are."""
    doubled = array.astype(np.float64) * 2.0
    return bool(np.isfinite(doubled).all()) and bool((doubled != np.round(doubled)).any())


def _norm_scale(node: ir.Node, index: int, value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    """A vector that scales a quotient by a square root: a normalisation written out."""
    if tensor.size < 2 or value.shape is None or sum(size != 1 for size in value.shape) != 1:
        return False
    return _is_normalised(node.inputs[1 - index])


def _is_normalised(value: ir.Value | None) -> bool:
    node = _maker(value)
    if node is None:
        return False
    if node.op_type == "Div":
        return _is_root(node.inputs[1])
    return node.op_type == "Mul" and any(_is_inverse_root(factor) for factor in node.inputs)


def _is_root(value: ir.Value | None) -> bool:
    node = _maker(value)
    return node is not None and node.op_type == "Sqrt"


def _is_inverse_root(value: ir.Value | None) -> bool:
    node = _maker(value)
    if node is None or node.op_type not in ("Reciprocal", "Div"):
        return False
    return _is_root(node.inputs[-1])


def _maker(value: ir.Value | None) -> ir.Node | None:
    """Return the node of ONNX's own domain that computes a value, looking through casts."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and is_standard(node) else None


_EVERY = -1  # stands for every input of a variadic operator

TRAINABLE_SLOTS: Mapping[str, Mapping[int, Test]] = {
    "Add": {0: _bias, 1: _bias},
    "BatchNormalization": {1: _tensor, 2: _tensor},
    "Conv": {1: _tensor, 2: _tensor},
    "ConvTranspose": {1: _tensor, 2: _tensor},
    "Einsum": {_EVERY: _several},
    "Gather": {0: _embedding},
    "Gemm": {0: _tensor, 1: _tensor, 2: _tensor},
    "GroupNormalization": {1: _tensor, 2: _tensor},
    "InstanceNormalization": {1: _tensor, 2: _tensor},
    "LayerNormalization": {1: _tensor, 2: _tensor},
    "MatMul": {0: _several, 1: _several},
    "Mul": {0: _norm_scale, 1: _norm_scale},
    "PRelu": {1: _tensor},
    "RMSNormalization": {1: _tensor},
}
STATISTIC_SLOTS: Mapping[str, tuple[int, ...]] = {"BatchNormalization": (3, 4)}
THROUGH = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def float_constants(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Yield every float constant of every scope, initializers and Constant nodes alike, with its tensor."""
    for scope in scopes(model):
        outputs = (value for node in scope.graph if node.op_type == "Constant" for value in node.outputs)
        for value in (*scope.graph.initializers.values(), *outputs):
            tensor = constant_of(value)
            leaves_a_body = scope.owner is not None and value.is_graph_output()
            if tensor is not None and tensor.dtype in FLOAT_DTYPES and not leaves_a_body:
                yield value, tensor


def weight_slot(value: ir.Value, tensor: ir.TensorProtocol) -> str:
    """Return where a float constant is read as a weight, such as `Conv 'stem' input 1`; empty if it is not."""
    for node, index, read_there in _reads(value):
        slots = TRAINABLE_SLOTS.get(node.op_type) if is_standard(node) else None
        test = None if slots is None else slots.get(index, slots.get(_EVERY))
        if test is not None and test(node, index, read_there, tensor):
            return f"{node.op_type} '{node.name}' input {index}"
    return ""


def _reads(value: ir.Value) -> Iterator[tuple[ir.Node, int, ir.Value]]:
    """Yield the final reads of a value, past operators that move or retype it: node, input, and the value there."""
    for use in value.uses():
        if is_standard(use.node) and use.node.op_type in THROUGH and use.idx == 0:
            yield from _reads(use.node.outputs[0])
        else:
            yield use.node, use.idx, value
