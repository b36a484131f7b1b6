"""A program as text: what `print(program)` shows."""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import onnx_ir as ir

from amp_transpiler.errors import visible
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.training_step import State, TrainingStep
from amp_transpiler.graph.walk import all_nodes, bodies
from amp_transpiler.ops.names import operator_name
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.view.outline import marks_of, precision_of, type_text, typed

__all__ = ["program_text"]

_NAME = 60  # characters of a name
_VALUE = 40  # of an attribute or constant
_ALL = "program.to_text() gives all of them"
_TITLES = {"parameter": "parameters", "statistic": "statistics", "state": "state"}
_WIDTH = 9  # of the column of precisions: as wide as `bfloat16`, and a space


class _Persistable(Protocol):
    @property
    def kind(self) -> str: ...

    @property
    def trainable(self) -> bool: ...


class _Program(Protocol):
    """The part of a `Program` that is read here. `Program` uses this module, so it cannot be imported."""

    model: ir.Model
    updates: dict[str, str]
    outputs: list[str]
    step: TrainingStep | None

    @property
    def source(self) -> os.PathLike[str] | None: ...

    @property
    def persistables(self) -> Mapping[str, _Persistable]: ...

    def find(self, name: str) -> ir.Value | None: ...


def program_text(program: _Program, limit: int | None = None) -> str:
    """Return a program as text: its values with types and shapes, its nodes with precision, casts, regions and roles.

    Args:
        program: the program.
        limit: the most lines of nodes, and of each other part; None for all. What is left out is counted.
    """
    model = typed(program.model)
    lines = [*_head(program, model), *_values(program, model, limit)]
    lines += _cut("nodes", _nodes(model.graph, "  "), limit)
    for function in model.functions.values():
        title = f"function {visible(function.domain, _NAME)}::{visible(function.name, _NAME)}"
        lines += _cut(title, _nodes(function, "  "), limit)
    outputs = itertools.chain((f"  {_named(value)}" for value in model.graph.outputs), _outputs(program, model))
    lines += _cut("outputs", outputs, limit)
    lines += _cut("updates", (f"  {_name(old)} <- {_name(new)}" for old, new in program.updates.items()), limit)
    lines += _cut("training step", map(_state, program.step.states if program.step is not None else ()), limit)
    return "\n".join(lines)


def _head(program: _Program, model: ir.Model) -> Iterator[str]:
    graph = model.graph
    origin = visible(str(program.source or graph.name or "in memory"), _NAME)
    yield f"Program '{origin}': {graph.num_nodes()} nodes, opset {opset_of(model, '')}"
    counts: collections.Counter[str] = collections.Counter()
    marks: collections.Counter[str] = collections.Counter()
    kinds = collections.Counter((precision_of(node), marks_of(node)) for node in all_nodes(model))
    for (precision, mark), count in kinds.items():
        counts[precision] += count
        marks.update(dict.fromkeys(filter(None, mark.split(", ")), count))
    parts = [f"{count} {name}" for name, count in sorted(counts.items()) if name and name != "cast"]
    parts += [f"{counts['cast']} casts between floats"] if counts["cast"] else []
    parts += [f"{count} {mark}" for mark, count in sorted(marks.items())]
    if parts:
        yield f"  {', '.join(parts)}"


def _values(program: _Program, model: ir.Model, limit: int | None) -> Iterator[str]:
    """Yield the inputs, what a scope holds, and the weights."""
    groups: dict[str, list[tuple[ir.Value, str]]] = {"inputs": []}
    for value in model.graph.inputs:
        known = program.persistables.get(str(value.name))
        title = "inputs" if known is None else _TITLES[known.kind]
        frozen = " (frozen)" if known is not None and known.kind == "parameter" and not known.trainable else ""
        groups.setdefault(title, []).append((value, frozen))
    for title, values in groups.items():
        yield from _cut(title, (f"  {_named(value)}{remark}" for value, remark in values), limit)
    weights = model.graph.initializers.values()
    yield from _cut("constants", (f"  {_named(value)}{_content(value)}" for value in weights), limit)


def _cut(title: str, lines: Iterator[str], limit: int | None) -> list[str]:
    """Return a part of the text, or nothing if it has no line; what is beyond the limit is not even made."""
    shown = list(itertools.islice(lines, limit))
    cut = limit is not None and next(lines, None) is not None
    if not shown:
        return []
    return [title, *shown, *([f"  ... cut after {limit} lines: {_ALL}"] if cut else [])]


def _outputs(program: _Program, model: ir.Model) -> Iterator[str]:
    """Yield the outputs that were set by hand, unless they are the graph's own."""
    graph_outputs = {value.name for value in model.graph.outputs}
    for name in program.outputs:
        value = program.find(name)
        if value is None:
            yield f"  {_name(name)}: not in the program"
        elif name not in graph_outputs:
            yield f"  {_named(value)}"


def _state(state: State) -> str:
    master = f", master {_name(state.master)}" if state.master else ""
    return f"  {_name(state.input)} <- {_name(state.output)}: {state.role}{master}"


def _nodes(graph: ir.Graph | ir.Function, indent: str) -> Iterator[str]:
    for node in graph:
        yield _line(node, indent)
        for name, body in bodies(node):
            inputs = ", ".join(_named(value) for value in body.inputs)
            yield f"{indent}  {name}({inputs}):"
            yield from _nodes(body, f"{indent}    ")
            yield f"{indent}    return {', '.join(_name(str(value.name)) for value in body.outputs)}"


def _line(node: ir.Node, indent: str) -> str:
    results = ", ".join(_name(str(value.name)) for value in node.outputs if value.name) or "()"
    read = [_operand(value) for value in node.inputs]
    read += [f"{name}={_attribute(value)}" for name, value in node.attributes.items() if not _is_body(value)]
    types = ", ".join(type_text(value) for value in node.outputs if value.name)
    marks = marks_of(node)
    text = f"{indent}{precision_of(node):{_WIDTH}}{results} = {operator_name(node)}({', '.join(read)}) -> {types}"
    return f"{text}  # {marks}" if marks else text


def _is_body(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _operand(value: ir.Value | None) -> str:
    return "_" if value is None else _name(str(value.name))


def _attribute(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    value: Any = attribute.value
    if attribute.type is ir.AttributeType.TENSOR:
        return f"tensor {list(value.shape)}"
    if attribute.type is ir.AttributeType.INT and attribute.name in ("to", "dtype"):
        return ir.DataType(value).name if value in set(ir.DataType) else str(value)
    return visible(str(list(value) if isinstance(value, tuple) else value), _VALUE)


def _content(value: ir.Value) -> str:
    """Return a number that a constant holds, unless it lies in a file."""
    tensor = constant_of(value)
    if tensor is None or tensor.size != 1 or isinstance(tensor, ir.ExternalTensor):
        return ""
    return f" = {visible(str(tensor.numpy().item()), _VALUE)}"


def _named(value: ir.Value) -> str:
    return f"{_name(str(value.name))}: {type_text(value)}"


def _name(text: str) -> str:
    return visible(text, _NAME)
