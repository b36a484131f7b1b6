"""All models of one run, one after the other, and then the reports."""

from __future__ import annotations

from amp_transpiler.cli import printing
from amp_transpiler.cli.destinations import check_report_places, destinations, output_folder
from amp_transpiler.cli.exit_status import OK
from amp_transpiler.cli.log import logging_to_stderr
from amp_transpiler.cli.options import Options
from amp_transpiler.cli.outcome import Outcome, convert
from amp_transpiler.cli.reports import write_reports

__all__ = ["run"]


def run(options: Options) -> int:
    """Convert every model, print and write the reports, and return the highest exit status.

    Raises:
        OutputError: a result or a report cannot be written where it should go.
    """
    with logging_to_stderr(options.verbose):
        jobs = destinations(options)
        check_report_places(options, jobs)
        outcomes: list[Outcome] = []
        with output_folder(options):
            for job in jobs:
                outcome = convert(job, options)
                outcomes.append(outcome)
                printing.show(outcome, options, first=len(outcomes) == 1)
        if len(outcomes) > 1 and not options.silent:
            good = sum(outcome.status == OK for outcome in outcomes)
            printing.output(f"\n{len(outcomes)} models: {good} converted, {len(outcomes) - good} failed")
        write_reports(outcomes, options)
        return max(outcome.status for outcome in outcomes)
