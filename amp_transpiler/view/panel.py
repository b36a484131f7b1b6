"""Boxes and edges of a drawing, whatever draws them: a panel shows one outline."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal, TypeAlias

from amp_transpiler.errors import visible
from amp_transpiler.view.outline import Outline, OutlineNode

__all__ = ["COLOURS", "LEGEND", "Box", "BoxKind", "Edge", "Panel", "panel_of"]

BoxKind: TypeAlias = Literal["low", "float32", "cast", "other", "value"]

COLOURS: dict[BoxKind, tuple[str, str]] = {  # fill, stroke
    "low": ("#b7e1cd", "#1b7f4d"),
    "float32": ("#ffffff", "#556070"),
    "cast": ("#ffd08a", "#b36b00"),
    "other": ("#eceff1", "#90a0aa"),
    "value": ("#f7f3ff", "#8a7fb0"),
}
LEGEND: dict[BoxKind, str] = {
    "low": "lower precision",
    "float32": "float32",
    "cast": "cast between floats",
    "other": "no floats",
    "value": "input or output",
}
_LABEL = 28  # characters of a label
_NAME = 120


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """A box: a node, an input or an output.

    Attributes:
        label: the text in it.
        title: what shows when the pointer is on it.
        kind: its colour.
        dashed: a region keeps it in its own precision.
    """

    label: str
    title: str
    kind: BoxKind
    dashed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
    """A value on its way from one box to another; `kind` is its colour."""

    source: int
    target: int
    title: str
    kind: BoxKind


@dataclasses.dataclass(frozen=True, slots=True)
class Panel:
    """One graph of a drawing: its boxes in an order of execution, and its edges."""

    title: str
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def panel_of(name: str, outline: Outline, limit: int | None = None) -> Panel:
    """Return the panel of an outline.

    Args:
        name: `before` or `after`.
        outline: what to draw.
        limit: the most nodes; the first ones are drawn.
    """
    nodes = outline.nodes if limit is None else outline.nodes[:limit]
    read = {value for node in nodes for value in node.inputs}
    boxes = [_value_box(value, outline, "input") for value in outline.inputs if value in read]
    makers = {value: index for index, value in enumerate(v for v in outline.inputs if v in read)}
    edges: list[Edge] = []
    for node in nodes:
        edges += _edges(node.inputs, len(boxes), makers, outline)
        makers |= dict.fromkeys(node.outputs, len(boxes))
        boxes.append(_node_box(node, outline))
    for value in outline.outputs:
        if value in makers:
            edges += _edges((value,), len(boxes), makers, outline)
            boxes.append(_value_box(value, outline, "output"))
    return Panel(f"{name}: {_summary(outline, len(nodes))}", tuple(boxes), tuple(edges))


def _edges(values: tuple[str, ...], target: int, makers: dict[str, int], outline: Outline) -> Iterator[Edge]:
    for value in values:
        if value in makers:
            kind = outline.types.get(value, "?")
            colour: BoxKind = "low" if kind.startswith(("float16", "bfloat16")) else "float32"
            yield Edge(makers[value], target, f"{visible(value, _NAME)}: {kind}", colour)


def _node_box(node: OutlineNode, outline: Outline) -> Box:
    output_lines = [f"{visible(value, _NAME)}: {outline.types.get(value, '?')}" for value in node.outputs]
    remark = node.precision or "no floats"
    title = "\n".join(
        [f"{node.operator} {visible(node.name, _NAME)}", remark, *([node.marks] if node.marks else []), *output_lines]
    )
    label = visible(node.operator.rpartition("::")[2], _LABEL)
    if node.precision == "cast":
        label = f"Cast to {outline.types.get(node.outputs[0], '?').partition('[')[0]}" if node.outputs else label
    return Box(label, title, _kind(node), "in disable_amp" in node.marks)


def _kind(node: OutlineNode) -> BoxKind:
    if node.precision in ("cast", "float32"):
        return "cast" if node.precision == "cast" else "float32"
    return "low" if node.precision else "other"


def _value_box(value: str, outline: Outline, what: str) -> Box:
    return Box(visible(value, _LABEL), f"{what} {visible(value, _NAME)}: {outline.types.get(value, '?')}", "value")


def _summary(outline: Outline, shown: int) -> str:
    low = sum(_kind(node) == "low" for node in outline.nodes)
    casts = sum(node.precision == "cast" for node in outline.nodes)
    cut = f", the first {shown} drawn" if shown < len(outline.nodes) else ""
    return f"{len(outline.nodes)} nodes, {low} in lower precision, {casts} casts{cut}"
