"""Writes one element of each row where the row is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["WriteInPlace"]


class WriteInPlace(Pass[PassResult]):
    """Writes ScatterElements of one element a row as ScatterND; counts them.

    ONNX Runtime's ScatterElements copies all of its data first, which are scores of all classes in the gradient of a
    loss. Its ScatterND writes into data that nothing else reads.

    1. The data are a matrix that a node computes and that nothing reads later; one element of each row is replaced.
    2. The indices get the numbers of the rows.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        order = {node: index for index, node in enumerate(model.graph)}
        scatters = [node for node in order if _writes_one_a_row(node, order)]
        names = NameAllocator(model)
        places: dict[ir.Value, ir.Value] = {}
        for node in scatters:
            _rewrite(model, node, names, places)
        return PassResult(model, modified=bool(scatters), count=len(scatters))


def _writes_one_a_row(node: ir.Node, order: Mapping[ir.Node, int]) -> bool:
    if node.op_type != "ScatterElements" or not is_standard(node) or node.outputs[0].is_graph_output():
        return False
    data, indices = node.inputs[0], node.inputs[1]
    axis, reduction = node.attributes.get("axis"), node.attributes.get("reduction")
    if data is None or indices is None or axis is None or not (is_static(data) and is_static(indices)):
        return False
    sizes = shape_of(data)
    replaces = reduction is None or reduction.as_string() == "none"
    first = all(use.node is node or order.get(use.node, len(order)) < order[node] for use in data.uses())
    is_owned = data.producer() is not None and first and not data.is_graph_output()
    one_a_row = len(sizes) == 2 and axis.as_int() in (1, -1) and shape_of(indices) == (sizes[0], 1)
    return replaces and is_owned and one_a_row


def _rewrite(model: ir.Model, node: ir.Node, names: NameAllocator, places: dict[ir.Value, ir.Value]) -> None:
    """Replace a node; `places` has the indices with the numbers of their rows, for the next one with the same."""
    data, indices, updates = node.inputs
    assert data is not None
    assert indices is not None
    assert updates is not None
    builder = GraphBuilder(model, before=node, names=names, metadata=node.metadata_props, prefix=f"{node.name}/")
    if indices not in places:
        rows = builder.constant(np.arange(shape_of(data)[0], dtype=np.int64)[:, None])
        places[indices] = builder.concat([rows, builder.cast(indices, ir.DataType.INT64)], 1)
    result = builder.op("ScatterND", [data, places[indices], builder.squeeze(updates, [1])])
    node.outputs[0].replace_all_uses_with(result)
    model.graph.remove(node, safe=True)
