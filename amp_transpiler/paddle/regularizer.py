"""Weight decay as a term of the gradient, for an optimizer (`weight_decay=`) or for one parameter (`regularizer=`)."""

from __future__ import annotations

import abc

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.argument_checks import check_arguments

__all__ = ["L1Decay", "L2Decay", "WeightDecayRegularizer"]


class WeightDecayRegularizer(abc.ABC):
    """A term that is added to the gradient of a parameter.

    Args:
        coeff: the term's factor.
    """

    def __init__(self, coeff: float = 0.0) -> None:
        self.coeff = float(coeff)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(coeff={self.coeff})"

    @abc.abstractmethod
    def term(self, builder: GraphBuilder, weight: ir.Value) -> ir.Value:
        """Append and return the term for `weight`, in the type of `weight`."""

    def add_to(self, builder: GraphBuilder, gradient: ir.Value, weight: ir.Value) -> ir.Value:
        """Return the gradient plus the term; the gradient itself if the factor is 0."""
        return builder.add(gradient, self.term(builder, weight)) if self.coeff else gradient


class L1Decay(WeightDecayRegularizer):
    """Adds `coeff * sign(weight)` to the gradient."""

    def term(self, builder: GraphBuilder, weight: ir.Value) -> ir.Value:
        """Append and return `coeff * sign(weight)`."""
        return builder.mul(builder.op("Sign", [weight]), self.coeff)


class L2Decay(WeightDecayRegularizer):
    """Adds `coeff * weight` to the gradient."""

    def term(self, builder: GraphBuilder, weight: ir.Value) -> ir.Value:
        """Append and return `coeff * weight`."""
        return builder.mul(weight, self.coeff)


check_arguments(globals(), __all__)
