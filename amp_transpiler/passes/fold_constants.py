"""Folding of floats that are computed only from constants, for targets that build an engine of the file.

The builder folds them itself, in the types that the file names. In the file they are numbers that have been computed in
float32 and are rounded once, and no layer of the network is left in float32 because of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.evaluate import evaluate
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.walk import in_order
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder
from amp_transpiler.precision.folded import folded_nodes

__all__ = ["FoldConstants"]

_LARGEST = 1 << 20  # elements of a constant: 2 MB in 16 bits, which the file grows by


class FoldConstants(Pass[PassResult]):
    """Replaces float32 values that are computed only from constants by constants; counts them.

    What numpy does not compute (`graph/evaluate.py`), or what is larger than a million elements, stays.
    """

    def call(self, model: ir.Model) -> PassResult:
        known = _known_values(model.graph)
        replaced = [value for value, array in known.items() if array.dtype == np.float32 and _is_last(value, known)]
        names = NameAllocator(model)
        for value in replaced:
            node = value.producer()
            assert node is not None, "only results of nodes are known"
            value.replace_all_uses_with(NodeBuilder(node, names).constant(known[value]))
            remove_unread(node)
        return PassResult(model, modified=bool(replaced), count=len(replaced))


def _known_values(graph: ir.Graph) -> dict[ir.Value, np.ndarray]:
    """Return the results of nodes that compute only from constants."""
    known: dict[ir.Value, np.ndarray] = {}
    nodes = list(in_order(graph))
    folded = folded_nodes(nodes)
    for node in nodes:
        if node not in folded or len(node.outputs) != 1:
            continue
        inputs = [value for value in node.inputs if value is not None]
        arrays = {value: known[value] if value in known else constant_array(value) for value in inputs}
        if any(array is None for array in arrays.values()):
            continue
        result = evaluate(node, [None if value is None else arrays[value] for value in node.inputs], most=_LARGEST)
        if result is not None:
            known[node.outputs[0]] = result
    return known


def _is_last(value: ir.Value, known: Mapping[ir.Value, np.ndarray]) -> bool:
    """Whether nodes read the value that are not folded themselves; a result of a graph keeps its name."""
    if value.is_graph_output():
        return False
    return any(not all(result in known for result in user.outputs) for user in value.consumers())
