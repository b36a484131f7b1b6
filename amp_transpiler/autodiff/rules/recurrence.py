"""Shared parts of the gradients of LSTM, GRU and RNN: one direction of a layer, and the way back through its steps.

The state before each step is known from the results, so the gates of all steps are computed again by two matrix
products. Only what depends on the step after it is left to a `Scan`, backwards: a few element-wise operators and a
matrix product a step. The gradients of the weights are then products over all steps again. States and gradients that
add up from step to step are float32; the products have the element type of the node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable, SizesUnknown
from amp_transpiler.autodiff.expression import Expr, concat
from amp_transpiler.autodiff.recurrent_activations import Activation, activations_of
from amp_transpiler.autodiff.rules.placing import positions
from amp_transpiler.autodiff.scanning import Exprs, scan

__all__ = ["Way", "stacked", "ways_of"]

Step: TypeAlias = Callable[[Expr, Exprs, Exprs], "tuple[list[Expr], list[Expr]]"]
"""Gradient of the hidden state, the other states, the factors of a step -> the next states, what is handed out."""


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """One direction of a recurrent layer, with T steps, a batch of B, I inputs, H hidden units and G gates.

    Attributes:
        x: the data, [T, B, I].
        w, r: weights of the data and of the state, [G H, I] and [G H, H].
        bias: of the data and of the state, [G H] each; None without.
        before: the state before each step, [T, B, H]; in a padded step anything.
        inside: whether a step is not padding, [T, B, 1]; None if no sequence is shorter than T.
        first: the state before the first step, [B, H].
        g_y: gradient of the state of each step, [T, B, H], float32, 0 in padding; None for zero.
        g_last: gradients of the last states, hidden and cell, [B, H], float32.
        backwards: whether the last step comes first.
        activations: of the gates, as the operator orders them.
        index: its number.
    """

    x: Expr
    w: Expr
    r: Expr
    bias: tuple[Expr, Expr] | None
    before: Expr
    inside: Expr | None
    first: Expr
    g_y: Expr | None
    g_last: tuple[Expr, Expr]
    backwards: bool
    activations: Sequence[Activation]
    index: int

    @property
    def hidden(self) -> int:
        """H."""
        return self.r.sizes[-1]

    def gates(self, x: Expr, count: int) -> list[Expr]:
        """Cut [T, B, count H] into the gates."""
        return list(x.outputs("Split", x.constant(np.array([self.hidden] * count)), count=count, axis=2))

    def masked(self, x: Expr, otherwise: float = 0.0) -> Expr:
        """Return `x`, and `otherwise` in padding."""
        return x if self.inside is None else self.inside.where(x, otherwise)

    def back(self, step: Step, factors: Exprs, *, cell: bool = False, keeps: bool = True) -> tuple[Exprs, Exprs]:
        """Go from the last step to the first. Return the gradients of the first states, and what the steps hand out.

        Args:
            step: one step.
            factors: [T, B, ...] each; `step` gets their slices.
            cell: whether there is a second state.
            keeps: whether the gradient of the hidden state is to pass by the steps of padding here.
        """
        items, count = list(factors), len(factors)
        if self.g_y is not None:
            items.append(self.g_y)
        if self.inside is not None and keeps:
            items.append((~self.inside).cast(ir.DataType.FLOAT))

        def turn(states: Exprs, items: Exprs) -> tuple[Exprs, Exprs]:
            rest = list(items[count:])
            dh = states[0] if self.g_y is None else states[0] + rest.pop(0)
            following, handed = step(dh, states[1:], items[:count])
            if rest:
                following[0] = following[0] + dh * rest[0]
            return following, handed

        return scan(turn, self.g_last if cell else self.g_last[:1], items, backwards=not self.backwards)

    def by_weights(self, d: Expr, data: Expr) -> Expr:
        """Return the gradient of a weight: `d` [T, B, M], of its product, times `data` [T, B, N], over all steps."""
        return _flat(d).T @ _flat(data)


def ways_of(node: NodeGradient, gs: Sequence[Expr | None], defaults: Sequence[str]) -> list[Way]:
    """Return the directions of a recurrent node.

    Args:
        node: an LSTM, GRU or RNN.
        gs: gradients of its outputs.
        defaults: activations of one direction unless the node names others.

    Raises:
        NotDifferentiable: the batch comes first (`layout` 1), or weights have no known shape.
    """
    if node.attribute("layout", 0):
        raise NotDifferentiable("layout=1 has no kernel in ONNX Runtime; use layout=0, with the batch second")
    x, w, r, b = node.input(0), node.input(1), node.input(2), node.optional(3)
    if not (w.is_static and r.is_static):
        raise SizesUnknown(f"the shapes of its weights must be known, got {w.shape} and {r.shape}")
    direction = node.attribute("direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    activations = activations_of(node, defaults, count)
    y = node.output(0)
    ways = []
    for index in range(count):
        states = y.squeeze(1) if count == 1 else y.slice([index], [index + 1], [1]).squeeze(1)
        zero = states.slice([0], [1], [0]).squeeze(0).zeros_like()
        first = zero if (h := node.optional(5)) is None else part(h, index)
        backwards = direction == "reverse" or index == 1
        inside, following = _padding(node, x)
        g_y = gs[0]
        if g_y is not None:
            g_y = (g_y.slice([index], [index + 1], [1]) if count == 2 else g_y).squeeze(1)
        last = [part(g, index).wide() if g is not None else zero.wide() for g in (*gs[1:], *[None] * 2)][:2]
        way = Way(
            x,
            part(w, index),
            part(r, index),
            None if b is None else _halves(part(b, index)),
            _before(states, first, following if node.optional(5) is not None else None, backwards),
            inside,
            first,
            None,
            (last[0], last[1]),
            backwards,
            activations[index],
            index,
        )
        ways.append(way if g_y is None else dataclasses.replace(way, g_y=way.masked(g_y.wide())))
    return ways


def part(x: Expr, index: int) -> Expr:
    """Return what belongs to one direction of `x`, [directions, ...]."""
    return x.squeeze(0) if x.size(0) == 1 else x.slice([index], [index + 1], [0]).squeeze(0)


def stacked(parts: Sequence[Expr | None]) -> Expr | None:
    """Return [directions, ...] of a gradient for each direction; None if there are none."""
    return concat([p.unsqueeze(0) for p in parts if p is not None], 0) if parts[0] is not None else None


def _flat(x: Expr) -> Expr:
    """Return [T, B, N] as [T B, N]."""
    size = x.size(-1)
    if size is None:
        raise SizesUnknown(f"the last dimension of '{x.name}' must be known, got {x.shape}")
    return x.reshape([-1, size])


def _halves(bias: Expr) -> tuple[Expr, Expr]:
    half = bias.sizes[0] // 2
    return bias.slice([0], [half], [0]), bias.slice([half], [2 * half], [0])


def _padding(node: NodeGradient, x: Expr) -> tuple[Expr | None, Expr | None]:
    """Return [T, B, 1]: whether each step, and the step after it, is in its sequence; None without lengths."""
    lengths = node.optional(4)
    if lengths is None:
        return None, None
    steps, lengths = positions(x, 0).reshape([-1, 1, 1]), lengths.cast(ir.DataType.INT64).reshape([1, -1, 1])
    return steps < lengths, steps + 1 < lengths


def _before(states: Expr, first: Expr, following: Expr | None, backwards: bool) -> Expr:
    """Return the state before each step.

    Args:
        states: the state after each step.
        first: the state before the first.
        following: whether the step after each is in its sequence; None where padding holds the first state's zeros.
        backwards: whether the last step comes first.
    """
    start = first.unsqueeze(0)
    if not backwards:
        return concat([start, states.slice([0], [-1], [0])], 0).with_shape_of(states)
    shifted = concat([states.slice([1], [_TO_THE_END], [0]), start], 0).with_shape_of(states)
    return shifted if following is None else following.where(shifted, start).with_shape_of(states)


_TO_THE_END = np.iinfo(np.int64).max
