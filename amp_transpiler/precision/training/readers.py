"""Finds who reads an input as weight, scale, bias or table, and which values prove its gradient."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.precision.training.dataflow import UNKNOWN, Dataflow
from amp_transpiler.precision.training.operators import (
    PRODUCTS,
    SCATTERS,
    TABLES,
    is_elementwise,
    is_movement,
    kind,
    weight_slots,
)
from amp_transpiler.precision.training.products import Axes, factors, origins

__all__ = ["FactorIndex", "Product", "Reader", "entries", "readers_of"]

_MOST_DERIVED = 2000  # values computed from one state and no data


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """A node that reads an input as weight, scale, bias or table.

    Attributes:
        node: the node.
        read: what it reads: the input, or what is computed from it.
        other: the operand that the input is multiplied with, or the indices into it; None for a bias.
        summed: the axes of it over which the node sums.
    """

    node: ir.Node
    read: ir.Value
    other: ir.Value | None
    summed: Axes


def readers_of(
    flow: Dataflow, start: ir.Value, data: Collection[ir.Value], updated: Collection[ir.Value]
) -> Iterator[Reader]:
    """Yield the nodes at which an input, or what is computed only from states and constants, meets other values.

    Args:
        flow: the graph.
        start: the input.
        data: the values that depend on inputs which are no states.
        updated: values that are states again, though they depend on data.
    """
    pending, derived = [start], {start}
    while pending and len(derived) < _MOST_DERIVED:
        value = pending.pop()
        for node, index in value.uses():
            if node not in flow.position:
                continue
            met = has_bodies(node) or any(other in data for other in node.inputs if other is not value)
            if (met or kind(node) in PRODUCTS) and index in weight_slots(node):
                yield from _as_reader(flow, node, value, start)
            fresh = [out for out in node.outputs if out not in derived and (out in updated or not met)]
            derived.update(fresh)
            pending.extend(fresh)


def _as_reader(flow: Dataflow, node: ir.Node, value: ir.Value, start: ir.Value) -> Iterator[Reader]:
    if is_elementwise(node) and (node.op_type != "Mul" or not (_grows(flow, node, start) or _is_dot(node))):
        yield Reader(node, value, None, frozenset())
    elif kind(node) in TABLES:
        yield Reader(node, value, node.inputs[1], None)
    else:
        opposite = [factor for factor in factors(flow, node) if factor.operand is not value and value in factor.others]
        yield from (Reader(node, value, factor.operand, factor.summed) for factor in opposite)
        if not opposite:
            yield Reader(node, value, None, frozenset())


def _grows(flow: Dataflow, node: ir.Node, start: ir.Value) -> bool:
    return flow.size(node.outputs[0]) not in (flow.size(start), UNKNOWN)


def _is_dot(node: ir.Node) -> bool:
    return node.op_type == "Mul" and any(use.node.op_type == "ReduceSum" for use in node.outputs[0].uses())


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """A product with a given factor.

    Attributes:
        node: the node.
        others: its other operands.
        summed: the axes, of the value that was looked for, over which it sums.
    """

    node: ir.Node
    others: tuple[ir.Value, ...]
    summed: Axes


class FactorIndex:
    """The products of a graph by their factors: values that are equal, up to casts and movement, find each other.

    Those of one factor lie by the axes that they sum over: many layers may share a weight, and sum over the same ones.
    """

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self._products: dict[int, dict[Axes, list[tuple[int, Product]]]] = {}
        for place, node in enumerate(flow.graph):
            if kind(node) not in PRODUCTS and kind(node) not in SCATTERS and kind(node) != "Mul":
                continue
            for factor in factors(flow, node):
                for number, axes in origins(flow, factor.operand, factor.summed, through_factors=True).items():
                    product = Product(node, factor.others, axes)
                    self._products.setdefault(number, {}).setdefault(axes, []).append((place, product))

    def gradients(self, reader: Reader) -> Iterator[Product]:
        """Yield the products of the reader's other operand, over other axes than the reader's."""
        if reader.other is None:
            return
        seen: set[ir.Node] = {reader.node}
        for number, axes in origins(self._flow, reader.other, reader.summed, through_factors=False).items():
            for product in self._over_other_axes(number, axes):
                if product.node not in seen:
                    seen.add(product.node)
                    yield product

    def _over_other_axes(self, number: int, axes: Axes) -> Iterator[Product]:
        """Yield the products of a factor, in order, that sum over none of the given axes."""
        groups = [products for summed, products in self._products.get(number, {}).items() if not _overlap(axes, summed)]
        yield from (product for _, product in heapq.merge(*groups, key=operator.itemgetter(0)))

    def ways_back(self, nodes: Sequence[ir.Node], depends: Mapping[ir.Value, int]) -> Iterator[tuple[ir.Node, int]]:
        """Yield the products by which a gradient may come back through another product: with a factor of it again.

        Args:
            nodes: products; one has the bit of its place in the order.
            depends: value -> the bits of the products that it depends on.

        Yields:
            A product, and the bits of those that it may lead back through.
        """
        first: dict[int, dict[Axes, int]] = {}
        for index, node in enumerate(nodes):
            for factor in factors(self._flow, node):
                for number, axes in origins(self._flow, factor.operand, factor.summed, through_factors=False).items():
                    by_axes = first.setdefault(number, {})
                    by_axes[axes] = by_axes.get(axes, 0) | 1 << index
        for number, by_axes in first.items():
            for summed, products in self._products.get(number, {}).items():
                bits = functools.reduce(operator.or_, (b for a, b in by_axes.items() if not _overlap(a, summed)), 0)
                for _, product in products if bits else ():
                    through = bits & functools.reduce(operator.or_, (depends.get(v, 0) for v in product.others), 0)
                    if through:
                        yield product.node, through


def _overlap(axes: Axes, other: Axes) -> bool:
    """Whether two products surely sum over an axis in common."""
    return axes is not None and other is not None and not axes.isdisjoint(other)


def entries(flow: Dataflow, output: ir.Value, state: ir.Value, inside: Collection[ir.Value]) -> set[ir.Value]:
    """Return the values at which the elementwise arithmetic and movement of an update end, inputs left out.

    Single numbers, such as norms and rates, are not followed, unless the state is one itself.

    Args:
        flow: the graph.
        output: the update.
        state: the state.
        inside: values at which to end, too.
    """
    scalar = flow.size(state) == 1
    pending, seen, ends = [output], set[ir.Value](), set[ir.Value]()
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None or value in seen or (flow.size(value) == 1 and not scalar) or not _is_float(value):
            continue
        seen.add(value)
        if value in inside or not (is_elementwise(node) or is_movement(node)):
            ends.add(value)
            continue
        pending.extend(operand for operand in node.inputs if operand is not None)
    return ends


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_floating_point()
