"""Dropping of checks for "as it is" (-1) in the sizes of an Expand that can hold none."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.match import Binding
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.rewrite import Rewrite, rewrite

__all__ = ["SkipExpandChecks"]

logger = logging.getLogger(__name__)

_CHECK = "Where(Equal(sizes, unknown), one, sizes)"
_LONGEST = 64  # elements of a constant that is looked at; a shape has few
# Operators whose results are sizes if these inputs are; None: all of them.
_KEEP_SIZES = {
    "Add": None,
    "Concat": None,
    "Gather": (0,),
    "Identity": (0,),
    "Max": None,
    "Mul": None,
    "Reshape": (0,),
    "Slice": (0,),
    "Squeeze": (0,),
    "Unsqueeze": (0,),
}


class SkipExpandChecks(Pass[PassResult]):
    """Lets readers of `Where(sizes == -1, 1, sizes)` read the sizes, where none of them can be -1; counts these.

    PyTorch's exporter writes that for `expand`. It hides the shape of the result from ONNX Runtime, which then does not
    fuse what depends on it (a mask and the Softmax behind it), and it computes on the CPU for every inference.
    """

    def call(self, model: ir.Model) -> PassResult:
        sizes: dict[ir.Value, bool] = {}
        row = Rewrite(_CHECK, _unflattened, applies=lambda check: _can_be_dropped(check, sizes))
        if count := rewrite(model, (row,)):
            logger.info("%d checks of the sizes of an expansion dropped, which can hold no -1", count)
        return PassResult(model, modified=bool(count), count=count)


def _can_be_dropped(check: Binding, known: dict[ir.Value, bool]) -> bool:
    return _is_minus_one(check["unknown"]) and _are_sizes(check["sizes"], known)


def _unflattened(check: Binding) -> ir.Value:
    """The list of sizes that is checked, or that a Reshape to [-1] only copies."""
    value = check["sizes"]
    node = value.producer()
    if node is None or node.op_type != "Reshape" or not is_standard(node) or node.inputs[0] is None:
        return value
    joined, shape = node.inputs[0].producer(), constant_array(node.inputs[1])
    if joined is None or joined.op_type != "Concat" or shape is None or shape.tolist() != [-1]:
        return value
    parts = (constant_array(part) for part in joined.inputs)
    is_list = any(part is not None and part.ndim == 1 for part in parts)  # then so are the others, and the whole
    return node.inputs[0] if is_list else value


def _is_minus_one(value: ir.Value | None) -> bool:
    """Whether all elements are -1: a constant, or ones of some shape multiplied by it."""
    array = _small(value)
    if array is not None:
        return bool(array.size) and bool((array == -1).all())
    node = None if value is None else value.producer()
    if node is None or not is_standard(node):
        return False
    if node.op_type == "Mul":
        first, second = node.inputs
        return (_is_ones(first) and _is_minus_one(second)) or (_is_ones(second) and _is_minus_one(first))
    return _filled_with(node) == -1


def _is_ones(value: ir.Value | None) -> bool:
    array = _small(value)
    if array is not None:
        return bool(array.size) and bool((array == 1).all())
    node = None if value is None else value.producer()
    return node is not None and _filled_with(node) == 1


def _filled_with(node: ir.Node) -> int | None:
    """The integer with which a ConstantOfShape fills its result."""
    if node.op_type != "ConstantOfShape" or not is_standard(node):
        return None
    attribute = node.attributes.get("value")
    if attribute is None or attribute.is_ref():
        return None
    tensor = attribute.as_tensor()
    return int(tensor.numpy().reshape(-1)[0]) if tensor.dtype == ir.DataType.INT64 else None


def _small(value: ir.Value | None) -> np.ndarray | None:
    array = constant_array(value) if value is not None else None
    return array if array is not None and array.size <= _LONGEST else None


def _are_sizes(value: ir.Value | None, known: dict[ir.Value, bool]) -> bool:
    """Whether all elements are computed from sizes and numbers that are not negative."""
    if value is None:
        return False
    if value not in known:
        known[value] = False  # should a program be a circle
        known[value] = _is_of_sizes(value, known)
    return known[value]


def _is_of_sizes(value: ir.Value, known: dict[ir.Value, bool]) -> bool:
    array = _small(value)
    if array is not None:
        return array.dtype == np.int64 and bool((array >= 0).all())
    node = value.producer()
    if node is None or not is_standard(node):
        return False
    if node.op_type == "Shape":
        return True
    if node.op_type not in _KEEP_SIZES:
        return False
    inputs = _KEEP_SIZES[node.op_type]
    read = node.inputs if inputs is None else [node.inputs[index] for index in inputs]
    return all(_are_sizes(source, known) for source in read)
