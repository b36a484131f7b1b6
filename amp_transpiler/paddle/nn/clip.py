"""Clips gradients by value, by norm and by global norm, computed in float32 inside the program."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.origins import part_of
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.program.program import Variable

__all__ = ["ClipGradBase", "ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue"]


class ClipGradBase(abc.ABC):
    """Clips gradients (as an optimizer's `grad_clip`) before weight decay is added to them."""

    @abc.abstractmethod
    def clip(self, builder: GraphBuilder, gradients: Sequence[ir.Value]) -> list[ir.Value]:
        """Append the clipping of float32 gradients; return the clipped ones in the same order."""

    def __call__(self, params_grads: Sequence[tuple[Variable, Variable | None]]) -> list[tuple[Variable, Variable]]:
        """Append the clipping of gradients that `append_backward` or `gradients` made.

        Args:
            params_grads: pairs of a parameter and its gradient. Those without a gradient are left out; the gradient of
                one that has `need_clip=False` stays as it is.

        Returns:
            The pairs, with clipped gradients of the same types.
        """
        pairs = [(parameter, gradient) for parameter, gradient in params_grads if gradient is not None]
        chosen = [
            (p, g)
            for p, g in pairs
            if (persistable := p.program.persistables.get(p.name)) is None or persistable.need_clip
        ]
        if not chosen:
            return pairs
        program = chosen[0][1].program
        builder = program.builder("backward")
        values = self.clip(builder, [builder.cast(gradient.value, ir.DataType.FLOAT) for _, gradient in chosen])
        clipped = {
            p.name: Variable(program, str(builder.cast(value, gradient.value.dtype).name))
            for (p, gradient), value in zip(chosen, values, strict=True)
        }
        return [(p, clipped.get(p.name, gradient)) for p, gradient in pairs]


class ClipGradByValue(ClipGradBase):
    """Moves every element into [min, max].

    Args:
        max: the upper bound.
        min: the lower bound; `-max` unless given, and then `max` must be positive.

    Raises:
        OptionError: no number lies between the bounds.
    """

    def __init__(self, max: float, min: float | None = None) -> None:  # noqa: A002  # Paddle's names
        if min is None and max <= 0.0:
            raise OptionError(f"ClipGradByValue: max must be positive where min is not given, got {max}")
        self.max = float(max)
        self.min = -self.max if min is None else float(min)
        if self.min > self.max:
            raise OptionError(f"ClipGradByValue: min must not be above max, got min={min}, max={max}")

    def clip(self, builder: GraphBuilder, gradients: Sequence[ir.Value]) -> list[ir.Value]:
        """Return the gradients with every element inside the bounds."""
        return [builder.minimum(builder.maximum(gradient, self.min), self.max) for gradient in gradients]


class _ClipByNorm(ClipGradBase):
    """Scales gradients so that a norm is at most `clip_norm`."""

    def __init__(self, clip_norm: float) -> None:
        if clip_norm <= 0.0:
            raise OptionError(f"{type(self).__name__}: clip_norm must be positive, got {clip_norm}")
        self.clip_norm = float(clip_norm)

    def _factor(self, builder: GraphBuilder, squares: ir.Value) -> ir.Value:
        """Return `clip_norm / max(norm, clip_norm)` of a sum of squares: 1 where the norm is small enough."""
        norm = builder.op("Sqrt", [squares])
        return builder.div(self.clip_norm, builder.maximum(norm, self.clip_norm))


class ClipGradByNorm(_ClipByNorm):
    """Scales each gradient whose L2 norm is above `clip_norm` down to it.

    Args:
        clip_norm: the largest norm of a gradient.

    Raises:
        OptionError: `clip_norm` is not positive.
    """

    def clip(self, builder: GraphBuilder, gradients: Sequence[ir.Value]) -> list[ir.Value]:
        """Return every gradient scaled by its own factor."""
        return [builder.mul(g, self._factor(builder, _sum_of_squares(builder, g))) for g in gradients]


class ClipGradByGlobalNorm(_ClipByNorm):
    """Scales all gradients alike where the L2 norm of all of them together is above `clip_norm`.

    Args:
        clip_norm: the largest norm of all gradients together.

    Raises:
        OptionError: `clip_norm` is not positive.
    """

    def clip(self, builder: GraphBuilder, gradients: Sequence[ir.Value]) -> list[ir.Value]:
        """Return every gradient scaled by the one factor."""
        if not gradients:
            return []
        squares = [_sum_of_squares(builder, gradient) for gradient in gradients]
        factor = self._factor(builder, builder.op("Sum", squares) if len(squares) > 1 else squares[0])
        return [builder.mul(gradient, factor) for gradient in gradients]


def _sum_of_squares(builder: GraphBuilder, gradient: ir.Value) -> ir.Value:
    """Return a scalar. The gradient is float32: in 16 bits, squares would overflow or vanish."""
    with part_of("squared_l2_norm", ir.DataType.FLOAT, {"X": str(gradient.name)}):
        return builder.sum(builder.mul(gradient, gradient), keepdims=False)


check_arguments(globals(), __all__)
