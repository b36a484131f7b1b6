"""Finds where an input is carried: the values that are the input after elementwise arithmetic and movement.

A value that is carried keeps its number of elements; inside a flat vector of several states (Concat, Split, Slice) its
place is followed. The cost of a way counts what makes the result less of an update: p costs 0 in `p - rate * m`, m 1.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.precision.training.dataflow import UNKNOWN, Dataflow
from amp_transpiler.precision.training.operators import (
    COSTS,
    SCATTERS,
    carried_operands,
    is_elementwise,
    is_plain_movement,
    kind,
)

__all__ = ["NO_UPDATE", "Carried", "carry"]

_OTHER_FUNCTION = 2
NO_UPDATE = 3
"""Cost from which on a result is no longer its operand plus something: multiplied by what depends on data."""

_MOST_STEPS = 4000  # no optimizer is as long; a hidden state on its way through a network may be

Carried = dict[ir.Value, int]
"""Value that is all of the input and nothing else -> cost of the cheapest way to it."""


def carry(flow: Dataflow, start: ir.Value) -> Carried:
    """Return the values that carry a graph input, itself included."""
    size = flow.size(start)
    best: dict[tuple[ir.Value, int], int] = {(start, 0): 0}
    pending = [(0, -1, 0, start, 0)]
    tie = 0
    done: set[tuple[ir.Value, int]] = set()
    while pending and len(done) < _MOST_STEPS:
        cost, _, _, value, place = heapq.heappop(pending)
        if (value, place) in done:
            continue
        done.add((value, place))
        for node in dict.fromkeys(node for node, _ in value.uses()):
            if node not in flow.position:
                continue
            for target, where, more in _steps(flow, node, value, place, size):
                total = cost + more
                if total < best.get((target, where), total + 1):
                    best[target, where] = total
                    tie += 1
                    heapq.heappush(pending, (total, flow.position[node], tie, target, where))
    return {value: cost for (value, place), cost in best.items() if place == 0 and _fits(flow, value, size)}


Step = tuple[ir.Value, int, int]  # the value, where in it the input starts, and what the step costs


def _fits(flow: Dataflow, value: ir.Value, size: int) -> bool:
    return flow.size(value) in (size, UNKNOWN)


def _steps(flow: Dataflow, node: ir.Node, value: ir.Value, place: int, size: int) -> Iterator[Step]:
    whole = _fits(flow, value, size)
    if is_elementwise(node):
        if flow.size(node.outputs[0]) in (flow.size(value), UNKNOWN) and any(
            node.inputs[index] is value for index in carried_operands(node)
        ):
            yield node.outputs[0], place, _cost(flow, node, value)
    elif node.op_type == "Transpose":
        if whole:
            yield node.outputs[0], place, 0
    elif is_plain_movement(node):
        if node.inputs[0] is value and flow.size(node.outputs[0]) in (flow.size(value), UNKNOWN):
            yield node.outputs[0], place, 0
    elif kind(node) == "BatchNormalization":
        pairs = zip(node.inputs[3:5], node.outputs[1:3], strict=False)
        yield from ((after, place, 1) for before, after in pairs if before is value)
    elif node.op_type in SCATTERS:
        if node.inputs[0] is value:
            yield node.outputs[0], place, 0
    else:
        yield from _parts(flow, node, value, place, size)


def _cost(flow: Dataflow, node: ir.Node, value: ir.Value) -> int:
    if node.op_type in ("Mul", "Div"):
        others = [other for other in node.inputs if other is not value and other is not None]
        squared = not others
        if squared or any(other in flow.learned and flow.size(other) != 1 for other in others):
            return NO_UPDATE
    if node.op_type == "Div" and node.inputs[0] is not value:
        return _OTHER_FUNCTION
    return COSTS.get(node.op_type, _OTHER_FUNCTION)


def _parts(flow: Dataflow, node: ir.Node, value: ir.Value, place: int, size: int) -> Iterator[Step]:
    """Follow the input into and out of a vector that holds several."""
    if node.op_type == "Concat":
        start = 0
        for operand in node.inputs:
            if operand is None or flow.size(operand) < 0 or not _leads(flow, operand, _axis(node)):
                return
            if operand is value:
                yield node.outputs[0], start + place, 0
            start += flow.size(operand)
    elif node.op_type == "Split" and node.inputs[0] is value and _leads(flow, value, _axis(node)):
        start = 0
        for output in node.outputs:
            if flow.size(output) < 0:
                return
            if start <= place and place + size <= start + flow.size(output):
                yield output, place - start, 0
            start += flow.size(output)
    elif node.op_type in ("Slice", "Gather") and node.inputs[0] is value:
        first = _start(flow, node, value)
        taken = flow.size(node.outputs[0])
        if first is not None and first <= place and place + size <= first + taken:
            yield node.outputs[0], place - first, 0


def _axis(node: ir.Node) -> int:
    attribute = node.attributes.get("axis")
    return 0 if attribute is None else attribute.as_int()


def _leads(flow: Dataflow, value: ir.Value, axis: int) -> bool:
    """Whether parts along `axis` lie one behind the other."""
    shape = flow.shape(value)
    if shape is None:
        return False
    return all(size == 1 for size in shape[: axis % max(1, len(shape))])


def _start(flow: Dataflow, node: ir.Node, value: ir.Value) -> int | None:
    """Return the element at which a part begins; None if it is not one piece or its place is not known."""
    shape = flow.shape(value)
    if shape is None or any(size is None for size in shape) or len(node.inputs) < 2:
        return None
    first = constant_array(node.inputs[1])
    if first is None or first.size != 1:
        return None
    axis = _axis(node)
    if node.op_type == "Slice":
        axes = constant_array(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else None
        steps = constant_array(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else None
        axis = 0 if axes is None else int(axes.reshape(-1)[0])
        if steps is not None and int(steps.reshape(-1)[0]) != 1:
            return None
    axis %= max(1, len(shape))
    if not _leads(flow, value, axis):
        return None
    row = 1
    for size in shape[axis + 1 :]:
        row *= size or 1
    start = int(first.reshape(-1)[0])
    return (start + (shape[axis] or 0) if start < 0 else start) * row
