"""Makes the report of what the stages say: the only place where the fields of a report are filled."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

from amp_transpiler.report.clock import Clock
from amp_transpiler.report.facts import Facts, Prediction
from amp_transpiler.report.record import PredictedTimes
from amp_transpiler.report.report import Report
from amp_transpiler.report.verdict import judgement_of

__all__ = ["assemble", "renamed"]


def assemble(facts: Facts, destination: pathlib.Path | None, clock: Clock | None = None) -> Report:
    """Return the report of what is known.

    Args:
        facts: what the stages say, those that have run.
        destination: where the result is written, or None.
        clock: has the times of a conversion that is done; None for one that is refused.
    """
    task, compared, described = facts.task, facts.comparison, facts.description
    predicted, checked = facts.prediction or Prediction(described.decisions), facts.file_check
    sized = None if facts.is_source_file else described
    return Report(
        # what was asked for
        source=task.source,
        level=task.level,
        dtype=task.dtype,
        target=task.target,
        ort=task.ort,
        system=task.system,
        asked=task.asked,
        is_copy=task.is_copy,
        settings={**task.settings, **facts.optimization.settings, **facts.rescaling.settings, **facts.parting.settings},
        destination=None if destination is None else str(destination),
        # what runs showed
        fused=dict(facts.optimization.fused),
        rescaled=dict(facts.rescaling.exponents),
        in_parts=dict(facts.parting.parts),
        outputs=dict(compared.outputs),
        repaired=compared.repaired,
        frontier=compared.frontier,
        headroom=compared.headroom,
        draws=compared.draws,
        gains=dict(compared.gains),
        by_default=dict(compared.by_default),
        metric=compared.metric,
        steps=compared.steps,
        # what the result is
        program=described.program,
        states=described.states,
        decisions=facts.decisions,
        nodes=len(facts.decisions),
        low_nodes=described.low_nodes,
        high_nodes=described.high_nodes,
        kept_float32=described.kept_float32,
        casts=described.casts,
        casts_removed=0 if sized is None else sized.casts_removed,
        casts_at=described.casts_at,
        missing_kernels=dict(described.missing_kernels),
        opset=_before_and_after(task.opset, None if sized is None else sized.opset),
        weight_bytes=_before_and_after(task.weight_bytes, None if sized is None else sized.weight_bytes),
        file_bytes=(task.file_bytes, facts.written_bytes),
        # what it is predicted to take
        device=predicted.device,
        times=_times_of_source(predicted.times) if facts.is_source_file else predicted.times,
        prices=predicted.prices,
        # what is known of it
        checks=checked.checks,
        measured=checked.measured,
        engine=checked.engine,
        verdict=facts.verdict.as_text(),
        notes=facts.notes,
        warnings=facts.warnings,
        seconds=0.0 if clock is None else clock.total(),
        phases={} if clock is None else clock.phases,
        session_options=facts.session_options,
    )


def _before_and_after(before: int, after: int | None) -> tuple[int, int]:
    return before, before if after is None else after


def _times_of_source(
    times: PredictedTimes | Callable[[], PredictedTimes],
) -> PredictedTimes | Callable[[], PredictedTimes]:
    """Have the result take the time of its source, whose file it is."""
    if callable(times):
        predict = times
        return lambda: predict().of_source()
    return times.of_source()


def renamed(report: Report, old: str, new: str) -> Report:
    """Return a report with another name for a file, wherever the user reads about it.

    Args:
        report: the report.
        old: the file's name in it.
        new: what the file is called.
    """
    return dataclasses.replace(
        report,
        source=report.source.replace(old, new),
        destination=None if report.destination is None else report.destination.replace(old, new),
        verdict=judgement_of(report.verdict).renamed(old, new).as_text(),
        warnings=tuple(text.replace(old, new) for text in report.warnings),
        notes=tuple(note.replace(old, new) for note in report.notes),
    )
