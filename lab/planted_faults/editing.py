"""Edits a model as plants do: new nodes behind a value, with names like those of any exporter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

__all__ = ["Editor", "Place", "copy_of", "name_nodes", "opset_of"]


@dataclasses.dataclass(frozen=True)
class Place:
    """A value of a model behind which a fault may be planted.

    Attributes:
        value: its name.
        array: what it holds in float32 for the sample.
    """

    value: str
    array: np.ndarray

    @property
    def peak(self) -> float:
        """The largest magnitude."""
        return float(np.abs(self.array).max())


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own domain."""
    return next(int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx"))


def name_nodes(model: onnx.ModelProto) -> None:
    """Give every node of the main graph a name that no other one has."""
    taken: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_n{index}"
        taken.add(node.name)


class Editor:
    """Adds nodes to the main graph of a model, all at one place.

    Args:
        model: it is changed.
        behind: the value behind whose maker the nodes are put.
    """

    def __init__(self, model: onnx.ModelProto, behind: str) -> None:
        self.model, self.opset = model, opset_of(model)
        graph = model.graph
        self._taken = {name for node in graph.node for name in (node.name, *node.input, *node.output)}
        self._taken |= {value.name for value in (*graph.initializer, *graph.input, *graph.output)}
        makers = [index for index, node in enumerate(graph.node) if behind in node.output]
        self._index = makers[0] + 1 if makers else 0
        self._behind = behind
        self.added: list[str] = []

    def constant(self, value: float | np.ndarray, dtype: Any = np.float32) -> str:
        """Add an initializer and return its name."""
        name = self._new("constant")
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, op_type: str, *inputs: str | float, output: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its output; a number as an input becomes a constant."""
        names = [self.constant(value) if isinstance(value, (int, float)) else value for value in inputs]
        name = self._new(op_type)
        result = output or self._new(f"{name}_output_0", exact=True)
        new = onnx.helper.make_node(op_type, names, [result], name, **attributes)
        self.model.graph.node.insert(self._index, new)
        self._index += 1
        self.added.append(name)
        return result

    @property
    def last(self) -> str:
        """The name of the node that was added last."""
        return self.added[-1]

    def reduce(self, op_type: str, value: str, axes: Iterable[int]) -> str:
        """Add a reduction that keeps its axes, in the form of the model's opset."""
        since = 13 if op_type == "ReduceSum" else 18
        if self.opset >= since:
            return self.node(op_type, value, self.constant(np.array(list(axes)), np.int64), keepdims=1)
        return self.node(op_type, value, axes=list(axes), keepdims=1)

    def insert_before(self, node: str) -> None:
        """Put the next nodes in front of a node."""
        self._index = next(index for index, other in enumerate(self.model.graph.node) if other.name == node)

    def fresh(self, stem: str) -> str:
        """Return a name that nothing has."""
        return self._new(stem, exact=True)

    def replace(self, by: str) -> None:
        """Let all old readers of the value read another one instead."""
        for node in self.model.graph.node:
            if node.name not in self.added:
                for index, name in enumerate(node.input):
                    if name == self._behind:
                        node.input[index] = by

    def _new(self, stem: str, *, exact: bool = False) -> str:
        name, number = stem, len(self.model.graph.node)
        while name in self._taken or (name == stem and not exact):
            name, number = f"{stem}_{number}", number + 1
        self._taken.add(name)
        return name
