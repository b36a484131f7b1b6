"""Says from measurements what each node does wrong, and which one is to blame."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.child_process.differences import Measured
from amp_transpiler.diagnosis.joined import Triple
from amp_transpiler.diagnosis.pairs import Pairs
from amp_transpiler.graph.constness import constant_tensor
from amp_transpiler.graph.dtypes import LowFormat, dtype_name
from amp_transpiler.ops.names import operator_name
from amp_transpiler.report.diagnosis import Fault, NodeDiagnosis, Suspect

__all__ = ["Findings", "rows_of", "suspects_of"]

_VANISHED = 0.01  # the share of a result's numbers that became zero, from which that is what it does wrong
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
        """Return what the own error of a result's node adds to the worst output, as a fraction of that output.

        The rounding of the result and what that adds are known, so an error of another size adds in proportion.
        """
        facts, own = self.measured[name], self.measured[name].own
        size = math.inf if own.infinite or not own.has_shape else own.square
        felt = None if self.felt is None else self.felt.get(name)
        if not size or felt == 0.0:
            return 0.0
        if felt is None and self.felt is not None and not self._is_felt_directly(name):
            return None
        if felt is None or not facts.rounding or not math.isfinite(facts.rounding) or math.isinf(felt):
            return math.inf if math.isinf(size) else own.error  # as if it were an output itself
        return math.inf if math.isinf(size) else min(1.0, math.sqrt(felt * size / facts.rounding))

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
            fault=_fault(findings, triple, facts) if contribution else None,
        )


def _fault(findings: Findings, triple: Triple, facts: Measured) -> Fault:
    value = findings.reference[triple.reference]
    if value.dtype is not None and not value.dtype.is_floating_point():
        return "integers"
    if _wrong_constants(findings, value):
        return "constant"
    if facts.own.infinite or not facts.own.has_shape:
        return "overflow"
    return "vanishing" if facts.own.vanished > _VANISHED * facts.own.nonzero else "rounding"


def _wrong_constants(findings: Findings, value: ir.Value) -> list[str]:
    """Return the constants of a node that the low program has as other numbers than rounding makes of them."""
    node, partner = value.producer(), findings.pairs.low[value].producer()
    if node is None or partner is None or len(node.inputs) != len(partner.inputs):
        return []
    wrong = []
    for mine, its in zip(node.inputs, partner.inputs, strict=True):
        first, second = constant_tensor(mine), constant_tensor(_through_casts(its))
        if first is None or second is None or first.dtype != ir.DataType.FLOAT or first.shape != second.shape:
            continue
        if not _is_rounded(first.numpy(), second.numpy(), findings.low):
            wrong.append(str(mine.name if mine is not None else ""))
    return wrong


def _through_casts(value: ir.Value | None) -> ir.Value | None:
    while value is not None and (node := value.producer()) is not None and node.op_type == "Cast":
        value = node.inputs[0]
    return value


def _is_rounded(array: np.ndarray, low: np.ndarray, format_: LowFormat) -> bool:
    """Whether numbers are others in the low format only by their rounding."""
    exact, got = array.astype(np.float64), low.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        allowed = np.abs(exact) * _ROUNDINGS * 2.0**-format_.digits + _ROUNDINGS * format_.smallest
        fits = np.abs(got - exact) <= allowed
    return bool(np.all(fits | (np.isinf(exact) & (got == exact)) | np.isnan(exact)))


def suspects_of(findings: Findings, rows: Sequence[NodeDiagnosis], allowed: float) -> tuple[Suspect, ...]:
    """Return the nodes that may be to blame, the likeliest first.

    A node that would break the limit on its own by something worse than rounding comes before one that only rounds;
    of several such nodes the first in the order of computation, since those behind it often have the same cause.

    Args:
        findings: what was measured.
        rows: the same as rows.
        allowed: the largest error of an output that is allowed, as a fraction.
    """
    felt = [row for row in rows if row.contribution]

    def rank(row: NodeDiagnosis) -> tuple[bool, float]:
        assert row.contribution is not None
        is_severe = row.fault != "rounding" and row.contribution > allowed
        return not is_severe, float(row.order) if is_severe else -row.contribution

    best: dict[str, NodeDiagnosis] = {}
    for row in sorted(felt, key=rank):
        best.setdefault(row.node, row)
    return tuple(_suspect(findings, row) for row in best.values())


def _suspect(findings: Findings, row: NodeDiagnosis) -> Suspect:
    assert row.contribution is not None
    assert row.fault is not None
    return Suspect(
        node=row.node,
        op=row.op,
        value=row.value,
        fault=row.fault,
        contribution=row.contribution,
        why=_why(findings, row),
    )


def _why(findings: Findings, row: NodeDiagnosis) -> str:
    low = findings.low
    if row.fault == "overflow":
        if row.largest > low.max:
            return f"its result reaches {row.largest:.6g}, and {low.name} ends at {low.max:.6g}"
        if not row.own_infinite:
            return "its result has another shape in the low model"
        return f"{100 * row.own_infinite:.3g} % of its numbers become infinite or NaN, which are finite in float32"
    if row.fault == "vanishing":
        share = f"{100 * row.own_vanished:.3g} % of its numbers"
        return f"{share} become zero: {low.name} holds nothing below {low.smallest:.3g}"
    if row.fault == "constant":
        names = ", ".join(f"'{name}'" for name in _wrong_constants(findings, findings.reference[row.value]))
        return f"it reads {names}, which {low.name} does not hold: the low model has other numbers there"
    if row.fault == "integers":
        return f"{100 * row.own_error:.3g} % of its whole numbers or truth values come out as others"
    assert row.contribution is not None
    return f"its own rounding is {100 * row.own_error:.3g} %, which adds {100 * row.contribution:.3g} % to an output"
