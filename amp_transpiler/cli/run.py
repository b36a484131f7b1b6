"""One run of the command: every model, then the reports."""

from __future__ import annotations

from amp_transpiler.cli import printing
from amp_transpiler.cli.destinations import check_places, destinations, makes_folder, output_folder
from amp_transpiler.cli.exit_status import OK
from amp_transpiler.cli.log import logging_to_stderr
from amp_transpiler.cli.options import Options
from amp_transpiler.cli.outcome import Outcome
from amp_transpiler.cli.reports import write_reports
from amp_transpiler.cli.sources import find_models
from amp_transpiler.cli.workers import convert_all

__all__ = ["run"]


def run(options: Options) -> int:
    """Convert every model, print and write the reports, and return the highest exit status.

    Raises:
        InputError: an input, or a place of a result or a report, is impossible.
    """
    with logging_to_stderr(options.verbose):
        sources = find_models(options.models)
        jobs = destinations(sources, options)
        check_places(options, jobs, makes_folder=makes_folder(sources, options))
        outcomes: list[Outcome] = []
        with output_folder(sources, options):
            for outcome in convert_all(jobs, options):
                if sources.are_many:
                    outcome.name_model()
                outcomes.append(outcome)
                printing.show(outcome, options, first=len(outcomes) == 1)
            if sources.are_many and not options.silent:
                good = sum(outcome.status == OK for outcome in outcomes)
                printing.output(f"\n{len(outcomes)} models: {good} converted, {len(outcomes) - good} failed")
            write_reports(outcomes, options, are_many=sources.are_many)
        return max(outcome.status for outcome in outcomes)
