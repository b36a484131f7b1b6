"""Queries, keys and values of attention as rows of positions, whose samples and heads are a stack of matrices."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.passes.attention_operands import BATCH_FIRST, Operand
from amp_transpiler.passes.attention_projection import Projection, constant_shape, projection
from amp_transpiler.passes.attention_writing import OperandWriter
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["RowWriter"]

_FLOAT = ir.DataType.FLOAT


class RowWriter:
    """Writes operands of attention by positions; what layers have in common is written once.

    Args:
        sizes: the sizes of the graph's values.
        operands: writes those that lie side by side apart.
    """

    def __init__(self, sizes: Sizes, operands: OperandWriter) -> None:
        self._sizes, self._operands = sizes, operands
        self._written: dict[tuple[object, ...], ir.Value] = {}

    def source_of(self, operand: Operand) -> ir.Value:
        """Return what an operand may be made of anew."""
        product = self._product(operand)
        return operand.whole if product is None else product.source

    def bias_of(self, operand: Operand, gone: Collection[ir.Node]) -> np.ndarray | None:
        """Return the bias that an operand loses if it is written without one.

        Args:
            operand: the operand.
            gone: nodes that nobody reads any more once attention is written anew.
        """
        product = self._own_product(operand, gone)
        return None if product is None else constant_array(product.bias)

    def written(
        self,
        builder: NodeBuilder,
        operands: Sequence[Operand],
        gone: Collection[ir.Node],
        biased: Sequence[bool],
    ) -> list[ir.Value]:
        """Return operands of shape [rows, batch, heads, size].

        Args:
            builder: where they are put.
            operands: queries, keys and values.
            gone: nodes that nobody reads any more once attention is written anew.
            biased: of each, whether it keeps the bias that `bias_of` returns.
        """
        products = [self._own_product(each, gone) for each in operands]
        turned = self._turned_sources(operands, products)
        return [
            self._by_positions(builder, operand, product, turned, keeps)
            for operand, product, keeps in zip(operands, products, biased, strict=True)
        ]

    def _product(self, operand: Operand) -> Projection | None:
        """Return how an operand is all columns of a product with constants."""
        product = None if operand.parts > 1 else projection(operand.whole, self._sizes)
        if product is None or (product.start, product.stop) != (0, operand.width):
            return None
        return product if constant_shape(product.weight) == (self._width(product), operand.width) else None

    def _own_product(self, operand: Operand, gone: Collection[ir.Node]) -> Projection | None:
        """Return the product that an operand is, if nobody else needs what it computes."""
        product, waiting = self._product(operand), [operand.whole]
        while product is not None and waiting:
            value = waiting.pop()
            if value is product.source or constant_shape(value) is not None:
                continue
            node = value.producer()
            if node is None or node not in gone:
                return None
            waiting += [each for each in node.inputs if each is not None and each.dtype == _FLOAT]
        return product

    def _turned_sources(self, operands: Sequence[Operand], products: Sequence[Projection | None]) -> set[ir.Value]:
        """Return what is brought into the order of positions instead of operands: no more elements than they have."""
        widths: dict[ir.Value, int] = {}
        for operand, product in zip(operands, products, strict=True):
            if product is not None and _lies_by_samples(operand):
                widths[product.source] = widths.get(product.source, -self._width(product)) + operand.width
        return {source for source, more in widths.items() if more >= 0}

    def _by_positions(
        self,
        builder: NodeBuilder,
        operand: Operand,
        product: Projection | None,
        turned: Collection[ir.Value],
        keeps_bias: bool,
    ) -> ir.Value:
        loses_bias = product is not None and product.bias is not None and not keeps_bias
        is_turned = _lies_by_samples(operand)
        turns_source = is_turned and product is not None and product.source in turned
        if product is None or not (loses_bias or turns_source):
            value = self._operands.alone(builder, operand)
        else:
            value = self._flat_by_positions(builder, product.source) if turns_source else product.source
            value = builder.node("MatMul", [value, product.weight], dtype=_FLOAT)
            if product.bias is not None and keeps_bias:
                value = builder.node("Add", [value, product.bias], dtype=_FLOAT)
        if turns_source:
            assert product is not None, "it is turned in its place"
            return self._from_flat(builder, operand, value, product.source)
        value = self._operands.turned(builder, value, (1, 0, 2)) if is_turned else value
        outer = [-1, 1] if operand.order == BATCH_FIRST and operand.batch == 1 else [0, 0]
        return _reshaped(builder, value, [*outer, operand.heads, operand.size])

    def _flat_by_positions(self, builder: NodeBuilder, source: ir.Value) -> ir.Value:
        """Return rows by positions as a matrix: through products of three axes ONNX Runtime moves the Transpose on."""
        key = ("flat", source)
        if key not in self._written:
            turned = self._operands.turned(builder, source, (1, 0, 2))
            width = (self._sizes.shape(source) or (0,))[-1]
            self._written[key] = _reshaped(builder, turned, [-1, width])
        return self._written[key]

    def _from_flat(self, builder: NodeBuilder, operand: Operand, value: ir.Value, source: ir.Value) -> ir.Value:
        """Return a matrix of rows with axes for positions, samples, heads and sizes."""
        inner = [operand.heads, operand.size]
        if isinstance(operand.batch, int):
            return _reshaped(builder, value, [-1, operand.batch, *inner])
        if isinstance(operand.rows, int):
            return _reshaped(builder, value, [operand.rows, -1, *inner])
        key = ("shape", operand.rows, operand.batch, *inner)
        if key not in self._written:
            sides = builder.node("Shape", [self._operands.turned(builder, source, (1, 0, 2))], dtype=ir.DataType.INT64)
            both, rest = (builder.constant(np.asarray(numbers, np.int64)) for numbers in ([0, 1], inner))
            outer = builder.node("Gather", [sides, both], dtype=ir.DataType.INT64)
            self._written[key] = builder.node("Concat", [outer, rest], {"axis": 0}, ir.DataType.INT64)
        return builder.node("Reshape", [value, self._written[key]], dtype=_FLOAT)

    def _width(self, product: Projection) -> int:
        shape = constant_shape(product.weight)
        assert shape is not None, "a projection has constants"
        return shape[0]


def _lies_by_samples(operand: Operand) -> bool:
    """Whether rows have to be brought into the order of positions; those of one sample are."""
    return operand.order == BATCH_FIRST and operand.batch != 1


def _reshaped(builder: NodeBuilder, value: ir.Value, sizes: Sequence[object]) -> ir.Value:
    return builder.node("Reshape", [value, builder.constant(np.asarray(sizes, np.int64))], dtype=_FLOAT)
