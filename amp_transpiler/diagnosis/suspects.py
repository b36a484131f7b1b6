"""Says from measurements what each node does wrong, and what the outputs feel of that."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.child_process.differences import Measured
from amp_transpiler.diagnosis.joined import Triple
from amp_transpiler.diagnosis.pairs import Pairs, through_casts
from amp_transpiler.graph.constness import constant_tensor
from amp_transpiler.graph.dtypes import FLOAT32, LowFormat, dtype_name
from amp_transpiler.ops.names import operator_name
from amp_transpiler.report.diagnosis import Fault, NodeDiagnosis, Suspect
from amp_transpiler.report.wording import percent

__all__ = ["Findings", "is_far", "rows_of", "suspect"]

_VANISHED = 0.01  # the share of a result's numbers that became zero, from which that is what it does wrong
_FAR = 32.0  # times the rounding of a number, from which an error of a result is none of rounding
_ROUNDINGS = 4.0  # times the rounding of a constant, from which it is another one


@dataclasses.dataclass(frozen=True, slots=True)
class Findings:
    """What was measured of two programs.

    Attributes:
        reference: result -> its float32 value.
        pairs: the results that both programs have.
        triples: those that were compared, in order.
        measured: result -> what is measured of it.
        felt: result -> the square of what its rounding adds to the worst output, as a share of that output's norm;
            None where derivatives cannot be had.
        low: the format.
    """

    reference: Mapping[str, ir.Value]
    pairs: Pairs
    triples: Sequence[Triple]
    measured: Mapping[str, Measured]
    felt: Mapping[str, float] | None
    low: LowFormat

    def contribution(self, name: str) -> float | None:
        """Return what the own error of a result's node adds to the worst output, as a fraction of that output."""
        itself = self.measured[name].own
        return self.added_by(name, math.inf if itself.infinite or not itself.has_shape else itself.square)

    def added_by(self, name: str, square: float) -> float | None:
        """Return what an error of a result adds to the worst output, as a fraction of that output.

        The rounding of the result and what that adds are known, so an error of another size adds in proportion.

        Args:
            name: the result.
            square: the square of the error's norm.
        """
        facts = self.measured[name]
        felt = None if self.felt is None else self.felt.get(name)
        if not square or felt == 0.0:
            return 0.0
        if felt is None and self.felt is not None and not self._is_felt_directly(name):
            return None
        if felt is not None and math.isinf(facts.rounding) and math.isfinite(felt):
            return math.sqrt(felt)  # what the format cannot hold is not felt, as the numbers of a mask are not
        if felt is None or not facts.rounding or not math.isfinite(facts.rounding) or math.isinf(felt):
            norm = facts.own.norm  # as if it were an output itself
            return math.inf if math.isinf(square) or not norm else math.sqrt(square / norm)
        return math.inf if math.isinf(square) else min(1.0, math.sqrt(felt * square / facts.rounding))

    def _is_felt_directly(self, name: str) -> bool:
        """Whether a result is felt without a derivative: an output is, and integers have none."""
        value = self.reference[name]
        return value.is_graph_output() or value.dtype != ir.DataType.FLOAT


def rows_of(findings: Findings) -> tuple[NodeDiagnosis, ...]:
    """Return a row for every result that was compared."""
    return tuple(_rows(findings))


def _rows(findings: Findings) -> Iterator[NodeDiagnosis]:
    for order, triple in enumerate(findings.triples):
        facts, value = findings.measured[triple.reference], findings.reference[triple.reference]
        node = value.producer()
        assert node is not None
        contribution = findings.contribution(triple.reference)
        yield NodeDiagnosis(
            node=str(node.name),
            op=operator_name(node),
            value=triple.reference,
            order=order,
            precision=dtype_name(triple.precision),
            largest=facts.magnitudes.largest,
            smallest=facts.magnitudes.smallest,
            histogram=facts.magnitudes.histogram,
            error=facts.low.error,
            own_error=facts.own.error,
            infinite=facts.low.infinite / max(1, facts.low.count),
            own_infinite=facts.own.infinite / max(1, facts.own.count),
            vanished=facts.low.vanished / max(1, facts.low.nonzero),
            own_vanished=facts.own.vanished / max(1, facts.own.nonzero),
            contribution=contribution,
            fault=_fault(findings, triple.reference) if contribution else None,
        )


def _fault(findings: Findings, name: str) -> Fault:
    value, facts = findings.reference[name], findings.measured[name]
    if value.dtype is not None and not value.dtype.is_floating_point():
        return "integers"
    if _wrong_constants(findings, value):
        return "constant"
    if facts.own.infinite or not facts.own.has_shape:
        return "overflow"
    if facts.own.vanished > _VANISHED * facts.own.nonzero:
        return "vanishing"
    is_more = facts.own.error > _ROUNDINGS * 2.0**-findings.low.digits
    return "constant" if is_more and _too_small_constants(findings, value) else "rounding"


