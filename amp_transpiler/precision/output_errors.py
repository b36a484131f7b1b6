"""Predicts the errors that choices add to each output, as shares of what is allowed there, and as prices of a cut."""

from __future__ import annotations

import dataclasses
import math
import types
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

    def of_choice(self, nodes: Collection[str], casts: Collection[str]) -> float:
        """Return what some low nodes and casts add."""
        of_nodes = math.fsum(self.nodes.get(name, 0.0) for name in nodes)
        of_casts = math.fsum(self.shared.get(value, 0.0) for value in casts)
        felt = (error for value in casts for node, error in self.reads.get(value, {}).items() if node in nodes)
        return of_nodes + of_casts + math.fsum(felt)

    def of_reads(self, value: ir.Value, nodes: Sequence[ir.Node]) -> float:
        """Return what it adds that nodes read a value low."""
        places = self.reads.get(str(value.name))
        if places is None:
            return 0.0
        # A port has no node of its own: it takes the whole.
        errors = [places.get(str(node.name), 0.0) for node in nodes] or places.values()
        return math.fsum(errors)


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
        of_nodes = math.fsum(self.nodes.get(name, 0.0) for name in nodes)
        return of_nodes + math.fsum(self._cast(value, nodes) for value in casts)

    def largest(self, moved: Mapping[str, str]) -> dict[str, float]:
        """Return the largest error of the casts of one value's numbers, wherever they were moved."""
        largest: dict[str, float] = {}
        for value, error in self.casts.items():
            origin = moved.get(value, value)
            largest[origin] = max(largest.get(origin, 0.0), error)
        return largest

    def part(self, value: str, low: Collection[str]) -> float:
        """Return which part of a cast's error counts where some nodes are low."""
        whole = self.casts.get(value, 0.0)
        return self._cast(value, low) / whole if 0.0 < whole < math.inf else 1.0

    def corrected(self, measured: Sequence[Measurement], moved: Mapping[str, str]) -> _Terms:
        """Return the same, corrected by what was measured.

        Args:
            measured: the choices.
            moved: value -> the one whose numbers it has.
        """
        known = dict.fromkeys(term for measurement in measured for term in measurement.parts)
        terms: dict[Term, float] = dict.fromkeys(known, 0.0)
        terms |= {("node", name): error for name, error in self.nodes.items()}
        largest = self.largest(moved)
        terms |= {("cast", value): error for value, error in largest.items()}
        terms = corrected(terms, measured)
        nodes = {name: error for (kind, name), error in terms.items() if kind == "node"}
        casts = {name: error for (kind, name), error in terms.items() if kind == "cast"}
        for value, error in self.casts.items():
            before = largest[origin := moved.get(value, value)]
            casts[value] = terms["cast", origin] * (error / before if 0.0 < before < math.inf else 1.0)
        for value, origin in moved.items():
            casts.setdefault(value, casts.get(origin, 0.0))
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


@dataclasses.dataclass(slots=True)
class OutputErrors:
    """The squared errors of every output that has a limit, as shares of the square that is allowed there."""

    _predicted: Mapping[str, _Terms]
    _exact: frozenset[str]
    _moved: Mapping[str, str]
    _measured: Mapping[str, list[Measurement]]
    _terms: Mapping[str, _Terms] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._correct()

    @classmethod
    def of(
        cls,
        evidence: Evidence,
        allowed: _Errors,
        exact: Collection[str] = (),
        moved: Mapping[str, str] = types.MappingProxyType({}),
    ) -> OutputErrors:
        """Return the errors that are predicted.

        Args:
            evidence: the errors.
            allowed: output -> the relative error that is allowed there. Outputs that are not named may have any.
            exact: nodes that round nothing. Where nothing is predicted of them they are never blamed for an error.
            moved: value -> the one whose numbers it has, only elsewhere: their casts round the same.
        """
        outputs = [output for output, error in allowed.items() if math.isfinite(error)]
        predicted = {output: _terms(evidence, output, allowed[output]) for output in outputs}
        return cls(predicted, frozenset(exact), moved, {output: [] for output in outputs})

    def squares(self, nodes: Collection[str], casts: Collection[str]) -> dict[str, float]:
        """Return the square of the error of every output.

        Args:
            nodes: names of the nodes that are low.
            casts: names of the values that a cast makes low.
        """
        return {output: terms.square(nodes, casts) for output, terms in self._terms.items()}

    def learn(self, nodes: Collection[str], casts: Collection[str], errors: _Errors) -> None:
        """Correct the errors by those of a choice that was measured.

        Args:
            nodes: names of the nodes that are low.
            casts: names of the values that a cast makes low.
            errors: output -> the square of its error as a share of that which is allowed; finite.
        """
        for output, terms in self._predicted.items():
            blamed = sorted(name for name in nodes if name not in self._exact or terms.nodes.get(name))
            parts: dict[Term, float] = {("node", name): 1.0 for name in blamed}
            largest = terms.largest(self._moved)
            for value in sorted(casts):
                origin = self._moved.get(value, value)
                before = largest.get(origin, 0.0)
                share = terms.casts.get(value, 0.0) / before if 0.0 < before < math.inf else 1.0
                part = parts.get(("cast", origin), 0.0)
                parts["cast", origin] = max(part, share * terms.part(value, nodes))  # rounded again it is the same
            self._measured[output].append(Measurement(parts, errors.get(output, 0.0)))
        self._correct()

    def _correct(self) -> None:
        self._terms = {
            output: terms.corrected(_without_luck(measured), self._moved)
            if (measured := self._measured[output])
            else terms
            for output, terms in self._predicted.items()
        }

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


def _without_luck(measured: Sequence[Measurement]) -> list[Measurement]:
    """Return the same, where a choice has no less error than another whose low nodes it has all.

    It has less if errors cancel, as those of an output with few elements do by chance. No other choice repeats that.
    """
    parts = [frozenset(term for term in measurement.parts if term[0] == "node") for measurement in measured]
    errors = [(nodes, measurement.found) for nodes, measurement in zip(parts, measured, strict=True)]
    return [
        dataclasses.replace(measurement, found=max(error for fewer, error in errors if fewer <= nodes))
        for measurement, nodes in zip(measured, parts, strict=True)
    ]


def _share(error: float, allowed: float) -> float:
    if error == 0.0:
        return 0.0
    return error / allowed**2 if allowed > 0.0 else math.inf


def _weighted(errors: Mapping[str, _Errors], weights: _Errors) -> Iterable[_Errors]:
    for output, of_output in errors.items():
        weight = weights.get(output, 1.0)
        yield of_output if weight == 1.0 else {name: weight * error for name, error in of_output.items()}


def _summed(errors: Iterable[_Errors]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for of_output in errors:
        for name, error in of_output.items():
            sums[name] = sums.get(name, 0.0) + error
    return sums


def _by_value(places: _Errors) -> dict[str, dict[str, float]]:
    """Return errors of places where values are read (`read_key`): value -> node -> error."""
    by_value: dict[str, dict[str, float]] = {}
    for place, error in places.items():
        value, node = place.split("\n", 1)
        by_value.setdefault(value, {})[node] = error
    return by_value


def _flat(by_value: Mapping[str, _Errors]) -> dict[str, float]:
    return {read_key(value, node): error for value, of_value in by_value.items() for node, error in of_value.items()}
