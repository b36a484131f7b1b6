"""The errors that choices add to each output, as shares of what is allowed there, and as prices of a cut."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.precision.corrections import Measurement, Term, corrected
from amp_transpiler.precision.evidence import Evidence, read_key

__all__ = ["OutputErrors", "PricedErrors"]

_Errors = Mapping[str, float]


@dataclasses.dataclass(frozen=True, slots=True)
class PricedErrors:
    """The errors of all outputs as one.

    Attributes:
        nodes: node -> what it adds when it is low.
        shared: value -> what a cast adds, whoever reads it.
        reads: value -> node that reads it low -> what that adds.
    """

    nodes: _Errors
    shared: _Errors
    reads: Mapping[str, _Errors]

    def of_nodes(self, names: Iterable[str]) -> float:
        """Return what some nodes add, as far as it is finite."""
        return math.fsum(error for name in names if math.isfinite(error := self.nodes.get(name, 0.0)))

    def of_reads(self, value: ir.Value, nodes: Sequence[ir.Node]) -> float:
        """Return what it adds that nodes read a value low."""
        places = self.reads.get(str(value.name))
        if places is None:
            return 0.0
        # A port has no node of its own: it takes the whole.
        found = [places.get(str(node.name), 0.0) for node in nodes] or places.values()
        return math.fsum(found)


@dataclasses.dataclass(frozen=True, slots=True)
class _Terms:
    """The terms of the square of one output's error, as shares of the square that is allowed.

    Attributes:
        nodes: node -> what it adds when it is low.
        casts: value -> what a cast adds that all its readers feel.
        reads: value -> node that reads it low -> what that adds.
    """

    nodes: _Errors
    casts: _Errors
    reads: Mapping[str, _Errors]

    def square(self, nodes: Collection[str], casts: Collection[str]) -> float:
        """Return what some low nodes and casts add together."""
        own = math.fsum(self.nodes.get(name, 0.0) for name in nodes)
        return own + math.fsum(self._cast(value, nodes) for value in casts)

    def part(self, value: str, low: Collection[str]) -> float:
        """Return which part of a cast's error counts where some nodes are low."""
        whole = self.casts.get(value, 0.0)
        return self._cast(value, low) / whole if 0.0 < whole < math.inf else 1.0

    def corrected(self, measured: Sequence[Measurement]) -> _Terms:
        """Return the same, corrected by what was measured."""
        known = dict.fromkeys(term for one in measured for term in one.parts)
        terms: dict[Term, float] = dict.fromkeys(known, 0.0)
        terms |= {("node", name): error for name, error in self.nodes.items()}
        terms |= {("cast", value): error for value, error in self.casts.items()}
        terms = corrected(terms, measured)
        nodes = {name: error for (kind, name), error in terms.items() if kind == "node"}
        casts = {name: error for (kind, name), error in terms.items() if kind == "cast"}
        reads = {}
        for value, places in self.reads.items():
            before = self.casts.get(value, 0.0)
            scale = casts[value] / before if 0.0 < before < math.inf else 1.0
            reads[value] = {node: scale * error for node, error in places.items()}
        return _Terms(nodes, casts, reads)

    def _cast(self, value: str, low: Collection[str]) -> float:
        """Return what a cast adds: that of the nodes which read it low, unless all do."""
        places = self.reads.get(value, {})
        felt = [error for node, error in places.items() if node in low]
        if not felt or len(felt) == len(places):
            return self.casts.get(value, 0.0)
        return math.fsum(felt)


