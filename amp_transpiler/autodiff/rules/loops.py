"""Gradients of Loop and Scan: a Scan from the last turn to the first, which runs each turn forward again, then back.

The forward pass keeps the states before every turn. The gradients of values that the body captures are added up from
turn to turn in float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.bodies import captured, remove_unused
from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient
from amp_transpiler.autodiff.rules.control_flow import refuse_random
from amp_transpiler.graph.builder import GraphBuilder, is_float_tensor
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.random_copies import mark_turn_number
from amp_transpiler.graph.walk import bodies


@dataclasses.dataclass(frozen=True, slots=True)
class _Turns:
    """The parts that Loop and Scan share.

    Attributes:
        node: the node.
        body: its body.
        states: the body's inputs that turns pass on.
        passed: what the body passes on, an output for each state.
        first: the place of the first state among the node's inputs.
        items: the body's inputs that are slices of the node's inputs.
        handed: the body's outputs that are stacked.
        item_directions: 1 for an item whose last slice comes first, else 0.
        handed_directions: the same of what is stacked.
    """

    node: NodeGradient
    body: ir.Graph
    states: Sequence[ir.Value]
    passed: Sequence[ir.Value]
    first: int
    items: Sequence[ir.Value]
    handed: Sequence[ir.Value]
    item_directions: Sequence[int]
    handed_directions: Sequence[int]


@gradient("Scan")
def scan(gs: Sequence[Expr | None], *_inputs: Expr | None, node: NodeGradient, num_scan_inputs: int) -> Gradients:
    [(_, body)] = bodies(node.source)
    if len(node.inputs) != len(body.inputs):
        raise NotDifferentiable("its sequence_lens, of opset 8, are not supported; use opset 9 or higher")
    if any(node.attribute("scan_input_axes") or ()) or any(node.attribute("scan_output_axes") or ()):
        raise NotDifferentiable("it must slice and stack along the first axis; write a Transpose instead")
    count = len(body.inputs) - num_scan_inputs
    turns = _Turns(
        node,
        body,
        states=list(body.inputs)[:count],
        passed=list(body.outputs)[:count],
        first=0,
        items=list(body.inputs)[count:],
        handed=list(body.outputs)[count:],
        item_directions=node.attribute("scan_input_directions") or [0] * num_scan_inputs,
        handed_directions=node.attribute("scan_output_directions") or [0] * (len(body.outputs) - count),
    )
    return _back(turns, gs)


@gradient("Loop")
def loop(gs: Sequence[Expr | None], *_inputs: Expr | None, node: NodeGradient) -> Gradients:
    [(_, body)] = bodies(node.source)
    count = len(body.inputs) - 2
    turns = _Turns(
        node,
        body,
        states=list(body.inputs)[2:],
        passed=list(body.outputs)[1 : 1 + count],
        first=2,
        items=(),
        handed=list(body.outputs)[1 + count :],
        item_directions=(),
        handed_directions=[0] * (len(body.outputs) - 1 - count),
    )
    return _back(turns, gs)


@dataclasses.dataclass(frozen=True, slots=True)
class _Wanted:
    """The values to differentiate, and the gradients that come in, by place.

    Attributes:
        states: states that are float tensors.
        items: items.
        outer: values that the body captures.
        handed: stacked outputs that have a gradient.
        reads: all that the body captures.
    """

    states: Sequence[int]
    items: Sequence[int]
    outer: Sequence[ir.Value]
    handed: Sequence[int]
    reads: Sequence[ir.Value]

    @staticmethod
    def of(turns: _Turns, gs: Sequence[Expr | None]) -> _Wanted:
        node, count = turns.node, len(turns.states)
        reads = captured(node.source)
        return _Wanted(
            [i for i, state in enumerate(turns.states) if is_float_tensor(state)],
            [i for i in range(len(turns.items)) if node.wants(turns.first + count + i)],
            [value for value in reads if node.wants_value(value)],
            [i for i in range(len(turns.handed)) if gs[count + i] is not None],
            reads,
        )


def _back(turns: _Turns, gs: Sequence[Expr | None]) -> Gradients:
    refuse_random(turns.body, numbered=turns.node.op_type == "Loop")
    for state, passed in zip(turns.states, turns.passed, strict=True):
        if state.shape is not None and passed.shape is not None and len(state.shape) != len(passed.shape):
            raise NotDifferentiable(f"its state '{state.name}' changes its rank from turn to turn; unroll it")
    wanted = _Wanted.of(turns, gs)
    stacks = _keep(turns)
    copy = _turn_back(turns, wanted)
    builder, count = turns.node.builder, len(turns.states)
    starts = [gs[i] or Expr(turns.node.source.outputs[i], builder).zeros_like() for i in wanted.states]
    zeros = [Expr(value, builder).wide().zeros_like() for value in wanted.outer]
    items = [Expr(value, builder) for value in stacks]
    items += [turns.node.input(turns.first + count + i) for i in range(len(turns.items))]
    items += [g for i in wanted.handed if (g := gs[count + i]) is not None]
    directions = [1] * len(stacks) + [1 - d for d in turns.item_directions]
    directions += [1 - turns.handed_directions[i] for i in wanted.handed]
    attributes = {
        "body": copy,
        "num_scan_inputs": len(items),
        "scan_input_directions": directions,
    }
    if wanted.items:
        attributes["scan_output_directions"] = [1 - turns.item_directions[i] for i in wanted.items]

    def scanned() -> Sequence[ir.Value]:
        values = [value.value for value in (*starts, *zeros, *items)]
        return _like_them(builder.nodes("Scan", values, attributes, outputs=len(copy.outputs)), copy.outputs)

    if _has_a_turn(turns):
        results = scanned()
    else:  # ONNX Runtime refuses a Scan of no slices. A Loop has no items, so that nothing is stacked here
        results = _where_it_turned(builder, stacks[0], scanned, [value.value for value in (*starts, *zeros)])
    return _placed(turns, wanted, [Expr(value, builder) for value in results])


def _has_a_turn(turns: _Turns) -> bool:
    """Whether it is known that the body runs once. ONNX Runtime refuses a Scan that does not, forward already."""
    if turns.node.op_type != "Loop":
        return True
    return all(value is None or _is_true(value) for value in turns.node.source.inputs[:2])


def _is_true(value: ir.Value) -> bool:
    """Whether a value is a constant other than 0 and False."""
    array = constant_array(value)
    return array is not None and bool(array.any())


def _where_it_turned(
    builder: GraphBuilder, turns: ir.Value, scanned: Callable[[], Sequence[ir.Value]], starts: Sequence[ir.Value]
) -> Sequence[ir.Value]:
    """Return what `scanned` makes, and `starts` where there was no turn.

    Args:
        builder: appends the operators.
        turns: the numbers of the turns.
        scanned: makes the results.
        starts: values of the same types and shapes.
    """
    turned = builder.op("Greater", [builder.op("Size", [turns]), builder.constant(np.int64(0))])
    branches = {}
    for name, make in (
        ("then_branch", scanned),
        ("else_branch", lambda: [builder.op("Identity", [v]) for v in starts]),
    ):
        body = ir.Graph([], [], nodes=[], name=builder.names.fresh(f"{builder.prefix}{name}"))
        with builder.inside(body):
            body.outputs.extend(make())
        branches[name] = body
    results = builder.nodes("If", [turned], branches, outputs=len(starts))
    return _like_them(results, starts)


def _like_them(values: Sequence[ir.Value], others: Sequence[ir.Value]) -> Sequence[ir.Value]:
    for value, other in zip(values, others, strict=True):
        value.type = other.type
    return values


def _turn_back(turns: _Turns, wanted: _Wanted) -> ir.Graph:
    """Return the body of the backward Scan.

    Its states are the gradients of the states and the sums for captured values; its items are what the turn began with,
    the slices, and the gradients of what is stacked.
    """
    builder, is_loop = turns.node.builder, turns.node.op_type == "Loop"
    d_states = {i: _like(builder, turns.states[i]) for i in wanted.states}
    d_handed = {i: _like(builder, turns.handed[i]) for i in wanted.handed}
    sums = [_like(builder, value, wide=True) for value in wanted.outer]
    grads: list[ir.Value | None] = [None] if is_loop else []  # the condition has none
    grads += [d_states.get(i) for i in range(len(turns.states))]
    grads += [d_handed.get(i) for i in range(len(turns.handed))]
    inner = [*(turns.states[i] for i in wanted.states), *(turns.items[i] for i in wanted.items), *wanted.outer]
    copy, gradients = turns.node.backward.turn(turns.body, grads, inner)
    states, split = len(wanted.states), len(wanted.states) + len(wanted.items)
    with builder.inside(copy):
        pairs = zip(sums, gradients[split:], strict=True)
        totals = [builder.add(total, builder.high(grad)) for total, grad in pairs]
    inputs = list(copy.inputs)
    if is_loop:  # the number of the turn is an item; the condition held in each
        mark_turn_number(inputs[0])
        inputs.pop(1).replace_all_uses_with(builder.constant(np.array(True)))
    copy.inputs[:] = [*d_states.values(), *sums, *inputs, *d_handed.values()]
    copy.outputs.extend([*gradients[:states], *totals, *gradients[states:split]])
    remove_unused(copy)
    return copy


def _placed(turns: _Turns, wanted: _Wanted, results: Sequence[Expr]) -> list[Expr | None]:
    """Return the gradients of all that the node reads, from the results of the backward Scan."""
    inputs = list(turns.node.source.inputs)
    places = [turns.first + i for i in wanted.states]
    places += [len(inputs) + wanted.reads.index(value) for value in wanted.outer]
    places += [turns.first + len(turns.states) + i for i in wanted.items]
    placed: list[Expr | None] = [None] * (len(inputs) + len(wanted.reads))
    for place, input_gradient in zip(places, results, strict=True):
        like = [*inputs, *wanted.reads][place]
        input_gradient.value.shape = None if like is None or like.shape is None else ir.Shape(like.shape)
        placed[place] = input_gradient
    return placed


def _keep(turns: _Turns) -> list[ir.Value]:
    """Make the forward pass stack what its turns begin with, for a Loop their numbers too; return the stacks."""
    node, body, builder = turns.node, turns.body, turns.node.builder
    values = [body.inputs[0], *turns.states] if node.op_type == "Loop" else list(turns.states)
    source, stacks = node.source, []
    with builder.inside(body):
        body.outputs.extend([builder.op("Identity", [value]) for value in values])
    old = len(source.outputs)
    source.resize_outputs(old + len(values))
    for value, stack in zip(values, source.outputs[old:], strict=True):
        stack.name = builder.names.fresh(f"{source.name}_before")
        stack.type = value.type
        if value.shape is not None:
            stack.shape = ir.Shape([None, *value.shape])
        stacks.append(stack)
    for name in ("scan_output_directions", "scan_output_axes"):
        if (attribute := source.attributes.get(name)) is not None:
            source.attributes[name] = ir.AttrInt64s(name, [*attribute.as_ints(), *[0] * len(values)])
    return stacks


def _like(builder: GraphBuilder, value: ir.Value, *, wide: bool = False) -> ir.Value:
    """Return an input of the new body for the gradient of a value, or with `wide` for a sum of its gradients."""
    item = ir.Value(name=builder.names.fresh(f"{builder.prefix}item"), type=value.type)
    if wide and value.dtype in LOW_DTYPES:
        item.type = ir.TensorType(ir.DataType.FLOAT)
    item.shape = None if value.shape is None else ir.Shape(value.shape)
    return item
