"""Prints the report on one screen: the decisions, their cost, and the accuracy of the result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from amp_transpiler.errors import visible
from amp_transpiler.phrases import counted, first_few
from amp_transpiler.report.figures import Figure, figures_of
from amp_transpiler.report.headline import kept_words, predicted_words, slower_words
from amp_transpiler.report.precision import KINDS, Kind
from amp_transpiler.report.record import OutputComparison, ReportRecord
from amp_transpiler.report.verdict import Tone, tone_of
from amp_transpiler.report.wording import (
    engine_words,
    opset_words,
    percent,
    precision_name,
    reasons,
    remarks,
    state_lines,
    target_words,
    training_words,
)

if TYPE_CHECKING:
    from amp_transpiler.measuring.benchmark import BenchmarkResult

__all__ = [
    "benchmark_table",
    "human_bytes",
    "outputs_text",
    "outputs_worst_first",
    "printable",
    "summary",
]

MAX_OUTPUTS = 12
_GAP = 2  # spaces between columns
_SHORTEST_NAME = 8
_LONG_NAME = 20  # of an output
MAX_NOTES = 6
MAX_OPERATORS = 6  # of a benchmark
MAX_NAMES = 6  # of nodes
MAX_REASONS: dict[Kind, int] = {"low": 3, "high": 5, "untouched": 2}
_COLOURS: dict[Kind, str] = {"low": "green", "high": "yellow", "untouched": "dim"}
_TONES: dict[Tone, str] = {"good": "green", "warn": "yellow", "bad": "red"}


def printable(text: object) -> str:
    """Return `text` with control characters escaped: names come from the model and must not control the terminal."""
    return visible(str(text), None)


def human_bytes(count: int | None) -> str:
    """Return a byte count in decimal units with at most four significant digits (`418.1 MB`); `-` for None."""
    if count is None:
        return "-"
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def outputs_worst_first(outputs: Iterable[OutputComparison]) -> list[OutputComparison]:
    """Return the comparisons in this order: non-finite values, differing elements, then by relative error."""

    def badness(output: OutputComparison) -> tuple[int, int, float, str]:
        relative = math.inf if math.isnan(output.relative) else output.relative
        return -output.nonfinite, output.excused - output.mismatched, -relative, output.name

    return sorted(outputs, key=badness)


def summary(report: ReportRecord, *, failed: bool = False) -> RenderableType:
    """Return the report for `rich` to print: one screen, readable at 80 columns and without colour.

    Args:
        report: the report of `transpile`.
        failed: whether the check failed, so that nothing was written.
    """
    parts: list[RenderableType] = [_title(report, failed=failed), _facts(report, failed=failed)]
    if slower := slower_words(report):
        parts.insert(0, Text(slower, style="bold red"))
    if words := kept_words(report):
        parts.insert(0, Text(printable(words), style="bold"))
    if report.outputs:
        parts.append(_outputs(report))
    if report.frontier:
        parts.append(_frontier(report))
    return Group(*parts)


def _frontier(report: ReportRecord) -> RenderableType:
    """Return the curve between error and cost; what is carried out is marked."""
    title = "from the largest error to the least"
    table = Table(box=None, padding=(0, 2), title=title, title_justify="left", title_style="bold")
    for head in ("error", "", f"ms, {report.device}" if report.device else "ms", f"in {report.dtype}", "casts", ""):
        table.add_column(head, justify="left" if not head else "right", no_wrap=True)
    for point in sorted(report.frontier, key=lambda point: -point.error):
        time = "-" if point.milliseconds is None else f"{point.milliseconds:.3g}"
        how = "measured" if point.measured else "predicted"
        error = percent(point.error) if math.isfinite(point.error) else "not finite"
        row = (error, how, time, f"{point.low_share:.0%}", str(point.casts), "<- chosen" if point.chosen else "")
        table.add_row(*row, style="bold" if point.chosen else None)
    return table


def _title(report: ReportRecord, *, failed: bool) -> Text:
    target = "nothing written" if report.destination is None or failed else printable(report.destination)
    line = Text(f"{printable(report.source)} -> {target}", style="bold", overflow="fold")
    to = "" if report.is_copy else f" {report.dtype}, {target_words(report)},"
    line.append(f"\n{report.asked},{to} {report.seconds:.1f} s", style="not bold dim")
    return line


def _facts(report: ReportRecord, *, failed: bool) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("nodes", _node_counts(report))
    for precision in KINDS:
        why = _reasons(report, precision)
        if why is not None:
            grid.add_row(Text(f"  {precision_name(precision, report)}", style=_COLOURS[precision]), why)
    if report.repaired:
        named = printable(first_few(report.repaired, 4))
        grid.add_row("  repaired", Text(f"{counted(len(report.repaired), 'node')} made float32: {named}"))
    grid.add_row("casts", f"{report.casts} inserted, {report.casts_removed} removed")
    _add_predicted(grid, report)
    grid.add_row("opset", opset_words(*report.opset))
    grid.add_row("weights", _sizes(*report.weight_bytes))
    if report.file_bytes[1] is not None:  # None on a dry run
        grid.add_row("files", _sizes(*report.file_bytes))
    for index, line in enumerate(state_lines(report.states)):
        grid.add_row("" if index else "states", Text(printable(line)))
    if report.missing_kernels:
        grid.add_row("no kernel", Text(_missing(report)))
    if report.engine is not None:
        grid.add_row("engine", Text(printable(engine_words(report.engine))))
    _add_session(grid, report)
    if report.checks:
        grid.add_row("checks", Text(printable("; ".join(report.checks))))
    grid.add_row("verdict", Text(printable(report.verdict), style=_verdict_style(report, failed=failed)))
    if report.steps is not None:
        grid.add_row("training", Text(printable(training_words(report.steps))))
    for label, warning in _some("warnings", report.warnings):
        grid.add_row(label, Text(printable(warning), style="bold yellow"))
    for label, note in _some("notes", remarks(report)):
        grid.add_row(label, Text(printable(note)))
    return Padding(grid, (0, 0, 0, 2), expand=False)


def _add_predicted(grid: Table, report: ReportRecord) -> None:
    """Add the predicted times, and below them what they are made of."""
    if predicted := predicted_words(report):
        grid.add_row("predicted", Text(printable(predicted)))
        if report.predicted_from:
            grid.add_row("", report.predicted_from)


def _add_session(grid: Table, report: ReportRecord) -> None:
    """Add what a session of the result should have beside ONNX Runtime's defaults, as Python."""
    if report.session_options:
        grid.add_row("session", f"faster without {', '.join(report.session_options.disabled)}:")
        for line in report.session_code.splitlines():
            grid.add_row("", Text(printable(line)))


