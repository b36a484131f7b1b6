"""Queries, keys and values of attention as rows of positions, whose samples and heads are a stack of matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.fusion.attention_operands import BATCH_FIRST, Operand
from amp_transpiler.fusion.attention_projection import Projection, projection
from amp_transpiler.fusion.attention_values import made_by
from amp_transpiler.fusion.attention_writing import OperandWriter, reshaped
from amp_transpiler.fusion.operand_products import (
    joined,
    joins_products,
    unshared_parts,
    whole_products,
    widths_of,
    written_product,
)
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["RowPlan", "RowWriter"]

_FLOAT = ir.DataType.FLOAT


@dataclasses.dataclass(frozen=True, slots=True)
class RowPlan:
    """Says how queries, keys and values become rows of positions.

    Attributes:
        operands: queries, keys and values.
        products: how each is all columns of a product with constants that nobody else needs, where it is one.
        turned: what is brought into the order of positions instead of operands.
        packed: the product that all three are parts of, where they are made of it anew.
        joins: the products become one, of which the operands are parts.
    """

    operands: tuple[Operand, ...]
    products: tuple[Projection | None, ...]
    turned: frozenset[ir.Value] = frozenset()
    packed: Projection | None = None
    joins: bool = False

    @property
    def saves_transposes(self) -> bool:
        """Whether less is copied into another order than with heads before positions."""
        return bool(self.turned) or self.packed is not None or not all(map(_lies_by_samples, self.operands))

    def bias_of(self, index: int) -> np.ndarray | None:
        """Return the bias that an operand loses where it is written without one."""
        product = self.products[index]
        return None if product is None else constant_array(product.bias)


class RowWriter:
    """Writes operands of attention by positions; what layers have in common is written once.

    Args:
        sizes: the sizes of the graph's values.
        operands: writes those that lie side by side apart.
    """

    def __init__(self, sizes: Sizes, operands: OperandWriter) -> None:
        self._sizes, self._operands = sizes, operands
        self._written: dict[tuple[object, ...], ir.Value] = {}

    # ---- deciding ----
    def plan(self, operands: tuple[Operand, ...], gone: Collection[ir.Node], biased: Sequence[bool]) -> RowPlan:
        """Return how operands become rows of positions.

        Args:
            operands: queries, keys and values.
            gone: nodes that nobody reads any more once attention is written anew.
            biased: of each operand, whether it keeps the bias that `RowPlan.bias_of` returns.
        """
        alone = unshared_parts(operands, gone, self._sizes)
        packed = _packed(operands, alone)
        if packed is not None:
            return RowPlan(operands, (None,) * len(operands), packed=packed)
        products = whole_products(operands, alone)
        turned = _turned_sources(operands, products)
        return RowPlan(operands, products, turned, joins=self._joins(operands, products, turned, biased))

    def _joins(
        self,
        operands: Sequence[Operand],
        products: Sequence[Projection | None],
        turned: Collection[ir.Value],
        biased: Sequence[bool],
    ) -> bool:
        """Whether three products cost less as one, by the price list."""
        first = next((product for product in products if product is not None), None)
        if first is None or (_lies_by_samples(operands[0]) and first.source not in turned):
            return False
        return joins_products(operands, products, biased, self._sizes)

    # ---- writing ----
    def write(self, builder: NodeBuilder, plan: RowPlan, biased: Sequence[bool]) -> list[ir.Value]:
        """Return operands of shape [rows, batch, heads, size].

        Args:
            builder: where they are put.
            plan: how.
            biased: as for the plan.
        """
        if plan.packed is not None:
            places = [_start(operand, self._sizes) // operand.width for operand in plan.operands]
            return self._parts(builder, plan.operands, plan.packed, places)
        if plan.joins:
            return self._parts(
                builder, plan.operands, joined(builder, plan.products, biased), range(len(plan.operands))
            )
        return [
            self._by_positions(builder, operand, product, plan.turned, keeps)
            for operand, product, keeps in zip(plan.operands, plan.products, biased, strict=True)
        ]

    def _parts(
        self, builder: NodeBuilder, operands: Sequence[Operand], whole: Projection, places: Sequence[int]
    ) -> list[ir.Value]:
        """Return parts of a product of rows by positions, each by its place."""
        is_flat = _lies_by_samples(operands[0])
        rows = self._flat_by_positions(builder, whole.source) if is_flat else whole.source
        result = written_product(builder, rows, whole, keeps_bias=True)
        widths = builder.constant(np.full(len(operands), operands[0].width, np.int64))
        values = builder.nodes("Split", [result, widths], len(operands), {"axis": -1}, _FLOAT)
        return [
            self._from_flat(builder, operand, values[place], whole.source)
            if is_flat
            else _in_heads(builder, operand, values[place])
            for operand, place in zip(operands, places, strict=True)
        ]

    def _by_positions(
        self,
        builder: NodeBuilder,
        operand: Operand,
        product: Projection | None,
        turned: Collection[ir.Value],
        keeps_bias: bool,
    ) -> ir.Value:
        is_turned = _lies_by_samples(operand)
        if product is not None and is_turned and product.source in turned:
            rows = self._flat_by_positions(builder, product.source)
            value = written_product(builder, rows, product, keeps_bias=keeps_bias)
            return self._from_flat(builder, operand, value, product.source)
        if product is not None and product.bias is not None and not keeps_bias:
            value = written_product(builder, product.source, product, keeps_bias=False)
        else:
            value = self._operands.alone(builder, operand)
        if is_turned:
            value = self._operands.turned(builder, value, (1, 0, 2))
        return _in_heads(builder, operand, value)

    def _flat_by_positions(self, builder: NodeBuilder, source: ir.Value) -> ir.Value:
        """Return rows by positions as a matrix: through products of three axes ONNX Runtime moves the Transpose on."""
        key = ("flat", source)
        if key not in self._written:
            turned = self._operands.turned(builder, source, (1, 0, 2))
            shape = self._sizes.shape(source)
            assert shape is not None, "its width is known"
            self._written[key] = reshaped(builder, turned, [-1, shape[-1]])
        return self._written[key]

    def _from_flat(self, builder: NodeBuilder, operand: Operand, value: ir.Value, source: ir.Value) -> ir.Value:
        """Return a matrix of rows with axes for positions, samples, heads and sizes."""
        inner = [operand.heads, operand.size]
        if isinstance(operand.batch, int):
            return _named(reshaped(builder, value, [-1, operand.batch, *inner]), operand)
        if isinstance(operand.rows, int):
            return _named(reshaped(builder, value, [operand.rows, -1, *inner]), operand)
        key = ("shape", operand.rows, operand.batch, *inner)
        if key not in self._written:
            sides = builder.node("Shape", [self._operands.turned(builder, source, (1, 0, 2))], dtype=ir.DataType.INT64)
            both, rest = (builder.constant(np.asarray(numbers, np.int64)) for numbers in ([0, 1], inner))
            outer = builder.node("Gather", [sides, both], dtype=ir.DataType.INT64)
            self._written[key] = builder.node("Concat", [outer, rest], {"axis": 0}, ir.DataType.INT64)
        return _named(builder.node("Reshape", [value, self._written[key]], dtype=_FLOAT), operand)


def _in_heads(builder: NodeBuilder, operand: Operand, value: ir.Value) -> ir.Value:
    """Return rows by positions with axes for heads and sizes."""
    outer = [-1, 1] if operand.order == BATCH_FIRST and operand.batch == 1 else [0, 0]
    return _named(reshaped(builder, value, [*outer, operand.heads, operand.size]), operand)


def _named(value: ir.Value, operand: Operand) -> ir.Value:
    """Say a value's sizes: ONNX Runtime fuses a mask and a softmax only where it sees that they are the same."""
    value.shape = ir.Shape([operand.rows, operand.batch, operand.heads, operand.size])
    return value


