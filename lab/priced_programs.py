"""The programs that a device timed, as compact lists of what ran: a line for nodes that ask the same of the device.

A line: `count | operator | attributes | operands -> results`. An operand is a type with sizes, `float16[4096,768]`,
with `*32` behind it for 32 alike, `={-1}` for a constant of whole numbers, and `!` before it where the node overwrites
it.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.cost import NodeCost, traffic
from amp_transpiler.cost.operators import SCATTERS, in_place
from amp_transpiler.cost.shapes import Sizes, sizes_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.walk import all_nodes

__all__ = ["LISTS", "Line", "costs_of_lines", "lines_of", "parse_lines"]

LISTS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "prices"
_MOST_NUMBERS = 16  # of a constant that a line spells
_OPERAND = re.compile(
    r"(?P<scratch>!?)(?P<type>\w+)\[(?P<shape>[\d,]*)\](?P<numbers>=\{[-\d,]*\})?(\*(?P<alike>\d+))?$"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Nodes that ask the same of the device.

    Attributes:
        count: how many.
        op_type: their operator, `domain::name` outside ONNX's own domain.
        attributes: of numbers and text, as JSON.
        operands: in the form above, `-` for one that is left out.
        results: in the same form.
    """

    count: int
    op_type: str
    attributes: str
    operands: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        values = f"{' '.join(_alike(self.operands))} -> {' '.join(_alike(self.results))}"
        return f"{self.count} | {self.op_type} | {self.attributes} | {values}"


# ---- from a graph that ONNX Runtime optimized ----
def lines_of(models: Iterable[ir.Model]) -> list[Line]:
    """Return the lines of the graphs of one program, without nodes that ask nothing of the device."""
    counts: collections.Counter[Line] = collections.Counter()
    for model in models:
        sizes = sizes_of(model)
        working = {cost.node for cost in traffic(model) if cost.kernels}
        for node in all_nodes(model):
            if node in working:
                counts[_line(node, sizes)] += 1
    return [
        dataclasses.replace(line, count=count) for line, count in sorted(counts.items(), key=lambda row: str(row[0]))
    ]


def _line(node: ir.Node, sizes: Sizes) -> Line:
    attributes = {
        name: attribute.value
        for name, attribute in node.attributes.items()
        if isinstance(attribute.value, int | str) or _is_numbers(attribute.value)
    }
    operands = [_operand(value, sizes) for value in node.inputs]
    if node.op_type in SCATTERS and in_place(node):
        operands[0] = f"!{operands[0]}"
    domain = f"{node.domain}::" if node.domain else ""
    results = tuple(_operand(value, sizes) for value in node.outputs)
    return Line(1, domain + node.op_type, json.dumps(attributes, sort_keys=True), tuple(operands), results)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(number, int) for number in value)


def _operand(value: ir.Value | None, sizes: Sizes) -> str:
    dtype, shape = sizes.dtype(value), sizes.shape(value)
    if value is None or not value.name or dtype is None or shape is None:
        return "-"
    text = f"{dtype.name.lower()}[{','.join(map(str, shape))}]"
    constant = constant_of(value)
    if constant is not None and dtype == ir.DataType.INT64 and constant.size <= _MOST_NUMBERS:
        text += f"={{{','.join(map(str, constant.numpy().reshape(-1).tolist()))}}}"
    return text


def _alike(values: Sequence[str]) -> list[str]:
    groups = ((value, len(list(alike))) for value, alike in itertools.groupby(values))
    return [value if count == 1 else f"{value}*{count}" for value, count in groups]


# ---- back to a graph ----
def parse_lines(texts: Iterable[str]) -> list[Line]:
    """Return the lines that a file spells.

    Raises:
        ValueError: a line has another form.
    """
    lines = []
    for number, text in enumerate(texts, start=1):
        if not text.strip() or text.startswith("#"):
            continue
        cells = [cell.strip() for cell in text.split(" | ")]
        if len(cells) != 4 or " -> " not in f" {cells[3]} ":
            raise ValueError(f"line {number}: {text!r}; expected count | operator | attributes | operands -> results")
        operands, _, results = f" {cells[3]} ".partition(" -> ")
        lines.append(Line(int(cells[0]), cells[1], cells[2], _listed(operands), _listed(results)))
    return lines


def _listed(text: str) -> tuple[str, ...]:
    listed: list[str] = []
    for word in text.split():
        value, _, count = word.partition("*")
        listed.extend([value] * int(count or 1))
    return tuple(listed)


def costs_of_lines(lines: Sequence[Line], *, tf32: bool = True) -> list[tuple[int, NodeCost]]:
    """Return how often each node runs, with its cost: those of a graph that has each node once, with its own inputs."""
    parts, nodes = _Parts([], [], []), list[ir.Node]()
    for index, line in enumerate(lines):
        operands = [_value(text, f"i{index}_{place}", parts) for place, text in enumerate(line.operands)]
        domain, _, op_type = line.op_type.rpartition("::")
        attributes = [_attribute(name, value) for name, value in json.loads(line.attributes).items()]
        node = ir.Node(domain, op_type, operands, attributes, num_outputs=len(line.results))
        for place, (value, text) in enumerate(zip(node.outputs, line.results, strict=True)):
            _describe(value, text, f"o{index}_{place}")
        nodes.append(node)
    graph = ir.Graph(
        parts.inputs,
        [],
        nodes=[*parts.makers, *nodes],
        initializers=parts.constants,
        opset_imports={"": 20, "com.microsoft": 1},
        name="lines",
    )
    costs = {cost.node: cost for cost in traffic(ir.Model(graph, ir_version=10), tf32=tf32)}
    return [(line.count, costs[node]) for line, node in zip(lines, nodes, strict=True)]


@dataclasses.dataclass(frozen=True, slots=True)
class _Parts:
    """Where the operands of a graph come from."""

    inputs: list[ir.Value]
    constants: list[ir.Value]
    makers: list[ir.Node]


def _value(text: str, name: str, parts: _Parts) -> ir.Value | None:
    if text == "-":
        return None
    operand = _OPERAND.match(text)
    if operand is None:
        raise ValueError(f"{text!r} is no operand: expected a type with sizes, such as float16[4096,768]")
    value = ir.Value()
    if operand["scratch"]:  # by a node that the line does not count
        maker = ir.Node("", "Neg", [_value(text[1:], f"{name}_source", parts)])
        parts.makers.append(maker)
        value = maker.outputs[0]
    elif operand["numbers"]:
        numbers = operand["numbers"][2:-1]
        array = np.array([int(number) for number in numbers.split(",") if number], np.int64)
        value.const_value = ir.tensor(array.reshape([int(size) for size in operand["shape"].split(",") if size]))
    _describe(value, text, name)
    if not operand["scratch"]:
        (parts.constants if operand["numbers"] else parts.inputs).append(value)
    return value


def _describe(value: ir.Value, text: str, name: str) -> None:
    operand = _OPERAND.match(text)
    if operand is None:
        value.name = ""
        return
    value.name = name
    value.dtype = ir.DataType[operand["type"].upper()]
    value.shape = ir.Shape([int(size) for size in operand["shape"].split(",") if size])


def _attribute(name: str, value: Any) -> ir.Attr:
    if isinstance(value, str):
        return ir.AttrString(name, value)
    return ir.AttrInt64s(name, value) if isinstance(value, list) else ir.AttrInt64(name, value)
