"""Tables on stdout, errors on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from amp_transpiler.cli.options import Options
    from amp_transpiler.cli.outcome import Outcome

__all__ = ["error", "output", "show"]


def error(message: str) -> None:
    """Print an error as one line on stderr."""
    print(f"amp-transpile: error: {' '.join(message.split())}", file=sys.stderr)


def output(content: RenderableType) -> None:
    """Print to stdout. If the reader has gone (`| head`), the conversion goes on."""
    try:
        if isinstance(content, str):
            print(content)
        else:
            from rich.console import Console

            Console(file=sys.stdout, markup=False, highlight=False, emoji=False).print(content)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(outcome: Outcome, options: Options, *, first: bool) -> None:
    """Print the report of one model, then its error if there is one."""
    if outcome.report is not None and not options.silent:
        from amp_transpiler.report.explain import explain_lines
        from amp_transpiler.report.table import benchmark_table, summary

        if not first:
            output("")
        if options.explain:
            output("\n".join(explain_lines(outcome.report)) + "\n")
        output(summary(outcome.report, failed=outcome.error is not None))
        if outcome.benchmark is not None:
            output(benchmark_table(outcome.benchmark, outcome.report.dtype))
    if outcome.error is not None:
        error(outcome.error)
