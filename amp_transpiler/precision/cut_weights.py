"""What a cut aims at, as weights of nodes and casts: low precision for its own sake, or the least time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, Protocol

import onnx_ir as ir

from amp_transpiler.ops.kinds import COMPUTE, MOVEMENT
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.precision.cut_network import Weights, origin_of

__all__ = ["LowWeights", "Pricing", "ShareWeights", "TimeWeights", "WithErrors"]

# What it is worth that a node is low, in cheap operators. Sums of these are exact in binary, so that ties are ties.
_COMPUTING = 16.0  # more than the casts around any one operator, so that it always is
_CHEAP = 1.0
_MOVING = 1 / 4  # many only change a shape
# A cast reads four bytes an element and writes two, or the other way round; a cheap operator that is low reads two less
# and writes two less.
_CAST = 6 / 4
# Where a graph begins or ends a cast is accepted: without it nothing could be low. Fewer are still better.
_BORDER_CAST = _CAST / 4

_TIE = 1e-9  # seconds that even a cast which takes no time is worth, so that equal times mean the fewest casts


class LowWeights:
    """The most computation in lower precision, at the fewest casts.

    Two casts are worth it for more than three cheap operators, and for any one that computes. The nodes of one operator
    that is written out as several count as one.

    Args:
        together: nodes that are one operator.
    """

    def __init__(self, together: Iterable[Collection[ir.Node]] = ()) -> None:
        self._uncounted = {node for whole in together for node in sorted(whole, key=_name)[1:]}

    def low(self, node: ir.Node) -> float:  # noqa: ARG002 - part of the interface
        """Return nothing: low precision is what is wanted."""
        return 0.0

    def high(self, node: ir.Node) -> float:
        """Return what is lost where a node is float32."""
        if operator_name(node) in COMPUTE:
            return _COMPUTING
        if is_standard(node) and node.op_type in MOVEMENT:
            return _MOVING
        return 0.0 if node in self._uncounted else _CHEAP

    def cast_to_low(self, value: ir.Value) -> float:
        """Return the cost of a cast, less for an input of the program."""
        return _BORDER_CAST if value.is_graph_input() and _is_main(value) else _CAST

    def cast_to_high(self, value: ir.Value) -> float:
        """Return the cost of a cast, less for an output of the program."""
        return _BORDER_CAST if value.is_graph_output() and _is_main(value) else _CAST


class ShareWeights(LowWeights):
    """The largest share of results in lower precision, as an engine's builder counts: casts are layers, too.

    A cast to lower precision has a result in it; one to float32 has not, so it is worth what a cheap operator is.
    """

    def high(self, node: ir.Node) -> float:
        """Return what is lost where a node is float32: all that move values count as well."""
        return _COMPUTING if operator_name(node) in COMPUTE else _CHEAP

    def cast_to_low(self, value: ir.Value) -> float:  # noqa: ARG002 - part of the interface
        """Return the cost of a cast, which only decides between choices that are as good."""
        return _MOVING

    def cast_to_high(self, value: ir.Value) -> float:
        """Return the cost of a cast, less for an output of the program."""
        return _MOVING if value.is_graph_output() and _is_main(value) else _CHEAP


class Pricing(Protocol):
    """Predicted seconds of a program's nodes and casts (`cost.node_prices.Prices`)."""

    @property
    def low(self) -> Mapping[ir.Node, float]:
        """Node -> its seconds in lower precision."""

    @property
    def high(self) -> Mapping[ir.Node, float]:
        """Node -> its seconds in float32."""

    def cast(self, value: ir.Value) -> float:
        """Return the seconds of a cast."""


class TimeWeights:
    """The least predicted time.

    Args:
        prices: the predictions; a node without one takes no time.
        with_casts: nodes that become one operator though some of them must be float32, for each: a written-out
            normalisation, of which the casts become part.
    """

    def __init__(self, prices: Pricing, with_casts: Iterable[Collection[ir.Node]] = ()) -> None:
        self.prices = prices
        self._read: set[ir.Value] = set()
        self._inside: set[ir.Value] = set()
        for nodes in with_casts:
            read = {origin_of(value) for node in nodes for value in node.inputs if value is not None}
            self._read |= read
            self._inside |= {value for node in nodes for value in node.outputs if value in read}

    def low(self, node: ir.Node) -> float:
        """Return the seconds of a node in lower precision."""
        return self.prices.low.get(node, 0.0)

    def high(self, node: ir.Node) -> float:
        """Return the seconds of a node in float32."""
        return self.prices.high.get(node, 0.0)

    def cast_to_low(self, value: ir.Value) -> float:
        """Return the seconds of a cast."""
        return _TIE if self.takes_in(value, "low") else self.prices.cast(value) + _TIE

    def cast_to_high(self, value: ir.Value) -> float:
        """Return the seconds of a cast."""
        return _TIE if self.takes_in(value, "high") else self.prices.cast(value) + _TIE

    def takes_in(self, value: ir.Value, target: Literal["low", "high"]) -> bool:
        """Whether a cast becomes part of an operator, and takes no time of its own."""
        return value in (self._inside if target == "low" else self._read)


@dataclasses.dataclass(frozen=True, slots=True)
class WithErrors:
    """Weights with a price on errors: Lagrange's multiplier of a bound on their sum.

    Attributes:
        weights: what the cut aims at.
        node_errors: node -> what it adds to the square of the relative error when it is low.
        cast_errors: value -> what rounding it adds.
        multiplier: the price of an error of one. An infinite error forbids at any price.
    """

    weights: Weights
    node_errors: Mapping[str, float]
    cast_errors: Mapping[str, float]
    multiplier: float

    def low(self, node: ir.Node) -> float:
        """Return the cost of a node that is low, its error included."""
        return self.weights.low(node) + self._price(self.node_errors.get(str(node.name), 0.0))

    def high(self, node: ir.Node) -> float:
        """Return the cost of a node that is float32, which adds no error."""
        return self.weights.high(node)

    def cast_to_low(self, value: ir.Value) -> float:
        """Return the cost of a cast to the low format, its error included."""
        return self.weights.cast_to_low(value) + self._price(self.cast_errors.get(str(value.name), 0.0))

    def cast_to_high(self, value: ir.Value) -> float:
        """Return the cost of a cast to float32, which rounds nothing."""
        return self.weights.cast_to_high(value)

    def _price(self, error: float) -> float:
        return self.multiplier * error if math.isfinite(error) else math.inf


def _name(node: ir.Node) -> str:
    return str(node.name)


def _is_main(value: ir.Value) -> bool:
    """Whether a value is of the program's own graph, not of a body."""
    return isinstance(value.graph, ir.Graph) and bool(value.graph.opset_imports)
