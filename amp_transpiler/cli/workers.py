"""Converts many models in worker processes (`--jobs`). A process that dies loses only the model that it works on."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import multiprocessing
import signal
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any

from amp_transpiler.cli.checker import start_checker
from amp_transpiler.cli.destinations import Job
from amp_transpiler.cli.exit_status import INTERNAL_ERROR
from amp_transpiler.cli.log import logging_to_stderr
from amp_transpiler.cli.options import Options
from amp_transpiler.cli.outcome import Outcome, convert
from amp_transpiler.cli.termination import Terminated, terminating_by_exception

if TYPE_CHECKING:
    from amp_transpiler.report import Report

__all__ = ["convert_all"]

_SECONDS_TO_CLEAN_UP = 5.0

_SPAWN = multiprocessing.get_context("spawn")  # a fork would share threads of ONNX Runtime and of the progress bar


def convert_all(jobs: Sequence[Job], options: Options) -> Iterator[Outcome]:
    """Yield the outcome of every job, in the order of the jobs, each as soon as those before it are there."""
    if min(options.jobs, len(jobs)) == 1:
        yield from (convert(job, options) for job in jobs)
        return
    with contextlib.ExitStack() as crew:
        workers = [crew.enter_context(_Worker(options).ending()) for _ in range(min(options.jobs, len(jobs)))]
        yield from _in_order(jobs, workers)


def _in_order(jobs: Sequence[Job], workers: Sequence[_Worker]) -> Iterator[Outcome]:
    outcomes: dict[int, Outcome] = {}
    waiting = iter(enumerate(jobs))
    for worker, (number, job) in zip(workers, waiting, strict=False):
        worker.give(number, job)
    shown = 0
    while shown < len(jobs):
        ready = wait([worker.connection for worker in workers if worker.task is not None])
        for worker in workers:
            if worker.connection in ready:
                number, outcome = worker.take()
                outcomes[number] = outcome
                if (following := next(waiting, None)) is not None:
                    worker.give(*following)
        while shown in outcomes:
            yield outcomes.pop(shown)
            shown += 1


class _Worker:
    """A process that converts models, one at a time.

    Attributes:
        connection: readable when the process has an outcome, or has died.
        task: the number of its model and the job; None if it has none.
    """

    connection: Connection[Any, Any]

    def __init__(self, options: Options) -> None:
        self._options = options
        self._process: SpawnProcess | None = None
        self.task: tuple[int, Job] | None = None

    def give(self, number: int, job: Job) -> None:
        """Let the process convert a model; a new process, if there is none or it died."""
        if self._process is None:
            self.connection, theirs = _SPAWN.Pipe()
            self._process = _SPAWN.Process(target=_work, args=(theirs, self._options))
            self._process.start()
            theirs.close()  # Else its death would not close the connection.
        self.task = number, job
        with contextlib.suppress(OSError):  # It died idle: the next `take` says so.
            self.connection.send(job)

    def take(self) -> tuple[int, Outcome]:
        """Return the number of the model and the outcome."""
        assert self.task is not None
        (number, job), self.task = self.task, None
        try:
            outcome = self.connection.recv()
        except (EOFError, OSError):
            return number, Outcome(
                job, INTERNAL_ERROR, error=f"{job.model}: the process that converted it {self._end()}"
            )
        assert isinstance(outcome, Outcome)
        return number, outcome

    @contextlib.contextmanager
    def ending(self) -> Iterator[_Worker]:
        """End the process with the block: at once if it is idle, else after it has cleaned up."""
        try:
            yield self
        finally:
            if self._process is not None:
                self._process.terminate()
                self._end()

    def _end(self) -> str:
        """Wait for the end of the process, and return how it ended."""
        process, self._process = self._process, None
        assert process is not None
        self.connection.close()
        process.join(_SECONDS_TO_CLEAN_UP)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = process.exitcode or 0
        if code >= 0:
            return f"ended with exit status {code}"
        name = signal.Signals(-code).name
        return f"was ended by {name}{' (is there enough memory?)' if name == 'SIGKILL' else ''}"


# ---- in the process ----


def _work(connection: Connection[Any, Any], options: Options) -> None:
    """Convert the models that come in until the connection is closed."""
    start_checker(options)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command as well, which then ends this process.
    if hasattr(signal, "SIGHUP"):  # A closed terminal tells the command as well.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminating_by_exception():
            _serve(connection, options)
    except Terminated as error:
        sys.exit(128 + error.number)


def _serve(connection: Connection[Any, Any], options: Options) -> None:
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        with contextlib.redirect_stderr(io.StringIO()) as log, logging_to_stderr(options.verbose):
            outcome = convert(job, options)
        outcome.log = log.getvalue()
        if outcome.report is not None:
            outcome.report = _without_program(outcome.report, options)
        connection.send(outcome)


def _without_program(report: Report, options: Options) -> Report:
    """Return the report as it goes to the command's own process: in place of the program what a picture needs of it."""
    times = report.known_times()
    if options.report is None or report.program is None:
        return dataclasses.replace(report, program=None, times=times)
    from amp_transpiler.report.picture import graphs_of

    return dataclasses.replace(report, program=None, times=times, graphs=graphs_of(report.program))
