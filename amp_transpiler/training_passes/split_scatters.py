"""Splits sums scattered by rows into pieces that ONNX Runtime's CPU provider adds with one thread."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, shape_of
from amp_transpiler.graph.large_scatters import MOST, large_scatters
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["SplitScatters"]


class SplitScatters(Pass[PassResult]):
    """Writes each large ScatterND that adds as several small ones; counts them.

    The CPU provider divides the rows that are added among its threads, and two threads that add to one row lose sums.
    The gradient of a look-up is such a sum, where rows come again and again. Small ones run on one thread.

    1. The columns are divided: each piece has few of all rows, so that the data are copied once in total.
    2. If there are more rows than a piece may have elements, they are divided, too, and added one part after the other.

    All sums are those of one thread, to the bit. Shapes must be inferred.

    Args:
        most: elements that one ScatterND adds at most.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most

    def call(self, model: ir.Model) -> PassResult:
        scatters = large_scatters(model, self._most)
        names = NameAllocator(model) if scatters else None
        for node in scatters:
            assert names is not None  # there are some
            _split(model, node, names, self._most)
        return PassResult(model, modified=bool(scatters), count=len(scatters))


def _split(model: ir.Model, node: ir.Node, names: NameAllocator, most: int) -> None:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    metadata = node.metadata_props
    builder = GraphBuilder(model, graph=graph, before=node, names=names, metadata=metadata, prefix=f"{node.name}/")
    data, indices, updates = (value for value in node.inputs if value is not None)
    shape, depth, count = shape_of(data), shape_of(indices)[-1], math.prod(shape_of(indices)[:-1])
    columns = math.prod(shape[depth:])
    width = max(1, most // count)
    kind = {"reduction": node.attributes.get_string("reduction", "add")}
    rows = _parts(builder, builder.reshape(indices, [count, depth]), 0, most)
    sums = _parts(builder, builder.reshape(data, [*shape[:depth], columns]), depth, width)
    for index, values in enumerate(_parts(builder, builder.reshape(updates, [count, columns]), 1, width)):
        for where, what in zip(rows, _parts(builder, values, 0, most), strict=True):
            sums[index] = builder.op("ScatterND", [sums[index], where, what], kind)
    result = builder.reshape(builder.concat(sums, depth), shape)
    take_over(node.outputs[0], result, names)
    graph.remove(node, safe=True)


def _parts(builder: GraphBuilder, value: ir.Value, axis: int, most: int) -> list[ir.Value]:
    """Divide a value along an axis into parts of at most a size."""
    size = shape_of(value)[axis]
    if size <= most:
        return [value]
    sizes = [min(most, size - start) for start in range(0, size, most)]
    return list(builder.nodes("Split", [value, _constant(builder, sizes)], {"axis": axis}, outputs=len(sizes)))


def _constant(builder: GraphBuilder, sizes: Sequence[int]) -> ir.Value:
    return builder.constant(np.array(sizes, np.int64))
