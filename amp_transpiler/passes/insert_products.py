"""Adding products of values and powers of two."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import set_input

__all__ = ["AddedProduct", "InsertProducts"]


@dataclasses.dataclass(frozen=True, slots=True)
class AddedProduct:
    """A product to add.

    Attributes:
        value: a float32 value of the main graph, which is no constant.
        exponent: of the power of two that it is multiplied by.
        uses: the places that read the product instead: nodes, each with the index of an input.
        is_output: the outputs of the graph that are the value become the product, under the value's name.
    """

    value: ir.Value
    exponent: int
    uses: tuple[tuple[ir.Node, int], ...]
    is_output: bool = False


class InsertProducts(Pass[PassResult]):
    """Adds products of values and powers of two; counts them.

    Args:
        products: what to add.
    """

    def __init__(self, products: Sequence[AddedProduct]) -> None:
        self._products = products

    def call(self, model: ir.Model) -> PassResult:
        names = NameAllocator(model)
        for product in self._products:
            _insert(model.graph, product, names)
        return PassResult(model, modified=bool(self._products), count=len(self._products))


def _insert(graph: ir.Graph, product: AddedProduct, names: NameAllocator) -> None:
    value = product.value
    name = names.fresh(f"{value.name}_scaled")
    factor = ir.Value(name=names.fresh(f"{name}_by"), type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(()))
    factor.const_value = ir.tensor(np.ldexp(np.float32(1.0), product.exponent), name=factor.name)
    graph.register_initializer(factor)
    result = ir.Value(name=name, type=value.type, shape=value.shape)
    node = ir.Node("", "Mul", [value, factor], outputs=[result], name=names.fresh(f"{name}/Mul"))
    maker = value.producer()
    if maker is not None:
        graph.insert_after(maker, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    for user, index in product.uses:
        set_input(user, index, result)
    if product.is_output:
        result.name, value.name = value.name, name
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = result
