"""Says how far a result is beyond what is allowed, as one number that a search can follow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from amp_transpiler.precision.limits import Limits
from amp_transpiler.report import OutputComparison
from amp_transpiler.verification.accuracy import Reference
from amp_transpiler.verification.user_metric import Metric

__all__ = ["excess_of_metric", "excesses"]

_MUCH = 4.0  # where the error has no measure: a label is another, but by how much the scores differ is not known


def excesses(rows: Iterable[OutputComparison], reference: Reference, limits: Limits) -> dict[str, float]:
    """Return the error of every output over the one that is allowed; at most 1 where its limits are kept.

    Args:
        rows: the comparisons.
        reference: what they are compared with; outputs whose errors say nothing do not count.
        limits: what is allowed.
    """
    unjudged = reference.unjudged()
    return {row.name: _excess(row, reference, unjudged, limits) for row in rows}


def excess_of_metric(measure: float, metric: Metric) -> float:
    """Return a metric over its bound; at most 1 if the bound is kept.

    Args:
        measure: the value of the metric.
        metric: has the bound.
    """
    if measure <= metric.bound:
        return max(0.0, measure / metric.bound) if metric.bound > 0.0 else 0.0
    return measure / metric.bound if metric.bound > 0.0 else _MUCH


def _excess(row: OutputComparison, reference: Reference, unjudged: Mapping[str, str], limits: Limits) -> float:
    if row.name in reference.unsteady:  # as in `verdict.failing_outputs`
        return math.inf if row.nonfinite and not row.nonfinite_reference else 0.0
    if row.nonfinite or row.structure_differs:
        return math.inf
    if row.name in unjudged:
        return 0.0
    error = _over(row.relative, limits.for_output(row.name))
    most = limits.mismatch_for(row.name)
    return error if most is None else max(error, _over(row.mismatch, most))


def _over(error: float, allowed: float) -> float:
    if math.isnan(error):
        return math.inf
    if allowed > 0.0:
        return error / allowed if math.isfinite(allowed) else 0.0
    return _MUCH if error > 0.0 else 0.0