def _node_counts(report: ReportRecord) -> Text:
    unchanged = report.nodes - report.low_nodes - report.high_nodes
    line = Text(f"{report.nodes}: ")
    if report.dtype != "float32":  # which is no choice beside itself
        line.append(f"{report.low_nodes} {precision_name('low', report)}", style=_COLOURS["low"])
        if report.low_nodes + report.high_nodes:
            line.append(f" ({report.low_nodes / (report.low_nodes + report.high_nodes):.0%} of those with a choice)")
        line.append(", ")
    line.append(f"{report.high_nodes} {precision_name('high', report)}", style=_COLOURS["high"])
    line.append(f", {unchanged} {precision_name('untouched', report)}")
    return line


def _reasons(report: ReportRecord, precision: Kind) -> RenderableType | None:
    rows = reasons(report, precision)
    if not rows:
        return None
    limit = MAX_REASONS[precision]
    # A line "for 1 other reason" would take as much room as the reason itself.
    shown = rows if len(rows) == limit + 1 else rows[:limit]
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right")
    grid.add_column(overflow="fold")
    for reason, count in shown:
        grid.add_row(f"{count}x", Text(printable(reason)))
    if len(shown) < len(rows):
        rest = rows[len(shown) :]
        grid.add_row(f"{sum(count for _, count in rest)}x", f"for {len(rest)} other reasons (--explain lists them)")
    return grid


def _missing(report: ReportRecord) -> str:
    ops = sorted(report.missing_kernels.items(), key=lambda item: (-item[1], item[0]))
    named = first_few([f"{printable(op)} {count}" for op, count in ops], 8)
    return f"in {report.dtype} on {report.target}: {named}"


def _sizes(before: int | None, after: int | None) -> str:
    text = f"{human_bytes(before)} -> {human_bytes(after)}"
    if before and after is not None:
        text += f" ({after / before - 1:+.0%})"
    return text


def _verdict_style(report: ReportRecord, *, failed: bool) -> str:
    tone = "bad" if failed else tone_of(report.verdict_word)
    return f"bold {_TONES[tone]}"


