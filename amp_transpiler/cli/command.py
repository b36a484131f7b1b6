"""The command from its arguments to its exit status.

Modules that need onnx, numpy or rich are imported inside functions, so that `--help` and a mistyped option answer at
once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from amp_transpiler.cli import printing
from amp_transpiler.cli.destinations import check_report_places, destinations, output_folder
from amp_transpiler.cli.exit_status import INTERRUPTED, OK, status_of
from amp_transpiler.cli.options import Options, parse
from amp_transpiler.cli.outcome import Outcome, convert
from amp_transpiler.cli.reports import write_reports

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status (see the end of `--help`).

    Args:
        argv: the arguments without the program's name; None stands for those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # A name that the terminal cannot show must not end the run.
            stream.reconfigure(errors="backslashreplace")
    verbose = False
    try:
        options = parse(argv)
        verbose = options.verbose > 0
        with printing.logging_to_stderr(options.verbose):
            return _run(options)
    except KeyboardInterrupt:
        printing.error("interrupted")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort: one line instead of a traceback
        status, message = status_of(error, verbose=verbose)
        printing.error(message)
        return status


def _run(options: Options) -> int:
    """Convert every model, print and write the reports, and return the highest exit status."""
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
