"""Converts one model: the call of `transpile`, the benchmark, and the outcome of both."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from amp_transpiler.cli.destinations import Job
from amp_transpiler.cli.exit_status import OK, status_of
from amp_transpiler.cli.kept import Kept, Made
from amp_transpiler.cli.options import Options
from amp_transpiler.cli.overview import Row, row_of
from amp_transpiler.cli.places import STREAM, check_name, is_standard_input
from amp_transpiler.cli.progress import progress_bar
from amp_transpiler.cli.samples import MADE_UP
from amp_transpiler.cli.sources import STANDARD_INPUT, spooled
from amp_transpiler.cli.streams import copy_to_stdout
from amp_transpiler.errors import CheckFailed, InputError, OutputError, help_link
from amp_transpiler.files.model_file import check_model_file
from amp_transpiler.garbage import collection_paused

if TYPE_CHECKING:
    from amp_transpiler.measuring.benchmark import BenchmarkResult
    from amp_transpiler.report import Report

__all__ = ["Outcome", "convert"]

_logger = logging.getLogger(__name__)

_STANDARD_OUTPUT = "standard output"


@dataclasses.dataclass(slots=True)
class Outcome:
    """The outcome for one model.

    Attributes:
        job: the model and its destination.
        status: the exit status.
        report: None if the conversion did not get as far.
        error: the message, or None.
        link: the place on the page of errors that is about it.
        benchmark: None if none was asked for or it failed.
        skipped: the conversion of a former call, for which this one was left out.
        log: log messages that are still to be printed, one a line.
    """

    job: Job
    status: int = OK
    report: Report | None = None
    error: str | None = None
    link: str = ""
    benchmark: BenchmarkResult | None = None
    skipped: Made | None = None
    log: str = ""

    @property
    def row(self) -> Row:
        """What the table about several models says."""
        return self.skipped.row if self.skipped is not None else row_of(self.report, failed=self.status != OK)

    def name_model(self) -> None:
        """Put the model's name before an error that does not mention it."""
        if self.error is not None and str(self.job.model) not in self.error:
            self.error = f"{self.job.model}: {self.error}"


def convert(job: Job, options: Options) -> Outcome:
    """Convert one model. Errors end up in the outcome, so that the other models still get their turn."""
    outcome = Outcome(job)
    temporary: dict[str, str] = {}  # the files that stand for standard streams -> what messages call them
    try:
        check_name("MODEL", str(job.model))
        if not is_standard_input(job.model):
            check_model_file(job.model)  # at once: what reads it takes a second to import
        remembered = Kept(job, options) if job.keep else None
        if remembered is not None and options.skip_unchanged and (former := remembered.find()) is not None:
            return Outcome(job, skipped=former)
        with spooled(job.model) as source, _written(job, options) as result:
            if is_standard_input(job.model):
                temporary[str(source)] = STANDARD_INPUT
            if str(job.output) == STREAM:
                temporary[str(result)] = _STANDARD_OUTPUT
            _convert(outcome, source, result, options)
            if result is not None and str(job.output) == STREAM:
                _deliver(result)
        if remembered is not None and outcome.report is not None:
            remembered.keep(row_of(outcome.report, failed=False), outcome.report)
    except Exception as error:  # noqa: BLE001 - one line instead of a traceback, and the next model
        outcome.status, outcome.error = status_of(error, verbose=options.verbose > 0)
        outcome.link = help_link(error)
        if isinstance(error, CheckFailed):
            outcome.report = error.report
        elif isinstance(error, InputError) and job.found and str(job.inputs) in outcome.error:
            outcome.error += f"; it was found beside the model, and --inputs {MADE_UP} does without it"
    _rename(outcome, temporary)
    return outcome


@contextlib.contextmanager
def _written(job: Job, options: Options) -> Iterator[pathlib.Path | None]:
    """Yield the file to write: a temporary one for standard output, none on a dry run."""
    if options.dry_run:
        yield None
    elif str(job.output) != STREAM:
        yield job.output
    else:
        from amp_transpiler.files.staging import temporary_folder

        with temporary_folder() as folder:
            yield folder / f"{_STANDARD_OUTPUT}.onnx"


def _convert(outcome: Outcome, source: pathlib.Path, result: pathlib.Path | None, options: Options) -> None:
    with collection_paused(stays=True):  # modules, functions and classes stay
        from amp_transpiler.files.loading import load
        from amp_transpiler.pipeline import transpile

    model: Any = load(source) if options.benchmark else source  # loaded once for both
    title = STANDARD_INPUT if is_standard_input(outcome.job.model) else source.name
    with progress_bar(title, options) as progress:
        asked = dataclasses.replace(options.conversion, inputs=outcome.job.inputs, progress=progress)
        outcome.report = transpile(model, _place(outcome.job, result, options), **asked.keywords())
    if options.benchmark:
        outcome.benchmark = _benchmark(model, source, outcome.report, outcome.job.inputs)


def _place(job: Job, result: pathlib.Path | None, options: Options) -> Any:
    """Return the place of a result as `transpile` takes it."""
    from amp_transpiler.pipeline import DefaultPlace

    if result is None or job.float32 is None:
        return result
    return DefaultPlace(result, job.float32, is_named=options.output is not None)


def _deliver(result: pathlib.Path) -> None:
    """Copy the written model to standard output."""
    if others := sorted(set(result.parent.iterdir()) - {result}):
        raise OutputError(f"its weights need a file of their own ({others[0].name}), so it needs -o FILE")
    try:
        copy_to_stdout(result)
    except OSError as error:
        raise OutputError(f"{_STANDARD_OUTPUT}: the model cannot be written: {error.strerror}") from error


def _rename(outcome: Outcome, temporary: dict[str, str]) -> None:
    """Call temporary files what they stand for, wherever the user reads about them."""
    from amp_transpiler.report.assembly import renamed

    for file, name in temporary.items():
        if outcome.error is not None:
            outcome.error = outcome.error.replace(file, name)
        if outcome.report is not None:
            outcome.report = renamed(outcome.report, file, name)


def _benchmark(source: Any, file: pathlib.Path, report: Report, inputs: str | None) -> BenchmarkResult | None:
    """Measure both models. The result is already written, so a failure is only a warning."""
    from amp_transpiler.child_process.child import RUN_ERRORS
    from amp_transpiler.child_process.remote import open_program
    from amp_transpiler.measuring.benchmark import benchmark
    from amp_transpiler.runtime.ort import ORT_ERRORS, error_text
    from amp_transpiler.verification.inputs import given_inputs
    from amp_transpiler.verification.synthesis import CannotSynthesise, synthesise_inputs

    low = report.program if report.destination is None else report.destination
    assert low is not None, "a report has its program"
    failures: tuple[type[Exception], ...] = (CannotSynthesise, *RUN_ERRORS)
    caught: tuple[type[Exception], ...] = (*failures, InputError)
    try:
        if inputs is not None:
            feeds = given_inputs(inputs, source.model)[0]
        else:
            with open_program(file) as session:
                feeds = synthesise_inputs(source.model, session.run)
        return benchmark(file, low, feeds)
    except caught as error:
        if not isinstance(error, failures) and not isinstance(error.__cause__, ORT_ERRORS):
            raise
        _logger.warning("no benchmark: %s", error_text(error))
        return None
