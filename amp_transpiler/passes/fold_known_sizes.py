"""Folding of floats that are computed from sizes that the model fixes.

PyTorch's exporter writes the scale of attention as `1 / sqrt(Shape(q)[-1])`, though the size of a head is fixed. ONNX
Runtime folds a Shape only if every dimension is fixed, so these nodes run on the CPU for every inference, and a cast of
their result to a low format would be one more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array, constant_of
from amp_transpiler.graph.evaluate import evaluate
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.shape_inference import sizes_from_inputs
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["FoldKnownSizes"]

_UNKNOWN = -(1 << 40)  # stands for an open dimension in the result of Shape; no size is negative
_SMALL = 64  # elements of a constant that takes part in a computation of sizes


_MOVES = frozenset(("Gather", "Identity", "Slice", "Squeeze"))
"""Operators that only pick elements, so that an open dimension beside the one that is picked does no harm."""

_ARITHMETIC = frozenset(("Add", "Div", "Mul", "Reciprocal", "Sqrt", "Sub"))
"""Operators whose float32 result IEEE 754 fixes to the last bit, so that folding them changes no output."""

_OPERATORS = {"Cast", *_MOVES, *_ARITHMETIC}


class FoldKnownSizes(Pass[PassResult]):
    """Replaces floats of the main graph that depend only on fixed sizes by constants; counts them.

    Only sizes of values that have open ones too count: where all are fixed, ONNX Runtime folds. Sizes are inferred from
    the graph's inputs and weights. Shapes that the model declares for other values do not count: they may be wrong.
    Integers stay as they are, since ONNX Runtime computes them where it needs them.
    """

    def call(self, model: ir.Model) -> PassResult:
        if not _has_floats_of_sizes(model.graph):
            return PassResult(model, modified=False)
        known = _known_values(model.graph, sizes_from_inputs(model))
        folded = [value for value, array in known.items() if array.dtype.kind == "f" and _is_read(value, known)]
        names = NameAllocator(model)
        for value in folded:
            _fold(value, known[value], names)
        return PassResult(model, modified=bool(folded), count=len(folded))


def _has_floats_of_sizes(graph: ir.Graph) -> bool:
    """Whether a Cast to a float reads what depends only on sizes and constants, so that inference may pay."""
    sized: set[ir.Value] = set()
    for node in graph:
        if not is_standard(node):
            continue
        inputs = [value for value in node.inputs if value is not None]
        follows = node.op_type in _OPERATORS and any(value in sized for value in inputs)
        if node.op_type != "Shape" and not (follows and all(v in sized or constant_of(v) is not None for v in inputs)):
            continue
        sized.update(node.outputs)
        if node.op_type == "Cast" and ir.DataType(node.attributes.get_int("to", 0)).is_floating_point():
            return True
    return False


def _known_values(graph: ir.Graph, sizes: Mapping[str, Sequence[int | None]]) -> dict[ir.Value, np.ndarray]:
    """Return the values that depend only on sizes and constants; open sizes among their elements are `_UNKNOWN`."""
    known: dict[ir.Value, np.ndarray] = {}
    for node in graph:
        if not is_standard(node) or not node.outputs:
            continue
        if node.op_type == "Shape" and node.inputs and node.inputs[0] is not None and str(node.inputs[0].name) in sizes:
            dims = [_UNKNOWN if size is None else size for size in sizes[str(node.inputs[0].name)]]
            if _UNKNOWN not in dims:
                continue  # ONNX Runtime folds it
            first, last = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(dims))
            known[node.outputs[0]] = np.array(dims[first:last], np.int64)
        elif node.op_type in _OPERATORS and any(value in known for value in node.inputs):
            arrays = [None if value is None else _array(value, known) for value in node.inputs]
            is_known = all(array is not None or value is None for array, value in zip(arrays, node.inputs, strict=True))
            if is_known and (result := _evaluated(node, arrays)) is not None:
                known[node.outputs[0]] = result
    return known


def _array(value: ir.Value, known: Mapping[ir.Value, np.ndarray]) -> np.ndarray | None:
    if value in known:
        return known[value]
    tensor = constant_of(value)
    return None if tensor is None or tensor.size > _SMALL else constant_array(value)


def _evaluated(node: ir.Node, arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Return the result of a node; None if an input is open, or if the node is not valid."""
    known = [array for array in arrays if array is not None]
    moves = node.op_type in _MOVES
    if any((array == _UNKNOWN).any() for array in known[moves:]):
        return None
    if node.op_type in _ARITHMETIC and any(array.dtype != np.float32 for array in known):
        return None
    return evaluate(node, arrays)


def _is_read(value: ir.Value, known: Mapping[ir.Value, np.ndarray]) -> bool:
    """Whether a node reads the value that is not folded itself."""
    return any(not all(result in known for result in user.outputs) for user in value.consumers())


def _fold(value: ir.Value, array: np.ndarray, names: NameAllocator) -> None:
    """Let the readers of `value` read a constant, and remove the nodes that nobody reads any more."""
    node = value.producer()
    assert node is not None, "only results of nodes are known"
    constant = NodeBuilder(node, names).constant(array)
    for use in list(value.uses()):
        use.node.replace_input_with(use.idx, constant)
    remove_unread(node)
