"""Runs the command once: every model, then the reports."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from amp_transpiler.cli import printing
from amp_transpiler.cli.checker import start_checker
from amp_transpiler.cli.destinations import Job, check_places, jobs_of, makes_folder, output_folder
from amp_transpiler.cli.log import logging_to_stderr
from amp_transpiler.cli.next_option import next_option
from amp_transpiler.cli.options import Options
from amp_transpiler.cli.outcome import Outcome
from amp_transpiler.cli.reports import write_reports
from amp_transpiler.cli.sources import find_models
from amp_transpiler.cli.termination import Terminated
from amp_transpiler.cli.workers import convert_all

__all__ = ["run"]


def run(options: Options) -> int:
    """Convert every model, print and write the reports, and return the highest exit status.

    Raises:
        InputError: an input, or a place of a result or a report, is impossible.
    """
    with logging_to_stderr(options.verbose):
        sources = find_models(options.models, recursive=options.recursive)
        if options.jobs == 1 and sources.are_there:  # with more jobs each of the processes that convert has one
            start_checker(options)
        jobs = jobs_of(sources, options)
        check_places(options, jobs, makes_folder=makes_folder(sources, options))
        outcomes: list[Outcome] = []
        with output_folder(sources, options, jobs), _telling_how_to_go_on(jobs, outcomes):
            for outcome in convert_all(jobs, options):
                if sources.are_many:
                    outcome.name_model()
                outcomes.append(outcome)
                printing.show(outcome, options, first=len(outcomes) == 1)
            write_reports(outcomes, options, are_many=sources.are_many)
            if sources.are_many:
                printing.show_all(outcomes, options)
            elif not options.silent and (worth := next_option(outcomes[0], options)):
                printing.output(f"\nnext  {worth}", sys.stderr if options.to_stdout else sys.stdout)
        return max(outcome.status for outcome in outcomes)


@contextlib.contextmanager
def _telling_how_to_go_on(jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> Iterator[None]:
    """Say how a call for several models goes on where it is cut now."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        if jobs[0].keep and outcomes:
            done = f"{len(outcomes)} of {len(jobs)} models are done"
            printing.message("note", f"{done}; the same call with --skip-unchanged goes on behind them")
        raise