class OutputErrors:
    """The squared errors of every output that has a limit, as shares of the square that is allowed there.

    Args:
        evidence: the errors.
        allowed: output -> the relative error that is allowed there. Outputs that are not named may have any.
        exact: nodes that round nothing. Where nothing is predicted of them they are never blamed for an error.

    Attributes:
        outputs: the names of the outputs.
    """

    def __init__(self, evidence: Evidence, allowed: _Errors, exact: Collection[str] = ()) -> None:
        self.outputs = tuple(output for output, error in allowed.items() if math.isfinite(error))
        self._predicted = {output: _terms(evidence, output, allowed[output]) for output in self.outputs}
        self._terms = self._predicted
        self._exact = frozenset(exact)
        self._measured: dict[str, list[Measurement]] = {output: [] for output in self.outputs}

    def squares(self, nodes: Collection[str], casts: Collection[str]) -> dict[str, float]:
        """Return the square of the error of every output.

        Args:
            nodes: names of the nodes that are low.
            casts: names of the values that a cast makes low.
        """
        return {output: terms.square(nodes, casts) for output, terms in self._terms.items()}

    def learn(self, nodes: Collection[str], casts: Collection[str], found: _Errors) -> None:
        """Correct the errors by those of a choice that was measured.

        Args:
            nodes: names of the nodes that are low.
            casts: names of the values that a cast makes low.
            found: output -> the square of its error as a share of that which is allowed; finite.
        """
        for output, terms in self._predicted.items():
            blamed = sorted(name for name in nodes if name not in self._exact or terms.nodes.get(name))
            parts: dict[Term, float] = {("node", name): 1.0 for name in blamed}
            parts |= {("cast", value): terms.part(value, nodes) for value in sorted(casts)}
            self._measured[output].append(Measurement(parts, found.get(output, 0.0)))
        self._terms = {output: terms.corrected(self._measured[output]) for output, terms in self._predicted.items()}

    def priced(self, weights: _Errors) -> PricedErrors:
        """Add the errors of all outputs up.

        Args:
            weights: output -> what its error counts; 1 for those that are not named.
        """
        nodes = _summed(_weighted({output: terms.nodes for output, terms in self._terms.items()}, weights))
        casts = _summed(_weighted({output: terms.casts for output, terms in self._terms.items()}, weights))
        flat = {output: _flat(terms.reads) for output, terms in self._terms.items()}
        reads = {}
        for value, places in _by_value(_summed(_weighted(flat, weights))).items():
            total = math.fsum(places.values())
            if value in casts and 0.0 < total < math.inf and math.isfinite(casts[value]):
                # They add up to the error of the cast, in which what cancels between readers is gone.
                scale = casts[value] / total
                reads[value] = {node: scale * error for node, error in places.items()}
        return PricedErrors(nodes, {value: error for value, error in casts.items() if value not in reads}, reads)


def _terms(evidence: Evidence, output: str, allowed: float) -> _Terms:
    """Return what adds to the error of an output, as shares of the square that is allowed."""

    def shares(errors: Mapping[str, _Errors]) -> dict[str, float]:
        return {name: _share(error, allowed) for name, error in errors.get(output, {}).items()}

    reads = _by_value(shares(evidence.read_errors_by_output))
    return _Terms(shares(evidence.node_errors_by_output), shares(evidence.cast_errors_by_output), reads)


def _share(error: float, allowed: float) -> float:
    if error == 0.0:
        return 0.0
    return error / allowed**2 if allowed > 0.0 else math.inf


def _weighted(errors: Mapping[str, _Errors], weights: _Errors) -> Iterable[_Errors]:
    for output, found in errors.items():
        weight = weights.get(output, 1.0)
        yield found if weight == 1.0 else {name: weight * error for name, error in found.items()}


def _summed(errors: Iterable[_Errors]) -> dict[str, float]:
    found: dict[str, float] = {}
    for of_output in errors:
        for name, error in of_output.items():
            found[name] = found.get(name, 0.0) + error
    return found


def _by_value(places: _Errors) -> dict[str, dict[str, float]]:
    """Return errors of places where values are read (`read_key`): value -> node -> error."""
    found: dict[str, dict[str, float]] = {}
    for place, error in places.items():
        value, node = place.split("\n", 1)
        found.setdefault(value, {})[node] = error
    return found


def _flat(by_value: Mapping[str, _Errors]) -> dict[str, float]:
    return {read_key(value, node): error for value, found in by_value.items() for node, error in found.items()}