def _too_small_constants(findings: Findings, value: ir.Value) -> list[tuple[str, float]]:
    """Return the constants of a node that lie below the least number of the format, such as a bound of 1e-10."""
    node = value.producer()
    small = []
    for read in () if node is None else node.inputs:
        tensor = constant_tensor(read)
        if read is None or tensor is None or tensor.dtype != ir.DataType.FLOAT or not tensor.size:
            continue
        largest = float(np.max(np.abs(tensor.numpy())))
        if 0.0 < largest < findings.low.smallest:
            small.append((str(read.name), largest))
    return small


def _wrong_constants(findings: Findings, value: ir.Value) -> list[str]:
    """Return the constants of a node that the low program has as other numbers than rounding makes of them."""
    node, partner = value.producer(), findings.pairs.low[value].producer()
    if node is None or partner is None or len(node.inputs) != len(partner.inputs):
        return []
    wrong = []
    for mine, its in zip(node.inputs, partner.inputs, strict=True):
        first, second = constant_tensor(mine), constant_tensor(None if its is None else through_casts(its))
        if first is None or second is None or first.dtype != ir.DataType.FLOAT or first.shape != second.shape:
            continue
        if not _is_rounded(first.numpy(), second.numpy(), findings.low):
            wrong.append(str(mine.name if mine is not None else ""))
    return wrong


def _is_rounded(array: np.ndarray, low: np.ndarray, format_: LowFormat) -> bool:
    """Whether numbers are others in the low format only by their rounding."""
    exact, got = array.astype(np.float64), low.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        allowed = np.abs(exact) * _ROUNDINGS * 2.0**-format_.digits + _ROUNDINGS * format_.smallest
        fits = np.abs(got - exact) <= allowed
    return bool(np.all(fits | (np.isinf(exact) & (got == exact)) | np.isnan(exact)))


def is_far(row: NodeDiagnosis, low: LowFormat) -> bool:
    """Whether a node's own error is larger than rounding makes it: something else comes between it and its inputs."""
    return row.own_error > _FAR * 2.0**-low.digits


def suspect(findings: Findings, row: NodeDiagnosis, fault: Fault | None = None) -> Suspect:
    """Return a row as a suspect.

    Args:
        findings: what was measured.
        row: the row.
        fault: what it does wrong, where that is known otherwise.
    """
    row = dataclasses.replace(row, fault=fault or row.fault or _fault(findings, row.value))
    assert row.fault is not None
    return Suspect(
        node=row.node,
        op=row.op,
        value=row.value,
        fault=row.fault,
        contribution=row.contribution or 0.0,
        why=_why(findings, row),
    )


def _why(findings: Findings, row: NodeDiagnosis) -> str:
    assert row.fault is not None
    return _WORDS[row.fault](findings, row)


def _why_infinite(findings: Findings, row: NodeDiagnosis) -> str:
    low = findings.low
    if row.largest > low.max:
        cast = f", so it overflows where it is read in {low.name}" if row.precision == FLOAT32.name else ""
        return f"its result reaches {row.largest:,.6g}, and {low.name} ends at {low.max:,.6g}{cast}"
    if row.own_infinite:
        return f"{percent(row.own_infinite)} of its numbers become infinite or NaN, which are finite in float32"
    if row.infinite:
        return "what it reads is so far from float32 that its result becomes infinite or NaN"
    return "its result has another shape in the low model"


def _why_zero(findings: Findings, row: NodeDiagnosis) -> str:
    share, low = percent(max(row.own_vanished, row.vanished)), findings.low
    return f"{share} of its numbers become zero, and {low.name} holds nothing below {low.smallest:.3g}"


def _why_constant(findings: Findings, row: NodeDiagnosis) -> str:
    low, value = findings.low, findings.reference[row.value]
    if wrong := _wrong_constants(findings, value):
        names = ", ".join(f"'{name}'" for name in wrong)
        return f"it reads {names}, which has other numbers in the low model than {low.name} makes of them"
    name, largest = _too_small_constants(findings, value)[0]
    return f"it reads '{name}' of {largest:.3g}, and {low.name} holds nothing between 0 and {low.smallest:.3g}"


def _why_integers(_: Findings, row: NodeDiagnosis) -> str:
    return f"{percent(row.own_error)} of its whole numbers or truth values come out as others"


def _why_rounding(findings: Findings, row: NodeDiagnosis) -> str:
    if is_far(row, findings.low):
        off = f"on the right inputs its result is {percent(row.own_error)} off"
        return f"{off}: casts on the way to it, or what it is fused with, change them"
    return f"its rounding is {percent(row.own_error)}, which adds {percent(row.contribution or 0.0)} to an output"


_WORDS: Mapping[Fault, Callable[[Findings, NodeDiagnosis], str]] = {
    "overflow": _why_infinite,
    "vanishing": _why_zero,
    "constant": _why_constant,
    "integers": _why_integers,
    "rounding": _why_rounding,
}
