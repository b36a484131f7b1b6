"""Converting one model: the call of `transpile`, the benchmark, and the outcome of both."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from amp_transpiler.cli.destinations import Job
from amp_transpiler.cli.exit_status import OK, status_of
from amp_transpiler.cli.options import Options
from amp_transpiler.cli.progress import progress_bar
from amp_transpiler.errors import CheckFailed

if TYPE_CHECKING:
    from amp_transpiler.report import Report
    from amp_transpiler.runtime.benchmark import BenchmarkResult

__all__ = ["Outcome", "convert"]

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class Outcome:
    """The outcome for one model.

    Attributes:
        job: the model and its destination.
        status: the exit status.
        report: None if the conversion did not get as far.
        error: the message, or None.
        benchmark: None if none was asked for or it failed.
    """

    job: Job
    status: int = OK
    report: Report | None = None
    error: str | None = None
    benchmark: BenchmarkResult | None = None


def convert(job: Job, options: Options) -> Outcome:
    """Convert one model. Errors end up in the outcome, so that the other models still get their turn."""
    outcome = Outcome(job)
    try:
        outcome.report = _transpile(job, options)
        if options.benchmark:
            outcome.benchmark = _benchmark(job, outcome.report, options)
    except Exception as error:  # noqa: BLE001 - one line instead of a traceback, and the next model
        outcome.status, outcome.error = status_of(error, verbose=options.verbose > 0)
        if isinstance(error, CheckFailed):
            outcome.report = error.report
    if outcome.error is not None and len(options.models) > 1 and str(job.model) not in outcome.error:
        outcome.error = f"{job.model}: {outcome.error}"
    return outcome


def _transpile(job: Job, options: Options) -> Report:
    from amp_transpiler.pipeline import transpile

    with progress_bar(job.model.name, options) as progress:
        return transpile(
            job.model,
            None if options.dry_run else job.output,
            **options.conversion(),
            progress=progress,
        )


def _benchmark(job: Job, report: Report, options: Options) -> BenchmarkResult | None:
    """Measure both models. The result is already written, so a failure is only a warning."""
    from amp_transpiler.graph.loading import load
    from amp_transpiler.runtime.benchmark import benchmark
    from amp_transpiler.runtime.ort import error_text
    from amp_transpiler.verification.child import RUN_ERRORS
    from amp_transpiler.verification.inputs import given_inputs
    from amp_transpiler.verification.remote import open_program
    from amp_transpiler.verification.synthesis import CannotSynthesise, synthesise_inputs

    low = report.program if report.destination is None else report.destination
    assert low is not None, "a report has its program"
    failures: tuple[type[Exception], ...] = (CannotSynthesise, *RUN_ERRORS)
    model = load(job.model).model
    try:
        if options.inputs is not None:
            feeds = given_inputs(options.inputs, model)[0]
        else:
            with open_program(job.model) as session:
                feeds = synthesise_inputs(model, session.run)
        return benchmark(job.model, low, feeds)
    except failures as error:
        _logger.warning("no benchmark: %s", error_text(error))
        return None
