"""Shows in the terminal what changes for a model between two releases of ONNX Runtime."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from amp_transpiler.phrases import counted, first_few
from amp_transpiler.report.page_table import Column, PageTable, table_of
from amp_transpiler.report.release_difference import (
    DecisionChange,
    FaultChange,
    Fusion,
    OperatorCount,
    PlacementChange,
    ReleaseDeparture,
    ReleaseDifference,
    ReleaseRun,
    RunDifference,
    Which,
)
from amp_transpiler.report.table import outputs_text, outputs_worst_first, printable
from amp_transpiler.report.text_table import text_table
from amp_transpiler.report.wording import percent

__all__ = [
    "answer",
    "circumstances",
    "copy_lines",
    "decisions_table",
    "departures_table",
    "faults_table",
    "fusions_table",
    "operators_table",
    "placement_table",
    "release_text",
    "run_lines",
    "run_title",
]

_SHOWN = 10  # rows of a table in the terminal
_NAMES = 4  # of values and nodes in a line


def answer(difference: ReleaseDifference) -> str:
    """Return the sentence that answers the question: what changes."""
    between = f"between ONNX Runtime {difference.old} and {difference.new}"
    parts = [*_changes_of_tables(difference), *(part for run in difference.runs for part in _changes_of_run(run))]
    if parts:
        return f"What changes {between}: {'; '.join(parts)}."
    if any(run.old.message for run in difference.runs):  # both refuse a model, or the other one would be a change
        return f"Nothing changes {between} by the tables, and no release runs every model."
    if difference.runs:
        results = "the results are the same but for rounding"
        if not any(run.departures or any(row.max_abs for row in run.outputs.values()) for run in difference.runs):
            results = "all results are the same to the last bit"
        return f"Nothing changes {between} by the tables, and {results}."
    return f"Nothing changes {between} by the tables."


def circumstances(difference: ReleaseDifference) -> str:
    """Return what the tables were asked for: `target cuda, H100; float16 at level O2; the low model is ...`."""
    low = f"a conversion for {difference.old}" if difference.low is None else difference.low
    where = "" if difference.target == "cpu" else f", {difference.device}"
    return f"target {difference.target}{where}; {difference.dtype} at level {difference.level}; the low model is {low}"


def _changes_of_tables(difference: ReleaseDifference) -> Iterator[str]:
    if difference.placement:
        yield f"{_nodes(len(difference.placement), 'runs', 'run')} elsewhere"
    for count in difference.copies:
        yield f"copies between devices in the {_of(count.model)}, from {count.old} to {count.new}"
    for release in dict.fromkeys(fault.release for fault in difference.faults):
        faults = sum(fault.release == release for fault in difference.faults)
        yield f"{counted(faults, 'known fault')} that only {release} has"
    if difference.decisions:
        yield f"{_nodes(len(difference.decisions), 'is', 'are')} decided otherwise"


def _changes_of_run(run: RunDifference) -> Iterator[str]:
    for side, other in ((run.old, run.new), (run.new, run.old)):
        if side.message and not other.message:
            yield f"{side.release} does not {side.stage} the {_of(run.model)}"
    if not run.excess <= 1:
        largest = max((max(row.relative, row.mismatch) for row in run.outputs.values()), default=math.inf)
        yield f"an output of the {_of(run.model)} differs by {_share(largest)}"


def _nodes(count: int, singular: str, plural: str) -> str:
    return f"{counted(count, 'node')} {singular if count == 1 else plural}"


def _of(which: Which) -> str:
    return f"{which} model"


def _share(error: float) -> str:
    if math.isfinite(error):
        return percent(error)
    return "NaN" if math.isnan(error) else "infinite"


def placement_table(difference: ReleaseDifference) -> PageTable:
    """Return the nodes that run elsewhere."""
    columns: list[Column[PlacementChange]] = [
        Column("model", lambda row: row.model),
        Column("node", lambda row: row.node, code=True),
        Column("operator", lambda row: row.op),
        Column("body", lambda row: row.scope, lambda row: bool(row.scope)),
        Column(difference.old, lambda row: row.old),
        Column(difference.new, lambda row: row.new),
    ]
    return table_of("Where nodes run", columns, difference.placement)


def copy_lines(difference: ReleaseDifference, most: int = _NAMES) -> Iterator[str]:
    """Yield for each model whose copies change how many there are, and of which values."""
    for count in difference.copies:
        line = f"Copies between devices in the {_of(count.model)}: {count.old} in {difference.old}, "
        line += f"{count.new} in {difference.new}"
        for names, release in ((count.vanishing, difference.old), (count.appearing, difference.new)):
            if names:
                line += f"; only in {release}: {first_few([printable(name) for name in names], most)}"
        yield line


def faults_table(difference: ReleaseDifference) -> PageTable:
    """Return the known faults that only one release has."""
    columns: list[Column[FaultChange]] = [
        Column("only in", lambda row: row.release),
        Column("model", lambda row: row.model),
        Column("node", lambda row: row.node, lambda row: bool(row.node), code=True),
        Column("operator", lambda row: row.op, lambda row: bool(row.op)),
        Column("body", lambda row: row.scope, lambda row: bool(row.scope)),
        Column("kind", lambda row: row.table),
        Column("what happens", lambda row: row.fault, kind=lambda _: "words"),
    ]
    return table_of("Known faults", columns, difference.faults)


def decisions_table(difference: ReleaseDifference) -> PageTable:
    """Return the nodes that conversions decide otherwise."""
    columns: list[Column[DecisionChange]] = [
        Column("node", lambda row: row.node, code=True),
        Column("operator", lambda row: row.op),
        Column("body", lambda row: row.scope, lambda row: bool(row.scope)),
        Column(difference.old, lambda row: row.old or "no such node"),
        Column(difference.new, lambda row: row.new or "no such node"),
        Column("why", _why, kind=lambda _: "words"),
    ]
    return table_of("Decisions", columns, difference.decisions)


def _why(row: DecisionChange) -> str:
    """Return the reason of what keeps a node float32; both reasons where that does not tell which counts."""
    if row.old == "float32" and row.new:
        return row.old_reason
    if row.new == "float32" and row.old:
        return row.new_reason
    return "; ".join(reason for reason in (row.old_reason, row.new_reason) if reason)


def run_title(run: RunDifference) -> str:
    """Return which model ran, where, and on what."""
    samples = counted(run.samples, "sample" if run.given else "made-up sample")
    where = f", {run.provider}" if run.provider else ""
    return f"The {_of(run.model)} in {run.old.release} and {run.new.release}{where}, {samples}"


def run_lines(run: RunDifference) -> Iterator[str]:
    """Yield what each release refused, and what else the user should know of a run."""
    yield from (_refusal(side) for side in (run.old, run.new) if side.message)
    if not run.old.message and not run.new.message and not run.operators:
        yield "The optimized graphs have the same operators."
    if run.outputs and not run.departures:
        yield "All results of nodes that could be compared are the same to the last bit."
    yield from run.notes


def _refusal(side: ReleaseRun) -> str:
    return f"{side.release} does not {side.stage} it: {side.message}"


def operators_table(run: RunDifference) -> PageTable:
    """Return the operators of which the optimized graphs have other numbers."""
    columns: list[Column[OperatorCount]] = [
        Column("operator", lambda row: row.op),
        Column(run.old.release, lambda row: str(row.old), key=lambda row: row.old),
        Column(run.new.release, lambda row: str(row.new), key=lambda row: row.new),
    ]
    return table_of("Operators of the optimized graphs", columns, run.operators)


def fusions_table(run: RunDifference) -> PageTable:
    """Return the nodes of only one optimized graph that stand for nodes of the model."""
    columns: list[Column[Fusion]] = [
        Column("only in", lambda row: row.release),
        Column("operator", lambda row: row.op),
        Column("result", lambda row: row.value, code=True),
        Column("nodes of the model", lambda row: first_few(row.nodes, _NAMES), more=lambda row: row.nodes[_NAMES:]),
    ]
    return table_of("Fusions", columns, run.fusions)


def departures_table(run: RunDifference) -> PageTable:
    """Return where results part."""
    columns: list[Column[ReleaseDeparture]] = [
        Column("sessions", lambda row: "with optimizations" if row.optimized else "without optimizations"),
        Column("first result that differs", lambda row: "by rounding" if row.rounding else "beyond rounding"),
        Column("node", lambda row: row.node, code=True),
        Column("operator", lambda row: row.op),
        Column("differs by", lambda row: _share(row.error), key=lambda row: row.error),
    ]
    return table_of("Where results part", columns, run.departures)


def release_text(difference: ReleaseDifference) -> RenderableType:
    """Return the differences for `rich` to print."""
    parts: list[RenderableType] = []
    for title, table in (
        ("run elsewhere", placement_table(difference)),
        ("known faults", faults_table(difference)),
        ("decided otherwise", decisions_table(difference)),
    ):
        parts += _titled(title, table)
    parts += [Text(f"\n{line}") for line in copy_lines(difference)]
    for run in difference.runs:
        parts += _run_parts(run)
    if difference.not_run:
        parts.append(Text(f"\nNothing ran: {printable(difference.not_run)}."))
    parts += [Text(f"note: {printable(note)}") for note in difference.notes]
    headline = Text(printable(answer(difference)), style="bold")
    return Group(
        headline,
        Text(printable(circumstances(difference)), style="dim"),
        Padding(Group(*parts), (0, 0, 0, 2), expand=False),
    )


def _run_parts(run: RunDifference) -> Iterator[RenderableType]:
    yield Text(f"\n{run_title(run)}", style="bold")
    for line in run_lines(run):
        yield Text(printable(line))
    if run.outputs:
        yield outputs_text(outputs_worst_first(run.outputs.values()))
    for title, table in (
        ("where results part", departures_table(run)),
        ("operators of the optimized graphs", operators_table(run)),
        ("fusions of only one release", fusions_table(run)),
    ):
        yield from _titled(title, table)


def _titled(title: str, table: PageTable) -> Iterator[RenderableType]:
    """Yield a table with its title and as many rows as the terminal shows; nothing if it has none."""
    if not table.rows:
        return
    yield Text(f"\n{title}", style="bold")
    shown = table.rows if len(table.rows) <= _SHOWN + 1 else table.rows[:_SHOWN]
    yield text_table(dataclasses.replace(table, rows=shown))
    if len(shown) < len(table.rows):
        yield Text(f"and {len(table.rows) - len(shown)} more (--json and --report have them all)", style="dim")
