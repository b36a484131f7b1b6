"""Prints tables on stdout and errors on stderr. Nothing printed here can control the terminal."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from amp_transpiler.errors import visible
from amp_transpiler.phrases import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from amp_transpiler.cli.options import Options
    from amp_transpiler.cli.outcome import Outcome

__all__ = ["error", "message", "output", "show", "show_all"]

_UNWRAPPED = 100_000  # columns: no line is longer
_LONGEST = 2000  # characters of a message; what it quotes is shorter, but some have a path and a remedy as well


def error(text: str, link: str = "") -> None:
    """Print an error as one line on stderr, with a link to the page about it at its end."""
    message("error", text, f" ({link})" if link else "")


def message(kind: str, text: str, end: str = "") -> None:
    """Print one line on stderr, with control characters escaped."""
    print(f"amp-transpile: {kind}: {visible(' '.join(text.split()), _LONGEST)}{end}", file=sys.stderr)


def output(content: RenderableType, stream: TextIO | None = None) -> None:
    """Print to `stream`, or to stdout."""
    stream = stream or sys.stdout
    if isinstance(content, str):
        print(content, file=stream)
        return
    from rich.console import Console

    if stream.isatty() or "COLUMNS" in os.environ:
        Console(file=stream, markup=False, highlight=False, emoji=False).print(content)
        return
    # For a file or a program lines are not wrapped, nor filled with blanks.
    written = io.StringIO()
    Console(file=written, width=_UNWRAPPED, markup=False, highlight=False, emoji=False).print(content)
    print("\n".join(line.rstrip() for line in written.getvalue().splitlines()), file=stream)


def show_all(outcomes: Sequence[Outcome], options: Options) -> None:
    """Print the table of a call for several models, how many there are, and last of all which failed."""
    failed = [visible(str(outcome.job.model), None) for outcome in outcomes if outcome.error is not None]
    if options.silent:
        if len(failed) > 1 or (failed and outcomes[-1].error is None):  # else its error was the last line
            message("error", f"{len(failed)} of {len(outcomes)} models failed: {', '.join(failed)}")
        return
    from amp_transpiler.cli.overview import overview

    output("")
    output(overview([(str(outcome.job.model), outcome.row, outcome.skipped is not None) for outcome in outcomes]))
    skipped = sum(outcome.skipped is not None for outcome in outcomes)
    counts = f"{len(outcomes) - len(failed) - skipped} converted, {len(failed)} failed"
    output(f"\n{counted(len(outcomes), 'model')}: {counts}{f', {skipped} skipped as unchanged' if skipped else ''}")
    for name in failed:
        output(f"failed: {name}")


def show(outcome: Outcome, options: Options, *, first: bool) -> None:
    """Print the report of one model, then its error if there is one."""
    sys.stderr.write(outcome.log)
    if outcome.skipped is not None and not options.silent:
        verdict = outcome.skipped.record["verdict"]
        where = f"{outcome.job.model} -> {outcome.skipped.record['destination'] or 'nothing written'}"
        gap = "" if first else "\n"
        output(f"{gap}{visible(where, None)}\nskipped, unchanged since: {visible(verdict, None)}")
    if outcome.report is not None and not options.silent:
        from amp_transpiler.report.explain import explain_lines
        from amp_transpiler.report.table import benchmark_table, summary

        stream = sys.stderr if options.to_stdout else sys.stdout
        if not first:
            output("", stream)
        if options.explain:
            output("\n".join(explain_lines(outcome.report)) + "\n", stream)
        output(summary(outcome.report, failed=outcome.error is not None), stream)
        if outcome.benchmark is not None:
            output(benchmark_table(outcome.benchmark, outcome.report.dtype), stream)
    if outcome.report is not None and options.silent:
        from amp_transpiler.report.headline import kept_words, slower_words

        if outcome.error is None and (words := kept_words(outcome.report) or slower_words(outcome.report)):
            message("note" if outcome.report.kept_float32 else "warning", f"{outcome.report.source}: {words}")
        for warning in outcome.report.warnings:
            message("warning", f"{outcome.report.source}: {warning}")
    if outcome.error is not None:
        error(outcome.error, outcome.link)