def _some(label: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return the first few texts, the first of them with the label."""
    shown = list(texts[:MAX_NOTES])
    if len(texts) > MAX_NOTES:
        shown.append(f"and {len(texts) - MAX_NOTES} more (--json has them all)")
    return [(label if index == 0 else "", text) for index, text in enumerate(shown)]


def _outputs(report: ReportRecord) -> RenderableType:
    ordered = outputs_worst_first(report.outputs.values())
    shown = ordered if len(ordered) == MAX_OUTPUTS + 1 else ordered[:MAX_OUTPUTS]
    parts: list[RenderableType] = [_Outputs(shown)]
    if len(shown) < len(ordered):
        worst = percent(ordered[len(shown)].relative)
        parts.append(Text(f"and {len(ordered) - len(shown)} more, relative error at most {worst}", style="dim"))
    return Padding(Group(*parts), (1, 0, 0, 2), expand=False)


def outputs_text(outputs: Sequence[OutputComparison]) -> RenderableType:
    """Return the figures of outputs for `rich` to print, as many as the terminal has room for."""
    return _Outputs(outputs)


class _Outputs:
    """Shows the figures of outputs, without those that no output has, and the spared ones where room is short."""

    def __init__(self, outputs: Sequence[OutputComparison]) -> None:
        self._outputs = outputs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        figures = figures_of(self._outputs)
        spared = sorted((figure for figure in figures if figure.spared), key=lambda figure: figure.spared)
        while spared and self._room_for_names(figures, options.max_width) < self._enough:
            figures.remove(spared.pop(0))
        yield self._table(figures, max(self._room_for_names(figures, options.max_width), _SHORTEST_NAME))

    @property
    def _enough(self) -> int:
        """Columns for names: a longer one is cut sooner than a figure is left out."""
        return min(_LONG_NAME, max(cell_len(printable(output.name)) for output in self._outputs))

    def _room_for_names(self, figures: Sequence[Figure], width: int) -> int:
        columns = [["type", *(printable(output.dtype) for output in self._outputs)]]
        columns += [[figure.head, *map(figure.of, self._outputs)] for figure in figures]
        return width - sum(_GAP + max(map(cell_len, cells)) for cells in columns)

    def _table(self, figures: Sequence[Figure], room: int) -> Table:
        table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
        table.add_column("output", overflow="ellipsis", no_wrap=True, min_width=_SHORTEST_NAME, max_width=room)
        table.add_column("type", no_wrap=True)
        for figure in figures:
            table.add_column(figure.head, justify="right", no_wrap=True)
        for output in self._outputs:
            cells = (Text(figure.of(output), style="bold red" if figure.is_bad(output) else "") for figure in figures)
            table.add_row(Text(printable(output.name)), printable(output.dtype), *cells)
        return table


def benchmark_table(result: BenchmarkResult, dtype: str) -> RenderableType:
    """Return latency, throughput and peak memory of the float32 and the low program, for `rich` to print.

    Args:
        result: the measurements.
        dtype: the low format, for the heading.
    """
    reference, low = result.reference, result.low
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(f"on {result.place}", no_wrap=True)
    for header in ("float32", dtype, "ratio"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_row(
        f"latency, median of {result.runs}", f"{reference.p50_ms:.3g} ms", f"{low.p50_ms:.3g} ms", _speed(result)
    )
    for name in ("p90", "p99"):
        values = [f"{getattr(row, f'{name}_ms'):.3g} ms" for row in (reference, low)]
        table.add_row(f"latency, {name}", *values, "")
    unit = "runs" if reference.samples is None else "samples"
    table.add_row(f"throughput, {unit} a second", f"{reference.throughput:.4g}", f"{low.throughput:.4g}", "")
    before, after = result.reference_peak, result.low_peak
    ratio = f"{after / before:.0%}" if before and after is not None and not result.emulated else "-"
    table.add_row(f"peak memory ({result.memory})", human_bytes(before), human_bytes(after), ratio)
    for row in low.operators[:MAX_OPERATORS]:
        same = sum(other.milliseconds for other in reference.operators if other.operator == row.operator)
        where = "" if row.provider in result.place else f", {row.provider}"
        name = printable(f"  {row.nodes}x {row.operator}{where} ({row.share:.0%})")
        table.add_row(name, f"{same:.3g} ms" if same else "-", f"{row.milliseconds:.3g} ms", "")
    lines = [Text(printable(note), style="dim") for note in result.notes]
    for title, names in (("run on the CPU", low.cpu_nodes), ("copies", low.copies)):
        if names:
            lines.insert(0, Text(f"{title}: {printable(first_few(names, MAX_NAMES))}", style="yellow"))
    if result.slower_than_fp32:
        lines.insert(0, Text(f"slower than float32 on {result.place}", style="bold red"))
    return Padding(Group(table, *lines), (1, 0, 0, 2), expand=False)


def _speed(result: BenchmarkResult) -> Text:
    if result.speedup is None:
        return Text("-")
    if result.slower_than_fp32:
        return Text(f"{1 / result.speedup:.2f} times as slow", style="bold red")
    return Text(f"{result.speedup:.2f} times as fast")
