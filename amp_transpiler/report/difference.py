"""Shows two models side by side: the record of `amp-transpile diff`, and its tables."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from amp_transpiler.phrases import first_few
from amp_transpiler.report.page_table import Cell, Column, PageTable, table_of
from amp_transpiler.report.record import OutputComparison
from amp_transpiler.report.sections import outputs_table
from amp_transpiler.report.table import human_bytes, outputs_text, outputs_worst_first, printable
from amp_transpiler.report.text_table import text_table
from amp_transpiler.report.wording import human_time

__all__ = ["Difference", "ModelFacts", "NodeDifference", "difference_page", "difference_text"]

_SHOWN = 12  # rows of a table in the terminal
_NAMES = 6

Counts = Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Describes a model in numbers.

    Attributes:
        source: its path.
        opset: its ONNX opset.
        precisions: precision -> nodes that have it; `cast`: casts between floats; empty text: no floats.
        operators: operator -> precision -> nodes.
        weight_bytes: bytes of its weights.
        file_bytes: bytes of its files; None if it is not on disk.
        milliseconds: predicted time of a run.
        launches: predicted kernels of a run.
    """

    source: str
    opset: int
    precisions: Counts
    operators: Mapping[str, Counts]
    weight_bytes: int
    file_bytes: int | None
    milliseconds: float
    launches: int

    @property
    def nodes(self) -> int:
        """The number of its nodes, bodies included."""
        return sum(self.precisions.values())

    @property
    def casts(self) -> int:
        """The number of its casts between floats."""
        return self.precisions.get("cast", 0)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeDifference:
    """A node that both models have, in two precisions.

    Attributes:
        name: its name.
        op: its operator.
        first, second: its precision in either.
        scope: the path of the enclosing bodies, empty in the main graph.
    """

    name: str
    op: str
    first: str
    second: str
    scope: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Compares two models.

    Attributes:
        first, second: both in numbers.
        device: the device that times are predicted for.
        nodes: nodes that both have, whose precision differs.
        only_first, only_second: names of nodes that only one of them has, without casts.
        outputs: output -> the second model's against the first one's; empty if nothing was compared.
        compared: on what the outputs were compared, or why they were not.
    """

    first: ModelFacts
    second: ModelFacts
    device: str
    nodes: tuple[NodeDifference, ...] = ()
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    outputs: Mapping[str, OutputComparison] = dataclasses.field(default_factory=dict)
    compared: str = ""

    @property
    def titles(self) -> tuple[str, str]:
        """How tables call the models: the ends of their paths, as short as they differ."""
        paths = [pathlib.PurePath(model.source).parts for model in (self.first, self.second)]
        for count in range(1, max(map(len, paths)) + 1):
            names = [str(pathlib.PurePath(*parts[-count:])) for parts in paths]
            if names[0] != names[1]:
                return names[0], names[1]
        return "first", "second"


def facts_table(difference: Difference) -> PageTable:
    """Return the numbers of both models, a row each."""
    first, second = difference.first, difference.second
    words = {"cast": "casts between floats", "": "without floats"}
    kinds = sorted({*first.precisions, *second.precisions}, key=lambda kind: (kind in words, kind))
    rows = [("nodes", str(first.nodes), str(second.nodes))]
    for kind in kinds:
        counts = [str(model.precisions.get(kind, 0)) for model in (first, second)]
        rows.append((words.get(kind, f"in {kind}"), counts[0], counts[1]))
    rows += [
        ("opset", str(first.opset), str(second.opset)),
        ("weights", human_bytes(first.weight_bytes), _beside(human_bytes, first.weight_bytes, second.weight_bytes)),
        ("files", human_bytes(first.file_bytes), _beside(human_bytes, first.file_bytes, second.file_bytes)),
        ("launches", str(first.launches), _beside(str, first.launches, second.launches)),
        (
            f"predicted time on {difference.device}",
            human_time(first.milliseconds),
            _beside(human_time, first.milliseconds, second.milliseconds),
        ),
    ]
    cells = tuple((Cell(name), Cell(before, "n"), Cell(after, "n")) for name, before, after in rows)
    return PageTable("The models", (("", ""), *((title, "n") for title in difference.titles)), cells)


def _beside(text: Callable[[Any], str], first: float | None, second: float | None) -> str:
    change = f"{second / first - 1:+.0%}" if first and second is not None else "+0%"
    return text(second) if change in ("+0%", "-0%") else f"{text(second)} ({change})"


def operators_table(difference: Difference) -> PageTable:
    """Return the operators whose numbers or precisions differ, the most frequent first."""
    first, second = difference.first.operators, difference.second.operators
    differing = [op for op in {*first, *second} if first.get(op, {}) != second.get(op, {})]
    most = {op: max(sum(side.get(op, {}).values()) for side in (first, second)) for op in differing}
    titles = difference.titles
    columns: list[Column[str]] = [
        Column("operator", lambda op: op),
        Column(titles[0], lambda op: _counted(first.get(op, {}))),
        Column(titles[1], lambda op: _counted(second.get(op, {}))),
    ]
    return table_of("Operators that differ", columns, sorted(differing, key=lambda op: (-most[op], op)))


def _counted(counts: Counts) -> str:
    """Return `12 float16, 3 float32, 1`; of what has no floats there is only a number."""
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    words = {"cast": "between floats"}
    return ", ".join(f"{count} {words.get(kind, kind)}".rstrip() for kind, count in order) or "-"


def nodes_difference_table(difference: Difference) -> PageTable:
    """Return the nodes that both models have, in two precisions."""
    titles = difference.titles
    columns: list[Column[NodeDifference]] = [
        Column("node", lambda node: node.name, code=True),
        Column("operator", lambda node: node.op),
        Column("body", lambda node: node.scope, lambda node: bool(node.scope)),
        Column(titles[0], lambda node: node.first or "no floats"),
        Column(titles[1], lambda node: node.second or "no floats"),
    ]
    return table_of("Nodes in two precisions", columns, difference.nodes)


def difference_text(difference: Difference) -> RenderableType:
    """Return the difference for `rich` to print."""
    parts: list[RenderableType] = [text_table(facts_table(difference))]
    for title, table in (
        ("operators that differ", operators_table(difference)),
        ("nodes in two precisions", nodes_difference_table(difference)),
    ):
        if table.rows:
            parts += [Text(f"\n{len(table.rows)} {title}", style="bold"), *_some(table)]
    if lines := list(_only_in_one(difference, _NAMES)):
        parts.append(Text("\n" + "\n".join(lines)))
    parts.append(Text(f"\noutputs: {printable(difference.compared)}", style="bold"))
    if difference.outputs:
        parts.append(outputs_text(outputs_worst_first(difference.outputs.values())))
    return Padding(Group(*parts), (0, 0, 0, 2), expand=False)


def _some(table: PageTable) -> Iterator[RenderableType]:
    shown = table.rows if len(table.rows) <= _SHOWN + 1 else table.rows[:_SHOWN]
    yield text_table(dataclasses.replace(table, rows=shown))
    if len(shown) < len(table.rows):
        yield Text(f"and {len(table.rows) - len(shown)} more (--json and --report have them all)", style="dim")


def _only_in_one(difference: Difference, most: int | None) -> Iterator[str]:
    """Yield which nodes only one of the models has."""
    for title, names in zip(difference.titles, (difference.only_first, difference.only_second), strict=True):
        if names:
            yield f"{len(names)} only in {printable(title)}: {first_few([*map(printable, names)], most or len(names))}"


def difference_page(difference: Difference) -> str:
    """Return the difference as a whole HTML document."""
    from amp_transpiler.report.as_html import render

    return render(
        "difference.html",
        title=f"amp-transpile diff: {' and '.join(difference.titles)}",
        heading=" and ".join(difference.titles),
        difference=difference,
        facts=facts_table(difference),
        operators=operators_table(difference),
        nodes=nodes_difference_table(difference),
        alone=list(_only_in_one(difference, 200)),
        outputs=outputs_table(difference.outputs.values()),
    )
