"""The errors that choices add to each output, as shares of what is allowed there, and as prices of a cut."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

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


class OutputErrors:
    """The squared errors of every output that has a limit, as shares of the square that is allowed there.

    Args:
        evidence: the errors.
        allowed: output -> the relative error that is allowed there. Outputs that are not named may have any.

    Attributes:
        outputs: the names of the outputs.
    """

    def __init__(self, evidence: Evidence, allowed: _Errors) -> None:
        self._nodes = _shares(evidence.node_errors_by_output, allowed)
        self._casts = _shares(evidence.cast_errors_by_output, allowed)
        places = _shares(evidence.read_errors_by_output, allowed)
        self._reads = {output: _by_value(found) for output, found in places.items()}
        self.outputs = tuple(self._nodes)

    def squares(self, nodes: Collection[str], casts: Collection[str]) -> dict[str, float]:
        """Return the square of the error of every output.

        Args:
            nodes: names of the nodes that are low.
            casts: names of the values that a cast makes low.
        """
        return {
            output: math.fsum(errors.get(name, 0.0) for name in nodes)
            + math.fsum(self._cast(output, value, nodes) for value in casts)
            for output, errors in self._nodes.items()
        }

    def priced(self, weights: _Errors, more: _Errors) -> PricedErrors:
        """Add the errors of all outputs up.

        Args:
            weights: output -> what its error counts; 1 for those that are not named.
            more: node -> an error beside these.
        """
        nodes = _summed([*_weighted(self._nodes, weights), more])
        casts = _summed(_weighted(self._casts, weights))
        flat = {output: _flat(found) for output, found in self._reads.items()}
        reads = {}
        for value, places in _by_value(_summed(_weighted(flat, weights))).items():
            total = math.fsum(places.values())
            if value in casts and 0.0 < total < math.inf and math.isfinite(casts[value]):
                # They add up to the error of the cast, in which what cancels between readers is gone.
                scale = casts[value] / total
                reads[value] = {node: scale * error for node, error in places.items()}
        return PricedErrors(nodes, {value: error for value, error in casts.items() if value not in reads}, reads)

    def _cast(self, output: str, value: str, low: Collection[str]) -> float:
        """Return what a cast adds to an output: that of the nodes which read it low, unless all do."""
        places = self._reads.get(output, {}).get(value, {})
        felt = [error for node, error in places.items() if node in low]
        if not felt or len(felt) == len(places):
            return self._casts.get(output, {}).get(value, 0.0)
        return math.fsum(felt)


def _shares(errors: Mapping[str, _Errors], allowed: _Errors) -> dict[str, dict[str, float]]:
    """Return squared errors as shares of those that are allowed, of the outputs that have a limit."""
    return {
        output: {name: _share(error, allowed[output]) for name, error in found.items()}
        for output, found in errors.items()
        if math.isfinite(allowed.get(output, math.inf))
    }


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
