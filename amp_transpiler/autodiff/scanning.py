"""Recurrences of a backward pass: a `Scan` whose body is written as expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.autodiff.expression import Expr

__all__ = ["Exprs", "Turn", "scan"]

Exprs: TypeAlias = "Sequence[Expr]"
Turn: TypeAlias = "Callable[[Exprs, Exprs], tuple[Exprs, Exprs]]"
"""States and the items of one turn -> the next states and what the turn hands out."""


def scan(turn: Turn, states: Exprs, items: Exprs, *, backwards: bool = False) -> tuple[list[Expr], list[Expr]]:
    """Append a `Scan` along the first axis.

    Args:
        turn: computes one turn; it may read values from outside.
        states: the first states. Their shapes and element types stay from turn to turn.
        items: tensors whose slices the turns get; one at least.
        backwards: whether the last slice comes first. What is handed out has the order of the items either way.

    Returns:
        The last states, and what the turns hand out, stacked along a new first axis.
    """
    builder = items[0].builder
    heads = [_inner(state, drop=0) for state in states]
    slices = [_inner(item, drop=1) for item in items]
    name = builder.names.fresh(f"{builder.prefix}turn")
    body = ir.Graph([e.value for e in (*heads, *slices)], [], nodes=[], name=name)
    with builder.inside(body):
        following, handed = turn(heads, slices)
        turn_results: list[Expr] = []
        for result in (*following, *handed):  # ONNX: outputs are made in the body, each of them once
            is_own = result.value.producer() is not None and result.value.graph is body
            fresh = is_own and all(result.value is not other.value for other in turn_results)
            turn_results.append(result if fresh else result.op("Identity"))
    for result, state in zip(turn_results, states, strict=False):
        result.with_shape_of(state)
    body.outputs.extend(result.value for result in turn_results)
    direction = int(backwards)
    results = items[0].builder.nodes(
        "Scan",
        [e.value for e in (*states, *items)],
        {
            "body": body,
            "num_scan_inputs": len(items),
            "scan_input_directions": [direction] * len(items),
            **({"scan_output_directions": [direction] * len(handed)} if handed else {}),
        },
        outputs=len(turn_results),
    )
    outputs = [Expr(value, builder) for value in results]
    for outer, inner in zip(outputs, turn_results, strict=True):
        outer.value.type = inner.value.type
    for outer, state in zip(outputs, states, strict=False):
        outer.with_shape_of(state)
    for outer, inner in zip(outputs[len(states) :], turn_results[len(states) :], strict=True):
        if inner.shape is not None and items[0].shape is not None:
            outer.value.shape = ir.Shape([items[0].shape[0], *inner.shape])
    return outputs[: len(states)], outputs[len(states) :]


def _inner(outer: Expr, drop: int) -> Expr:
    """Return an input of the body for a tensor outside, without its first `drop` axes."""
    builder = outer.builder
    value = ir.Value(name=builder.names.fresh(f"{builder.prefix}item"), type=outer.value.type)
    if outer.shape is not None:
        value.shape = ir.Shape(list(outer.shape)[drop:])
    return Expr(value, builder)
