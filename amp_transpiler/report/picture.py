"""Draws a converted graph: a level for each scope, whose boxes are nodes and inner scopes.

Each level is a separate SVG picture of at most some forty boxes, however large the graph is. A reader opens scopes
one by one, without a script. The colours are the page's.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TypeAlias

from amp_transpiler.graph.walk import scopes
from amp_transpiler.program.program import Program
from amp_transpiler.report.record import ReportRecord
from amp_transpiler.report.table import printable
from amp_transpiler.report.wording import human_time, percent
from amp_transpiler.report.worst import squared_error_shares
from amp_transpiler.view.groups import Group, grouped
from amp_transpiler.view.layout import lay_out
from amp_transpiler.view.outline import Outline, OutlineNode, outline

__all__ = ["HEATS", "Heats", "Level", "NodeFacts", "drawn_levels", "graphs_of", "levels_of"]

Heats: TypeAlias = Sequence[tuple[float, str]]
"""Numbers from which on a box has the hottest colour, the next one, ..., and their names: four of them."""

MOST_NODES = 6000
"""Nodes of a graph that is drawn; a larger one is not."""

HEATS = ((0.3, "30%"), (0.1, "10%"), (0.03, "3%"), (0.003, "0.3%"))
"""Shares of the squared error that colour a report's graph."""

_ROW, _GAP, _EDGE, _HEIGHT = 62.0, 14.0, 12.0, 38.0
_LETTER, _SMALL_LETTER = 7.2, 6.0
_LABEL = 26
_VALUES = 12  # inputs, and outputs, that the outermost level shows
_KINDS = ("low", "high", "cast", "untouched")


@dataclasses.dataclass(frozen=True, slots=True)
class Level:
    """Shows a scope of the graph.

    Attributes:
        anchor: where links lead to.
        title: its name.
        summary: what it holds, in words.
        svg: its picture.
        levels: the scopes in it.
    """

    anchor: str
    title: str
    summary: str
    svg: str
    levels: tuple[Level, ...]


def graphs_of(program: Program) -> tuple[tuple[str, Outline], ...]:
    """Return the graph of a program and every body in it, each with its path, without weights and constants."""
    graphs = [(scope.path, scope.graph) for scope in scopes(program.model)]
    if sum(len(graph) for _, graph in graphs) > MOST_NODES:
        return ()
    held, outputs = program.persistables, program.outputs
    return tuple((path, _drawn(outline(graph, held, () if path else outputs))) for path, graph in graphs)


def _drawn(graph: Outline) -> Outline:
    """Return a graph without its constants: beside the nodes that read them they say nothing."""
    nodes = tuple(node for node in graph.nodes if node.operator != "Constant")
    return dataclasses.replace(graph, nodes=nodes)


