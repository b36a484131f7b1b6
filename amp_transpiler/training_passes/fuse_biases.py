"""Fuses a matrix product and the bias added to it to one Gemm."""

from __future__ import annotations

import math

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.training_passes.take_over import take_over

__all__ = ["FuseBiases"]


class FuseBiases(Pass[PassResult]):
    """Writes a product with a matrix, and the Add of a vector behind it, as one Gemm; counts them.

    ONNX Runtime does so too, but the order in which a step runs is the order of its nodes, and a node that ONNX
    Runtime makes comes last: before it, all that could run does, such as masks of the backward pass. That stays alive.

    1. Nothing else reads the product.
    2. Where the left side has more than two dimensions, all but the last become one.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for node in list(model.graph):
            product = _product(node)
            if product is not None:
                _fuse(model, names, node, product)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


def _product(total: ir.Node) -> ir.Node | None:
    """Return the product whose bias a node adds; None if it adds none."""
    if total.op_type != "Add" or not is_standard(total):
        return None
    for value, other in (total.inputs, tuple(reversed(total.inputs))):
        node = None if value is None else value.producer()
        if node is None or node.op_type not in ("MatMul", "Gemm") or len(node.inputs) != 2:
            continue
        if not is_standard(node) or node.graph is not total.graph:
            continue
        result = node.outputs[0]
        if len(result.uses()) == 1 and not result.is_graph_output() and _fits(node, other):
            return node
    return None


def _fits(product: ir.Node, bias: ir.Value | None) -> bool:
    if bias is None or any(value is None or not is_static(value) for value in (*product.inputs, bias)):
        return False
    left, right = (shape_of(value) for value in product.inputs if value is not None)
    columns = shape_of(product.outputs[0])[-1:] if is_static(product.outputs[0]) else None
    return len(left) >= 2 and len(right) == 2 and math.prod(left) > 0 and shape_of(bias) == columns


def _fuse(model: ir.Model, names: NameAllocator, total: ir.Node, product: ir.Node) -> None:
    left, right = product.inputs
    assert left is not None
    bias = total.inputs[1] if total.inputs[0] is product.outputs[0] else total.inputs[0]
    shape = shape_of(left)
    builder = GraphBuilder(model, before=total, names=names, metadata=product.metadata_props, prefix=f"{product.name}/")
    rows = left if len(shape) == 2 else builder.reshape(left, [math.prod(shape[:-1]), shape[-1]])
    attributes = {name: attribute.value for name, attribute in product.attributes.items()}
    gemm = builder.op("Gemm", [rows, right, bias], attributes)
    if len(shape) > 2:
        gemm = builder.reshape(gemm, [*shape[:-1], shape_of(gemm)[-1]])
    take_over(total.outputs[0], gemm, names)
    model.graph.remove([total, product], safe=True)
