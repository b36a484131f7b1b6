"""Reads products, forward and backward: which operands are summed over which axes, and where an operand comes from.

The gradient of a weight is a product of the other operand of its reader with the gradient of the reader's result. It
sums over other axes of that operand than the reader does, which tells it from the reader used a second time.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.training.dataflow import Dataflow
from amp_transpiler.precision.training.operators import PRODUCTS, REDUCTIONS, SCATTERS, is_movement, kind

__all__ = ["Axes", "Factor", "factors", "origins"]

Axes = frozenset[int] | None
"""Axes that are summed over; None: not known."""

_DEPTH = 24  # casts, movements and factors between an operand and the value it comes from


@dataclasses.dataclass(frozen=True, slots=True)
class Factor:
    """An operand of a product.

    Attributes:
        operand: its value.
        others: the other operands.
        summed: the axes of it over which the product is summed.
    """

    operand: ir.Value
    others: tuple[ir.Value, ...]
    summed: Axes


def factors(flow: Dataflow, node: ir.Node) -> list[Factor]:
    """Return the operands of a product, a scatter, or a multiplication, whose sum counts if nothing else reads it."""
    op = kind(node)
    operands = [value for value in node.inputs[:2] if value is not None]
    if op in SCATTERS and len(node.inputs) > 2 and node.inputs[1] is not None and node.inputs[2] is not None:
        return [Factor(node.inputs[1], (node.inputs[2],), None)]
    if op == "Einsum":
        return _einsum(node)
    if op == "Mul" and len(operands) == 2:
        summed = _summed_after(flow, node)
        pairs = ((operands[0], operands[1]), (operands[1], operands[0]))
        return [
            Factor(operand, (other,), _own_axes(flow, operand, node.outputs[0], summed)) for operand, other in pairs
        ]
    if op not in PRODUCTS or len(operands) != 2:
        return []
    axes = [_product_axis(flow, node, index) for index in (0, 1)]
    return [Factor(operands[i], (operands[1 - i],), axes[i]) for i in (0, 1)]


def _product_axis(flow: Dataflow, node: ir.Node, index: int) -> Axes:
    """Return the axis of an operand that a matrix product or convolution sums over."""
    value = node.inputs[index]
    shape = None if value is None else flow.shape(value)
    if shape is None:
        return None
    rank = len(shape)
    if node.op_type in ("Conv", "FusedConv"):
        group = node.attributes.get("group")
        return frozenset({1}) if group is None or group.as_int() == 1 else frozenset()
    if node.op_type == "ConvTranspose":
        return frozenset({1 - index})
    if rank == 1:
        return frozenset({0})
    transposed = node.attributes.get("transA" if index == 0 else "transB")
    flipped = transposed is not None and bool(transposed.as_int())
    return frozenset({rank - 2 if (index == 1) != flipped else rank - 1})


def _einsum(node: ir.Node) -> list[Factor]:
    operands = [value for value in node.inputs if value is not None]
    equation = node.attributes["equation"].as_string().replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if "." in equation or len(terms) != len(operands):
        sums: list[Axes] = [None] * len(operands)
    else:
        remaining = set(right) if arrow else {letter for letter in left if left.count(letter) == 1}
        sums = [frozenset(i for i, letter in enumerate(term) if letter not in remaining) for term in terms]
    return [
        Factor(value, tuple(other for other in operands if other is not value), summed)
        for value, summed in zip(operands, sums, strict=True)
    ]


def _summed_after(flow: Dataflow, node: ir.Node) -> Axes:
    """Return the axes over which the result of a multiplication is summed, by its only reader; none if it is not."""
    uses = list(node.outputs[0].uses())
    reader = uses[0].node if len(uses) == 1 else None
    if reader is None or not is_standard(reader) or reader.op_type not in REDUCTIONS:
        return frozenset()
    return _reduced_axes(flow, reader)


def _reduced_axes(flow: Dataflow, node: ir.Node) -> Axes:
    shape = None if node.inputs[0] is None else flow.shape(node.inputs[0])
    if shape is None:
        return None
    attribute = node.attributes.get("axes")
    axes: Sequence[int] | None = None if attribute is None else attribute.as_ints()
    if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        array = constant_array(node.inputs[1])
        if array is None:
            return None
        axes = array.reshape(-1).tolist()
    return frozenset(range(len(shape)) if axes is None else (int(axis) % len(shape) for axis in axes))


def _own_axes(flow: Dataflow, operand: ir.Value, result: ir.Value, axes: Axes) -> Axes:
    """Return which axes of an operand are the given ones of its product, to which it is broadcast."""
    mine, theirs = flow.shape(operand), flow.shape(result)
    if mine is None or theirs is None or axes is None:
        return None
    shift = len(theirs) - len(mine)
    return frozenset(axis - shift for axis in axes if axis >= shift and mine[axis - shift] != 1)


def origins(flow: Dataflow, value: ir.Value, axes: Axes, *, through_factors: bool) -> dict[int, Axes]:
    """Return the numbers of the values that a value is made of by movement, each with what `axes` are there.

    Args:
        flow: the graph.
        value: an operand of a product.
        axes: axes of it.
        through_factors: also go to the factors of elementwise products, and from a mask of indices to the indices.
    """
    axes_of_number: dict[int, Axes] = {}
    pending: list[tuple[ir.Value, Axes, int]] = [(value, axes, 0)]
    while pending:
        at, here, depth = pending.pop()
        number = flow.number(at)
        if number in axes_of_number or depth > _DEPTH:
            continue
        axes_of_number[number] = here
        node = at.producer()
        if node is None:
            continue
        sources = _sources(node, through_factors=through_factors)
        pending.extend((operand, _traced(flow, node, operand, here), depth + 1) for operand in sources)
    return axes_of_number


_FACTORS = frozenset({"Mul", "Div", "Neg", "OneHot", "Equal", "Where", "Less", "GreaterOrEqual", "And"})  # and masks


def _sources(node: ir.Node, *, through_factors: bool) -> Iterator[ir.Value]:
    operands = [value for value in node.inputs if value is not None]
    if not is_standard(node):
        return
    if node.op_type == "Concat":
        yield from operands
    elif is_movement(node) or node.op_type in ("Cast", "Identity"):
        yield operands[0]
    elif through_factors and node.op_type in _FACTORS:
        yield from operands


def _traced(flow: Dataflow, node: ir.Node, operand: ir.Value, axes: Axes) -> Axes:
    """Return which axes of an operand of a movement are the given ones of its result; None if that is not known."""
    if axes is None:
        return None
    before, after = flow.shape(operand), flow.shape(node.outputs[0])
    if node.op_type in ("Cast", "Identity"):
        return axes
    if before is None or after is None:
        return None
    if node.op_type == "Transpose":
        permutation = node.attributes.get("perm")
        order = permutation.as_ints() if permutation is not None else list(reversed(range(len(before))))
        return frozenset(order[axis] for axis in axes)
    if node.op_type in ("Mul", "Div", "Neg", "Expand"):
        return _own_axes(flow, operand, node.outputs[0], axes)
    if node.op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
        return _reshaped(before, after, axes)
    if len(before) == len(after) and node.op_type in ("Concat", "Slice", "Pad", "Split", "Tile", "Trilu"):
        return axes
    return None


def _reshaped(before: Sequence[int | None], after: Sequence[int | None], axes: frozenset[int]) -> Axes:
    """Follow axes through a change of shape, by blocks of dimensions that hold the same elements."""
    old = [axis for axis, size in enumerate(before) if size != 1]
    new = [axis for axis, size in enumerate(after) if size != 1]
    followed: set[int] = set()
    for mine, theirs in _blocks([before[axis] for axis in old], [after[axis] for axis in new]):
        inside = {new[index] for index in theirs}
        if inside & axes:
            if not inside <= axes:
                return None
            followed.update(old[index] for index in mine)
    return frozenset(followed)


def _blocks(before: list[int | None], after: list[int | None]) -> list[tuple[range, range]]:
    """Split two shapes of the same elements into blocks of equal product; open sizes fall into the middle one."""
    heads = _aligned(before, after)
    tails = _aligned(before[::-1], after[::-1])
    start = heads[-1] if heads else (0, 0)
    blocks = _ranges([(0, 0), *heads])
    room = (len(before) - start[0], len(after) - start[1])
    fitting = [(a, b) for a, b in tails if a <= room[0] and b <= room[1]]
    last = fitting[-1] if fitting else (0, 0)
    middle = (range(start[0], len(before) - last[0]), range(start[1], len(after) - last[1]))
    ends = [(len(before) - a, len(after) - b) for a, b in [*reversed(fitting), (0, 0)]]
    return [*blocks, *([middle] if middle[0] or middle[1] else []), *_ranges(ends)]


def _ranges(marks: list[tuple[int, int]]) -> list[tuple[range, range]]:
    return [(range(a, c), range(b, d)) for (a, b), (c, d) in itertools.pairwise(marks)]


def _aligned(before: list[int | None], after: list[int | None]) -> list[tuple[int, int]]:
    """Return how many leading sizes of both have the same product, each time that they do."""
    marks: list[tuple[int, int]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        a, b = before[i], after[j]
        i, j = i + 1, j + 1
        while a is not None and b is not None and a != b:
            if a < b and i < len(before):
                a, i = None if before[i] is None else math.prod((a, before[i] or 0)), i + 1
            elif b < a and j < len(after):
                b, j = None if after[j] is None else math.prod((b, after[j] or 0)), j + 1
            else:
                return marks
        if a is None or b is None:
            return marks
        marks.append((i, j))
    return marks
