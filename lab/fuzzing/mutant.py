"""A mutant in the making, and what mutations need to find their way in it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import onnx
from google.protobuf.message import Error as ProtobufError

__all__ = ["ProtobufError"]

T = TypeVar("T")

_DEEPEST = 60  # scopes: mutations nest bodies, and this walk must not be what gives up


class NotApplicable(Exception):
    """The model has nothing that this mutation could change."""


@dataclasses.dataclass(slots=True)
class Mutant:
    """A model being mutated.

    Attributes:
        model: the message. Structural mutations change it.
        files: data files that lie beside the model.
        patches: replacements of equal length in the serialized message, for what no message can hold, such as
            strings that are not UTF-8.
        data: the serialized message, once there is one. Byte-level mutations change it.
    """

    model: onnx.ModelProto
    files: dict[str, bytes]
    patches: list[tuple[bytes, bytes]] = dataclasses.field(default_factory=list)
    data: bytes = b""

    def serialize(self) -> None:
        """Fill `data` from the message."""
        self.data = self.model.SerializeToString()
        for old, new in self.patches:
            self.data = self.data.replace(old, new)


def pick(random_: random.Random, things: Sequence[T]) -> T:
    """Return one of `things`.

    Raises:
        NotApplicable: there are none.
    """
    if not len(things):
        raise NotApplicable
    return things[random_.randrange(len(things))]


def drop(random_: random.Random, things: Any) -> None:
    """Remove one of `things`.

    Raises:
        NotApplicable: there are none.
    """
    if not len(things):
        raise NotApplicable
    del things[random_.randrange(len(things))]


def graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """Return the main graph and every body, also those in functions."""
    every: list[onnx.GraphProto] = []
    waiting: list[tuple[Any, int]] = [(model.graph, 0), *((function, 0) for function in model.functions)]
    while waiting:
        scope, depth = waiting.pop(0)
        if isinstance(scope, onnx.GraphProto):
            every.append(scope)
        if depth < _DEEPEST:
            waiting += [(body, depth + 1) for node in scope.node for body in bodies(node)]
    return every


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def scopes(model: onnx.ModelProto) -> list[Any]:
    """Return everything that has nodes: graphs and functions."""
    return [*graphs(model), *model.functions]


def pick_scope(mutant: Mutant, random_: random.Random) -> Any:
    """Return a graph or function that has nodes; the main graph in most cases."""
    choices = [scope for scope in scopes(mutant.model) if len(scope.node)]
    if len(choices) > 1 and random_.random() < 0.5:
        return pick(random_, choices)
    return pick(random_, choices[:1])


def pick_node(mutant: Mutant, random_: random.Random) -> onnx.NodeProto:
    """Return a node of any scope."""
    node: onnx.NodeProto = pick(random_, pick_scope(mutant, random_).node)
    return node


def pick_graph(mutant: Mutant, random_: random.Random) -> onnx.GraphProto:
    """Return the main graph in most cases, else a body."""
    choices = graphs(mutant.model)
    return choices[0] if random_.random() < 0.7 else pick(random_, choices)


def value_names(scope: Any) -> list[str]:
    """Return the names of all values of a scope, those of its nodes first."""
    names = [name for node in scope.node for name in (*node.output, *node.input) if name]
    if isinstance(scope, onnx.GraphProto):
        names += [value.name for value in (*scope.input, *scope.initializer)]
    return names


def pick_tensor(mutant: Mutant, random_: random.Random) -> onnx.TensorProto:
    """Return an initializer, or the tensor of an attribute."""
    choices: list[onnx.TensorProto] = [tensor for graph in graphs(mutant.model) for tensor in graph.initializer]
    choices += [
        attribute.t
        for scope in scopes(mutant.model)
        for node in scope.node
        for attribute in node.attribute
        if attribute.HasField("t")
    ]
    return pick(random_, choices)


def pick_value_info(mutant: Mutant, random_: random.Random) -> onnx.ValueInfoProto:
    """Return the declaration of an input, an output or a value in between."""
    graph = pick_graph(mutant, random_)
    choices: list[onnx.ValueInfoProto] = [*graph.input, *graph.output, *graph.value_info]
    return pick(random_, choices)


def pick_tensor_type(mutant: Mutant, random_: random.Random) -> Any:
    """Return the tensor type of a declaration; that inside a sequence or optional, too."""
    type_ = pick_value_info(mutant, random_).type
    for _ in range(4):
        if type_.HasField("tensor_type"):
            return type_.tensor_type
        if type_.HasField("sequence_type"):
            type_ = type_.sequence_type.elem_type
        elif type_.HasField("optional_type"):
            type_ = type_.optional_type.elem_type
    raise NotApplicable
