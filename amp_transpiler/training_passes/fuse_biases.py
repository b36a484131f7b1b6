"""Fuses a matrix product and the bias added to it to one Gemm."""

from __future__ import annotations

import math

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.match import Binding, bindings, parse_form
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["FuseBiases"]

_FORMS = tuple(map(parse_form, ("Add(product:MatMul(left, right), bias)", "Add(product:Gemm(left, right), bias)")))


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
            biased = _biased(node)
            if biased is not None:
                _fuse(model, names, biased)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


def _biased(total: ir.Node) -> Binding | None:
    """Return the product and the bias that a node adds; None if it adds none."""
    for biased in (biased for form in _FORMS for biased in bindings(form, total)):
        product, result = biased.node("product"), biased["product"]
        is_apart = len(result.uses()) == 1 and not result.is_graph_output() and product.graph is total.graph
        if is_apart and len(product.inputs) == 2 and _fits(biased):
            return biased
    return None


def _fits(biased: Binding) -> bool:
    left, right, bias, result = (biased[name] for name in ("left", "right", "bias", "product"))
    if not all(map(is_static, (left, right, bias, result))):
        return False
    rows, matrix = shape_of(left), shape_of(right)
    return len(rows) >= 2 and len(matrix) == 2 and math.prod(rows) > 0 and shape_of(bias) == shape_of(result)[-1:]


def _fuse(model: ir.Model, names: NameAllocator, biased: Binding) -> None:
    total, product, left = biased.last, biased.node("product"), biased["left"]
    shape = shape_of(left)
    builder = GraphBuilder(model, before=total, names=names, metadata=product.metadata_props, prefix=f"{product.name}/")
    rows = left if len(shape) == 2 else builder.reshape(left, [math.prod(shape[:-1]), shape[-1]])
    attributes = {name: attribute.value for name, attribute in product.attributes.items()}
    gemm = builder.op("Gemm", [rows, biased["right"], biased["bias"]], attributes)
    if len(shape) > 2:
        gemm = builder.reshape(gemm, [*shape[:-1], shape_of(gemm)[-1]])
    take_over(total.outputs[0], gemm, names)
    model.graph.remove([total, product], safe=True)