def levels_of(report: ReportRecord, prefix: str) -> tuple[Level, ...]:
    """Return the levels of the converted graph and of its bodies; none if it is too large, or gone.

    Args:
        report: the report.
        prefix: begins every anchor, so that several models can be on one page.
    """
    graphs = report.graphs or (() if report.program is None else graphs_of(report.program))
    rows = report.decisions
    facts = NodeFacts(
        words={row.name: row.reason for row in rows},
        anchors={row.name: f"{prefix}n{index}" for index, row in enumerate(rows)},
        milliseconds={row.name: row.milliseconds for row in rows if row.milliseconds is not None},
        errors=squared_error_shares(rows),
        total=sum,
        error_words=lambda share: f"{percent(share)} of the squared error",
        heats=HEATS,
    )
    return drawn_levels(graphs, facts, prefix)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Holds what a picture says of nodes, by their names.

    Attributes:
        words: a line that the title of a node's box has.
        anchors: where its box leads to.
        milliseconds: its time.
        errors: the number that colours its box.
        total: makes one such number of those of several nodes.
        error_words: says what such a number is.
        heats: from which number on a box has which colour.
        marks: further classes of its box, and of those of the scopes that it is in.
    """

    words: Mapping[str, str]
    anchors: Mapping[str, str]
    errors: Mapping[str, float]
    total: Callable[[Iterable[float]], float]
    error_words: Callable[[float], str]
    heats: Heats
    milliseconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    marks: Mapping[str, str] = dataclasses.field(default_factory=dict)


def drawn_levels(graphs: Iterable[tuple[str, Outline]], facts: NodeFacts, prefix: str) -> tuple[Level, ...]:
    """Return the levels of some graphs.

    Args:
        graphs: each with its path, as `graphs_of` returns them.
        facts: what is known about their nodes.
        prefix: begins every anchor.
    """
    return tuple(
        _Drawing(graph, facts, f"{prefix}g{number}").level(grouped(graph, path or "the graph"))
        for number, (path, graph) in enumerate(graphs)
        if graph.nodes
    )


@dataclasses.dataclass(slots=True)
class _Sum:
    """Sums up what is known about the nodes of a box."""

    kinds: collections.Counter[str]
    error: float | None
    error_words: str
    milliseconds: float | None
    marks: str

    def words(self, dtype: str) -> str:
        """Return `12 nodes: 10 float16, 2 float32; 40% of the squared error`."""
        casts = "cast" if self.kinds["cast"] == 1 else "casts"
        names = {"low": dtype, "high": "float32", "cast": casts, "untouched": "unchanged"}
        total = self.kinds.total()
        parts = ", ".join(f"{self.kinds[kind]} {name}" for kind, name in names.items() if self.kinds[kind])
        text = f"{total} node{'' if total == 1 else 's'}: {parts}"
        if self.error_words:
            text += f"; {self.error_words}"
        if self.milliseconds is None:
            return text
        return f"{text}; {human_time(self.milliseconds)}{'' if total == 1 else ', each by itself'}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Box:
    label: str
    small: str
    title: str
    kind: str
    link: str = ""
    heat: int = 0
    kinds: tuple[tuple[str, int], ...] = ()  # of a group: how many nodes of each kind
    marks: str = ""

    @property
    def width(self) -> float:
        return max(60.0, _LETTER * len(self.label) + 18, _SMALL_LETTER * len(self.small) + 18)


@dataclasses.dataclass(frozen=True, slots=True)
class _Edge:
    source: int
    target: int
    value: str


class _Drawing:
    """Draws one graph."""

    def __init__(self, graph: Outline, facts: NodeFacts, anchor: str) -> None:
        self._graph, self._facts, self._anchor = graph, facts, anchor
        self._count = 0
        self._dtype = next((n.precision for n in graph.nodes if _kind(n) == "low"), "lower precision")
        makers: dict[str, int] = {}
        self._edges: list[_Edge] = []
        for index, node in enumerate(graph.nodes):
            self._edges += [_Edge(makers[value], index, value) for value in node.inputs if value in makers]
            makers.update(dict.fromkeys(node.outputs, index))
        self._makers = makers

    def level(self, group: Group, edges: Sequence[_Edge] | None = None) -> Level:
        """Return the level of a group, and those in it.

        Args:
            group: its nodes.
            edges: those between its nodes; None: this is the outermost level.
        """
        outermost, edges = edges is None, self._edges if edges is None else edges
        anchor = f"{self._anchor}-{self._count}"
        self._count += 1
        member_of = {node: place for place, member in enumerate(group.members) for node in _nodes(member)}
        inside: dict[int, list[_Edge]] = collections.defaultdict(list)
        between: dict[tuple[int, int], list[str]] = collections.defaultdict(list)
        for edge in edges:
            source, target = member_of[edge.source], member_of[edge.target]
            if source == target:
                inside[source].append(edge)
            else:
                between[source, target].append(edge.value)
        levels = {
            place: self.level(member, inside[place])
            for place, member in enumerate(group.members)
            if isinstance(member, Group)
        }
        boxes = [
            self._node_box(member) if isinstance(member, int) else self._group_box(member, levels[place])
            for place, member in enumerate(group.members)
        ]
        if outermost:
            boxes, between = self._with_values(boxes, between, member_of)
        svg = _svg(boxes, {ends: self._edge_words(values) for ends, values in between.items()}, group.title)
        return Level(anchor, group.title, self._sum(group.nodes).words(self._dtype), svg, tuple(levels.values()))

    def _with_values(
        self, boxes: list[_Box], between: Mapping[tuple[int, int], list[str]], member_of: Mapping[int, int]
    ) -> tuple[list[_Box], dict[tuple[int, int], list[str]]]:
        """Put boxes for the first inputs of the graph before the others, and for its first outputs behind them."""
        readers: dict[str, set[int]] = {}
        for index, node in enumerate(self._graph.nodes):
            for value in node.inputs:
                readers.setdefault(value, set()).add(member_of[index])
        inputs = [value for value in self._graph.inputs if value in readers][:_VALUES]
        outputs = [value for value in self._graph.outputs if value in self._makers][:_VALUES]
        more = len(inputs)
        shifted = {(source + more, target + more): values for (source, target), values in between.items()}
        for place, value in enumerate(inputs):
            shifted.update({(place, reader + more): [value] for reader in sorted(readers[value])})
        for place, value in enumerate(outputs, more + len(boxes)):
            shifted[member_of[self._makers[value]] + more, place] = [value]
        ends = [[self._value_box(value, what) for value in some] for some, what in ((inputs, "in"), (outputs, "out"))]
        return [*ends[0], *boxes, *ends[1]], shifted

    def _value_box(self, value: str, what: str) -> _Box:
        kind = self._graph.types.get(value, "?")
        return _Box(_cut(value), kind.partition("[")[0], f"{what}put {value}: {kind}", "value")

    def _node_box(self, index: int) -> _Box:
        node = self._graph.nodes[index]
        outputs = [f"{value}: {self._graph.types.get(value, '?')}" for value in node.outputs]
        types = [self._graph.types.get(value, "?").partition("[")[0] for value in node.outputs]
        label = node.operator.rpartition("::")[2]
        if node.precision == "cast":
            small = f"to {types[0]}" if types else "cast"
        else:
            small = node.precision or next(iter(types), "")
        said = self._facts.words.get(node.name)
        words = [f"{node.operator} {node.name}", *([said] if said is not None else []), *outputs]
        total = self._sum((index,))
        if total.error_words:
            words.append(total.error_words)
        link = self._facts.anchors.get(node.name, "")
        return _Box(_cut(label), small, "\n".join(words), _kind(node), link, self._heat(total.error), marks=total.marks)

    def _group_box(self, group: Group, level: Level) -> _Box:
        total = self._sum(group.nodes)
        kinds = tuple((kind, total.kinds[kind]) for kind in _KINDS if total.kinds[kind])
        small = f"{len(group.nodes)} nodes, {total.kinds['low']} low"
        title = f"{group.title}\n{level.summary}"
        heat = self._heat(total.error)
        return _Box(_cut(group.title), small, title, "group", level.anchor, heat, kinds, total.marks)

    def _sum(self, nodes: Iterable[int]) -> _Sum:
        chosen = [self._graph.nodes[index] for index in nodes]
        facts, names = self._facts, [node.name for node in chosen]
        times = [facts.milliseconds[name] for name in names if name in facts.milliseconds]
        errors = [facts.errors[name] for name in names if name in facts.errors]
        error = facts.total(errors) if errors else None
        return _Sum(
            collections.Counter(map(_kind, chosen)),
            error,
            "" if error is None else facts.error_words(error),
            sum(times) if times else None,
            " ".join(sorted({facts.marks[name] for name in names if name in facts.marks})),
        )

    def _heat(self, error: float | None) -> int:
        """Return how hot a box is: 0 without any error, up to one more than there are bounds."""
        if not error:
            return 0
        return 1 + sum(error >= bound for bound, _ in self._facts.heats)

    def _edge_words(self, values: Sequence[str]) -> tuple[str, str]:
        """Return the colour of an edge, and what it carries."""
        types = [self._graph.types.get(value, "?") for value in values]
        more = f" and {len(values) - 1} more" if len(values) > 1 else ""
        kinds = {text.partition("[")[0] for text in types}
        without_high = "low" if kinds & {"float16", "bfloat16"} else "other"
        colour = "high" if "float32" in kinds else without_high
        return colour, f"{values[0]}: {types[0]}{more}"


def _nodes(member: int | Group) -> Iterable[int]:
    return (member,) if isinstance(member, int) else member.nodes


def _kind(node: OutlineNode) -> str:
    if node.precision in ("cast", "float32"):
        return "cast" if node.precision == "cast" else "high"
    return "low" if node.precision else "untouched"


def _cut(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _LABEL else f"…{text[1 - _LABEL :]}"


# ---- SVG ----
def _svg(boxes: Sequence[_Box], edges: Mapping[tuple[int, int], tuple[str, str]], title: str) -> str:
    ends = [(min(pair), max(pair)) for pair in edges]
    layout = lay_out([box.width for box in boxes], ends, _ROW, _GAP)
    width, height = layout.width + 2 * _EDGE, layout.height + 2 * _EDGE
    label = escape(printable(f"picture of {title}"))
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    moved = f'<g transform="translate({_EDGE:.0f} {_EDGE:.0f})">'
    parts = [f'<svg class="graph" role="group" aria-label="{label}" {size}>{moved}']
    for ((source, target), (kind, words)), points in zip(edges.items(), layout.edges, strict=True):
        back = " back" if source > target else ""
        parts.append(f'<path class="edge {kind}{back}" d="{_path(points)}"><title>{_text(words)}</title></path>')
    for box, (x, y) in zip(boxes, layout.places, strict=True):
        parts.extend(_box(box, x, y))
    return "".join([*parts, "</g></svg>"])


def _box(box: _Box, x: float, y: float) -> Iterator[str]:
    left, top = x - box.width / 2, y - _HEIGHT / 2
    heat = f" e{box.heat}" if box.heat else ""
    marks = f" {box.marks}" if box.marks else ""
    if box.link:
        yield f'<a href="#{box.link}">'
    radius = {"value": _HEIGHT / 2, "group": 8.0}.get(box.kind, 3.0)
    yield f'<g class="box {box.kind}{heat}{marks}"><title>{_text(box.title)}</title>'
    yield f'<rect x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{_HEIGHT:.0f}" rx="{radius:.0f}"/>'
    yield f'<text x="{x:.1f}" y="{y - 2:.1f}">{_text(box.label)}</text>'
    yield f'<text class="small" x="{x:.1f}" y="{y + 11:.1f}">{_text(box.small)}</text>'
    yield from _bar(box, left + 8, top + _HEIGHT - 5, box.width - 16)
    yield "</g></a>" if box.link else "</g>"


def _bar(box: _Box, left: float, top: float, width: float) -> Iterator[str]:
    """Yield a thin bar: the nodes of a group by their precision."""
    total = sum(count for _, count in box.kinds)
    for kind, count in box.kinds:
        part = width * count / total
        yield f'<rect class="bar {kind}" x="{left:.1f}" y="{top:.1f}" width="{part:.1f}" height="3"/>'
        left += part


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return a curve that leaves and enters every point vertically."""
    (x, y), *rest = points
    y += _HEIGHT / 2
    parts = [f"M{x:.0f} {y:.0f}"]
    for index, (to_x, at) in enumerate(rest):
        to_y = at - (_HEIGHT / 2 if index == len(rest) - 1 else 0)
        middle = (y + to_y) / 2
        parts.append(f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}")
        x, y = to_x, to_y
    return "".join(parts)


def _text(text: str) -> str:
    return "&#10;".join(escape(printable(line)) for line in text.split("\n"))
