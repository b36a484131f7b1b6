"""Scatters sums into zeros in the zeros' own memory."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, elements_of, is_static, shape_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["AddInPlace"]


class AddInPlace(Pass[PassResult]):
    """Writes ScatterElements into a vector of equal numbers as ScatterND; counts them.

    The gradient of a maximum over windows scatters so. ONNX Runtime's ScatterElements copies all of its data first. Its
    ScatterND writes into data that nothing else reads and that no Reshape hands on: the vector is made as one. For
    CUDA: the CPU provider's ScatterND is slow at single numbers, and adds wrongly with several threads.

    1. The data are an Expand of one number, perhaps reshaped, that nothing else reads.
    2. Numbers are replaced, or float32 numbers are added: ScatterND adds no other type everywhere.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for node in list(model.graph):
            expand = _made_by(node)
            if expand is not None:
                _rewrite(model, names, node, expand)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


def _made_by(node: ir.Node) -> ir.Node | None:
    """Return the Expand whose numbers a node scatters into; None if there is none."""
    if node.op_type != "ScatterElements" or not is_standard(node) or node.attributes.get_int("axis", 0) != 0:
        return None
    data, indices, updates = node.inputs
    reduction = node.attributes.get_string("reduction", "none")
    if data is None or reduction not in ("none", "add") or (reduction == "add" and data.dtype != ir.DataType.FLOAT):
        return None
    if any(value is None or not is_static(value) or len(shape_of(value)) != 1 for value in (data, indices, updates)):
        return None
    value: ir.Value | None = data
    while value is not None and len(value.uses()) == 1 and not value.is_graph_output():
        maker = value.producer()
        if maker is None or not is_standard(maker) or maker.inputs[0] is None:
            return None
        if maker.op_type == "Expand":
            return maker if elements_of(maker.inputs[0]) == 1 else None
        value = maker.inputs[0] if maker.op_type == "Reshape" else None
    return None


def _rewrite(model: ir.Model, names: NameAllocator, node: ir.Node, expand: ir.Node) -> None:
    data, indices, updates = node.inputs
    assert data is not None
    assert indices is not None
    builder = GraphBuilder(model, before=node, names=names, metadata=node.metadata_props, prefix=f"{node.name}/")
    number = builder.reshape(expand.inputs[0], [1])  # type: ignore[arg-type]  # checked
    vector = builder.op("Expand", [number, builder.constant(list(shape_of(data)))])
    where = builder.reshape(indices, [shape_of(indices)[0], 1])
    reduction = {"reduction": node.attributes.get_string("reduction", "none")}
    take_over(node.outputs[0], builder.op("ScatterND", [vector, where, updates], reduction), names)
    old = [node]
    while old[-1] is not expand:
        before = old[-1].inputs[0]
        assert before is not None
        maker = before.producer()
        assert maker is not None
        old.append(maker)
    model.graph.remove(old, safe=True)
