"""Scatters long rows in pieces, since CUDA's kernel walks a row with one thread."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["ShortenScatters"]

_LONG = 64  # elements of a row, from which two more launches take less time than the walk
_PIECES = (16, 8, 4, 2, 1)  # elements of a piece, the best first: an index, 8 bytes, is written for each


class ShortenScatters(Pass[PassResult]):
    """Writes ScatterND of long rows as one of short pieces; counts them. The gradient of a look-up is such a sum.

    A table [V, D] becomes [V * D / 16, 16], and row `i` the pieces `i * D / 16 + j`. The sums are the same, to the bit
    where the kernel adds in the same order.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        scatters = [node for node in model.graph if _has_long_rows(node)]
        names = NameAllocator(model) if scatters else None
        for node in scatters:
            assert names is not None  # there are some
            _shorten(model, node, names)
        return PassResult(model, modified=bool(scatters), count=len(scatters))


def _has_long_rows(node: ir.Node) -> bool:
    """Whether a ScatterND writes rows of a table by their number."""
    if node.op_type != "ScatterND" or not is_standard(node):
        return False
    if any(value is None or not is_static(value) for value in node.inputs):
        return False
    table, indices, _ = (shape_of(value) for value in node.inputs if value is not None)
    return len(indices) > 0 and indices[-1] == 1 and math.prod(indices) > 0 and math.prod(table[1:]) >= _LONG


def _shorten(model: ir.Model, node: ir.Node, names: NameAllocator) -> None:
    table, indices, updates = node.inputs
    assert table is not None
    assert indices is not None
    assert updates is not None
    build = GraphBuilder(model, before=node, names=names, metadata=node.metadata_props, prefix=f"{node.name}/")
    rows, *sizes = shape_of(table)
    row = math.prod(sizes)
    piece = next(length for length in _PIECES if row % length == 0)
    count, number = math.prod(shape_of(indices)), row // piece
    begins = build.mul(build.reshape(indices, [count, 1]), build.constant(np.array(number)))
    places = build.unsqueeze(build.add(begins, build.constant(np.arange(number)[None])), [2])
    data = build.reshape(table, [rows * number, piece])
    parts = build.reshape(updates, [count, number, piece])
    attributes = {attribute.name: attribute.value for attribute in node.attributes.values()}
    result = build.reshape(build.op("ScatterND", [data, places, parts], attributes), [rows, *sizes])
    take_over(node.outputs[0], result, names)
    build.graph.remove(node, safe=True)
