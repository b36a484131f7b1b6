"""Activation functions inside LSTM, GRU and RNN, and their slopes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable
from amp_transpiler.autodiff.expression import Expr

__all__ = ["Activation", "activations_of"]

Value: TypeAlias = Callable[[Expr, float, float], Expr]
Slope: TypeAlias = Callable[[Expr, Expr, float, float], Expr]


def _ones(x: Expr) -> Expr:
    return x.zeros_like() + 1


@dataclasses.dataclass(frozen=True, slots=True)
class _Kind:
    """A row of the table: `value(x, alpha, beta)`, `slope(x, y, alpha, beta)`, and the parameters it has by default."""

    value: Value
    slope: Slope
    defaults: tuple[float, ...] = ()


_KINDS: Mapping[str, _Kind] = {
    "sigmoid": _Kind(lambda x, *_: x.sigmoid(), lambda _x, y, *_: y * (1 - y)),
    "tanh": _Kind(lambda x, *_: x.tanh(), lambda _x, y, *_: (1 - y) * (1 + y)),
    "relu": _Kind(lambda x, *_: x.op("Relu"), lambda x, *_: (x > 0).where(_ones(x), 0)),
    "affine": _Kind(lambda x, a, b: x * a + b, lambda x, _y, a, _b: _ones(x) * a, (1.0, 0.0)),
    "leakyrelu": _Kind(
        lambda x, a, _b: x.op("LeakyRelu", alpha=a), lambda x, _y, a, _b: (x > 0).where(_ones(x), a), (0.01,)
    ),
    "thresholdedrelu": _Kind(
        lambda x, a, _b: x.op("ThresholdedRelu", alpha=a), lambda x, _y, a, _b: (x > a).where(_ones(x), 0), (1.0,)
    ),
    "scaledtanh": _Kind(
        lambda x, a, b: (x * b).tanh() * a, lambda _x, y, a, b: (1 - y / a) * (1 + y / a) * (a * b), (1.0, 1.0)
    ),
    "hardsigmoid": _Kind(
        lambda x, a, b: x.op("HardSigmoid", alpha=a, beta=b),
        lambda _x, y, a, _b: ((y > 0) & (y < 1)).where(_ones(y) * a, 0),
        (0.2, 0.5),
    ),
    "elu": _Kind(
        lambda x, a, _b: x.op("Elu", alpha=a), lambda x, y, a, _b: (x > 0).where(_ones(x), y + a), (1.0,)
    ),
    "softsign": _Kind(lambda x, *_: x.op("Softsign"), lambda _x, y, *_: (1 - y.abs()) * (1 - y.abs())),
    "softplus": _Kind(lambda x, *_: x.softplus(), lambda x, *_: x.sigmoid()),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Activation:
    """An activation of a recurrent operator.

    Attributes:
        kind: its row.
        alpha, beta: its parameters; 0 for one that it does not have.
        clip: its input is bounded by this in both directions; 0: it is not.
    """

    kind: _Kind
    alpha: float = 0.0
    beta: float = 0.0
    clip: float = 0.0

    def value(self, x: Expr) -> Expr:
        """Return the function of `x`."""
        return self.kind.value(self._bounded(x), self.alpha, self.beta)

    def with_slope(self, x: Expr) -> tuple[Expr, Expr]:
        """Return the function of `x` and its derivative there."""
        y = self.value(x)
        slope = self.kind.slope(self._bounded(x), y, self.alpha, self.beta)
        return y, slope if not self.clip else (x.abs() > self.clip).where(0, slope)

    def _bounded(self, x: Expr) -> Expr:
        return x if not self.clip else x.maximum(-self.clip).minimum(self.clip)


def activations_of(node: NodeGradient, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
    """Return the activations of each direction, as the operator's attributes choose them.

    Args:
        node: an LSTM, GRU or RNN.
        defaults: the activations of one direction unless the node names others.
        directions: their number.

    Raises:
        NotDifferentiable: it names an unknown one, or not as many as it needs.
    """
    chosen = node.attribute("activations")
    names = [n.decode() if isinstance(n, bytes) else str(n) for n in chosen or ()] or [*defaults] * directions
    if len(names) != len(defaults) * directions:
        raise NotDifferentiable(f"its activations must be {len(defaults) * directions}, got {names}")
    alphas, betas = (iter(node.attribute(f"activation_{letter}") or ()) for letter in ("alpha", "beta"))
    clip = float(node.attribute("clip", 0.0))
    activations = [_activation(name, alphas, betas, clip) for name in names]
    return [activations[i : i + len(defaults)] for i in range(0, len(activations), len(defaults))]


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float) -> Activation:
    kind = _KINDS.get(name.lower())
    if kind is None:
        raise NotDifferentiable(f"its activation '{name}' is unknown; known are {', '.join(_KINDS)}")
    parameters = [float(next(source, default)) for source, default in zip((alphas, betas), kind.defaults, strict=False)]
    alpha, beta = (*parameters, 0.0, 0.0)[:2]
    return Activation(kind, alpha, beta, clip)
