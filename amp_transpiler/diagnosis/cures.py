"""Chooses how a low model is mended: by nodes that stay float32, by powers of two, or by another format."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from amp_transpiler.alternatives.rescaled import rescaled
from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.diagnosis.cure import MOST_RUNS, CuredBy, CureSearch, units_of
from amp_transpiler.diagnosis.other_format import in_other_format
from amp_transpiler.diagnosis.suspects import Findings
from amp_transpiler.files.loading import Source
from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.report.diagnosis import Cure, Fault, Suspect
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.verification.accuracy import Reference
from amp_transpiler.verification.calibrate import calibrate
from amp_transpiler.verification.conversions import Conversions
from amp_transpiler.verification.device_draws import error_of
from amp_transpiler.verification.randomness import random_upstream

__all__ = ["Cures"]

logger = logging.getLogger(__name__)

_FEW = 2  # nodes in float32: fewer changes are not worth another search
_OF_MAGNITUDES: frozenset[Fault] = frozenset({"overflow", "vanishing", "constant"})


@dataclasses.dataclass(frozen=True, slots=True)
class Cures:
    """The cures of one model.

    Attributes:
        model: the float32 model.
        options: how it is converted.
        conversions: its conversions.
        findings: what runs have shown of the low model.
        suspects: the nodes that may be to blame, the likeliest first.
        confirm: hold each cure by all that a conversion is checked by, so that it can be written.
    """

    model: Source
    options: ConversionOptions
    conversions: Conversions
    findings: Findings
    suspects: Sequence[Suspect]
    confirm: bool

    def best(self) -> tuple[Cure | None, tuple[str, ...]]:
        """Return the cure with the fewest nodes in float32 and constants that change, and notes; None: there is none.

        Raises:
            CannotCompare: an emulated conversion does not run.
        """
        search = self._search(self.conversions)
        fault = self.suspects[0].fault if self.suspects else None
        if fault == "rounding" and (other := self._in_other_format(search, self.conversions.reference)) is not None:
            return other, ()
        cure = search.find()
        if cure is None:
            return None, ("not even the whole model in float32 keeps the limits",)
        if fault in _OF_MAGNITUDES and len(cure.nodes) > _FEW and (scaled := self._by_powers_of_two(cure)) is not None:
            return scaled, ()
        ended = f"the search for the cure ended after {cure.runs} conversions: fewer nodes may do"
        return _as_record(cure), (ended,) if cure.runs >= MOST_RUNS else ()

    def _search(self, conversions: Conversions) -> CureSearch:
        return CureSearch(conversions, units_of(self.findings, self.suspects), confirm=self.confirm)

    def _in_other_format(self, search: CureSearch, reference: Reference) -> Cure | None:
        """Return the other 16-bit format, if that holds and a few nodes in float32 do not; else None."""
        if search.find_few() is not None:
            return None
        holding = in_other_format(self.model, self.options, reference)
        if holding is None:
            return None
        other, measured = holding
        return dataclasses.replace(_as_record(CuredBy((), measured, search.runs + 1)), dtype=other)

    def _by_powers_of_two(self, cure: CuredBy) -> Cure | None:
        """Return constants times powers of two, if they and the nodes left float32 are fewer than a cure's nodes."""
        conversions = self.conversions
        prepared, policy, reference = conversions.prepared, conversions.policy, conversions.reference
        if policy.low is not FLOAT16 or random_upstream(prepared.model):
            return None
        try:
            seen = calibrate(prepared, policy.low, conversions.samples())
        except RUN_ERRORS as error:
            logger.info("not rescaled, since ranges are not known: %s", error_text(error))
            return None
        evidence = Evidence(ranges=seen.ranges, samples=seen.samples, given=reference.given)
        names = [str(value.name) for value in prepared.model.graph.inputs]
        proposal = rescaled(
            prepared, policy, conversions.ranges, evidence, lambda: reference.feeds(names), conversions.phase
        )
        if proposal is None or proposal.program is None:
            return None
        search = self._search(dataclasses.replace(conversions, prepared=proposal.program))
        scaled = search.find()
        exponents = dict(proposal.rescaling.exponents)
        if scaled is None or len(scaled.nodes) + len(exponents) >= len(cure.nodes):
            return None
        record = _as_record(dataclasses.replace(scaled, runs=cure.runs + scaled.runs))
        return dataclasses.replace(record, rescaled=exponents)


def _as_record(cured: CuredBy) -> Cure:
    errors = [error_of(row) for row in cured.measured.outputs.values()]
    return Cure(nodes=cured.nodes, error=max(errors, default=0.0), excess=cured.measured.excess, runs=cured.runs)
