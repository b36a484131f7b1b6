"""What the command prints: tables on stdout; errors and log messages, a line each, on stderr."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from amp_transpiler.cli.options import Options
    from amp_transpiler.cli.outcome import Outcome

__all__ = ["error", "logging_to_stderr", "output", "show"]

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class _Handler(logging.Handler):
    """Prints log records like the command's own messages. It looks `sys.stderr` up each time: a bar replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"amp-transpile: {record.levelname.lower()}: {self.format(record)}", file=sys.stderr)


@contextlib.contextmanager
def logging_to_stderr(verbose: int) -> Iterator[None]:
    """Print the package's log messages: warnings; with `verbose` 1 information, with 2 debug messages too."""
    logger = logging.getLogger("amp_transpiler")
    level, handler = logger.level, _Handler()
    logger.setLevel(_LEVELS[min(verbose, 2)])
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


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