# ---- what operands are ----
def _lies_by_samples(operand: Operand) -> bool:
    """Whether rows have to be brought into the order of positions; those of one sample are."""
    return operand.order == BATCH_FIRST and operand.batch != 1


def _turned_sources(operands: Sequence[Operand], products: Sequence[Projection | None]) -> frozenset[ir.Value]:
    """Return what has fewer elements than the operands that are made of it."""
    more: dict[ir.Value, int] = {}
    for operand, product in zip(operands, products, strict=True):
        if product is not None and _lies_by_samples(operand):
            more[product.source] = more.get(product.source, -widths_of(product)[0]) + operand.width
    return frozenset(source for source, number in more.items() if number > 0)


def _packed(operands: Sequence[Operand], alone: Sequence[Projection | None]) -> Projection | None:
    """Return the product that queries, keys and values are the thirds of, if it saves copies to make it anew.

    It does where its source has fewer elements to be turned, and where each third is cut out by itself.
    """
    parts = [part for part in alone if part is not None]
    whole = next(iter(parts), None)
    if whole is None or len(parts) < len(operands) or len({operand.order for operand in operands}) > 1:
        return None
    if len({(part.source, part.weight) for part in parts}) > 1 or len({operand.width for operand in operands}) > 1:
        return None
    starts = sorted(part.start + operand.part * operand.width for operand, part in zip(operands, parts, strict=True))
    height, width = widths_of(whole)
    if starts != [index * operands[0].width for index in range(len(operands))] or width != 3 * operands[0].width:
        return None
    is_cut = all(made_by(operand.whole, "Slice") is not None for operand in operands)
    return whole if is_cut or (_lies_by_samples(operands[0]) and width > height) else None


def _start(operand: Operand, sizes: Sizes) -> int:
    part = projection(operand.whole, sizes)
    assert part is not None, "it is a part of a product"
    return part.start + operand.part * operand.width
