"""Finds the formulation of a weight gradient that a GPU is predicted to compute fastest, by the price list."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import onnx_ir as ir

from amp_transpiler.cost.prediction import predict
from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import GraphBuilder, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.marked_gradients import MarkedGradient
from amp_transpiler.targets.devices import DEFAULT_DEVICE
from amp_transpiler.training_passes.alive import Memory, bytes_of
from amp_transpiler.training_passes.convolution_layer import Layer
from amp_transpiler.training_passes.fuse_products import FuseProducts
from amp_transpiler.training_passes.unfolded_gradients import Unfolding, unfold, unfoldings

__all__ = ["Cheapest"]

Key: TypeAlias = tuple[object, ...]
_UNKNOWN = 256 << 20
_LEAST_ROOM = 16 << 20  # bytes that are no matter
_WORTH_A_MILLISECOND = 64 << 20  # bytes that a step may take more to be so much faster


class Cheapest:
    """Compares formulations of weight gradients by their prices; layers of equal sizes once.

    Each is written into a model of its own, whose time is predicted as part of a CUDA graph: kernels, and the gaps
    between them. What it takes more of memory than the step takes elsewhere must be worth it.

    Args:
        model: the model.
        gradients: its weight gradients.
    """

    def __init__(self, model: ir.Model, gradients: Iterable[MarkedGradient]) -> None:
        self._model = model
        self._gradients = list(gradients)
        self._tried: dict[tuple[Key, Unfolding | None], _Cost] = {}

    def unfolding(self, marked: MarkedGradient, layer: Layer) -> Unfolding | None:
        """Return the cheapest unfolding of a layer; None if the gradient as it stands costs no more."""
        key, room = _key(layer), self._room.at(marked)
        best, least = None, self._cost(key, None, layer, functools.partial(_copied, marked, layer)).milliseconds
        for by_parts in unfoldings(layer):
            for each in by_parts:
                cost = self._cost(key, each, layer, functools.partial(_unfolded, each))
                if cost.milliseconds >= least:
                    break  # more parts take longer
                price = cost.milliseconds + max(0, cost.bytes - room) / _WORTH_A_MILLISECOND
                if price < least:
                    best, least = each, price
        return best

    @functools.cached_property
    def _room(self) -> _Room:
        return _Room.of(self._model.graph, self._gradients)

    def _cost(self, key: Key, unfolding: Unfolding | None, layer: Layer, write: Callable[[_Probe], ir.Value]) -> _Cost:
        if (key, unfolding) not in self._tried:
            self._tried[key, unfolding] = _cost_of(self._model, layer, write)
        return self._tried[key, unfolding]


class _Cost(NamedTuple):
    """The cost of a formulation on a GPU.

    Attributes:
        milliseconds: of a run.
        bytes: the most that its results take at a time, and its tables.
    """

    milliseconds: float
    bytes: int


def _cost_of(model: ir.Model, layer: Layer, write: Callable[[_Probe], ir.Value]) -> _Cost:
    probe = _Probe.of(model, layer)
    written = probe.builder.model
    written.graph.outputs.append(write(probe))
    FuseProducts()(written)
    before, *during = Memory(written.graph).alive()
    tables = sum(map(bytes_of, written.graph.initializers.values()))
    milliseconds = predict(written, DEFAULT_DEVICE, cuda_graph=True).milliseconds
    return _Cost(milliseconds, max(during, default=before) - before + tables)


@dataclasses.dataclass(frozen=True, slots=True)
class _Room:
    """The memory that is free where weight gradients are computed, because a step takes as much before.

    Attributes:
        before: node -> bytes alive before it runs.
        most: the most that is alive up to the first weight gradient, or while one is computed as it stands. What takes
            more memory later may be rewritten yet.
    """

    before: Mapping[ir.Node, int]
    most: int

    @classmethod
    def of(cls, graph: ir.Graph, gradients: Iterable[MarkedGradient]) -> _Room:
        """Return the room in a graph; as much as `_UNKNOWN` everywhere if it has values of unknown sizes."""
        memory = Memory(graph)
        inside = {node for marked in gradients for node in marked.nodes}
        try:
            before, *during = memory.alive()
        except InputError:
            return cls({}, _UNKNOWN)
        starts, most, is_before = {}, before, True
        for node, alive, (written, _) in zip(memory.nodes, during, memory.changes(), strict=True):
            is_before = is_before and node not in inside
            starts[node] = alive - sum(map(bytes_of, written))
            if is_before or node in inside:
                most = max(most, alive)
        return cls(starts, most)

    def at(self, marked: MarkedGradient) -> int:
        """Return the bytes that the nodes of a gradient may take."""
        return max(self.most - self.before.get(marked.nodes[0], 0), _LEAST_ROOM)


@dataclasses.dataclass(frozen=True, slots=True)
class _Probe:
    """A model of one weight gradient.

    Attributes:
        builder: writes into it.
        layer: the convolution, whose data and gradient are the inputs.
    """

    builder: GraphBuilder
    layer: Layer

    @classmethod
    def of(cls, model: ir.Model, layer: Layer) -> _Probe:
        """Return one without nodes, with the opsets of a model."""
        x, g = (
            ir.Value(name=name, type=value.type, shape=ir.Shape(shape_of(value)))
            for name, value in (("x", layer.x), ("g", layer.g))
        )
        graph = ir.Graph([x, g], [], nodes=[], opset_imports=dict(model.graph.opset_imports), name="weight_gradient")
        builder = GraphBuilder(ir.Model(graph, ir_version=model.ir_version))
        return cls(builder, dataclasses.replace(layer, x=x, g=g))


def _unfolded(unfolding: Unfolding, probe: _Probe) -> ir.Value:
    return unfold(probe.builder, probe.layer, unfolding)


def _copied(marked: MarkedGradient, layer: Layer, probe: _Probe) -> ir.Value:
    """Write the gradient as it stands; return its result."""
    values: dict[ir.Value | None, ir.Value | None] = {layer.x: probe.layer.x, layer.g: probe.layer.g, None: None}
    for node in marked.nodes:
        for value in node.inputs:
            if value not in values:
                tensor = constant_of(value)
                assert tensor is not None, "what a gradient reads is data, the gradient of the result, or constant"
                values[value] = probe.builder.constant(tensor.numpy(), tensor.dtype)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        inputs = [values[value] for value in node.inputs]
        values.update(zip(node.outputs, probe.builder.nodes(node.op_type, inputs, attributes), strict=True))
    result = values[layer.gradient]
    assert result is not None
    return result


def _key(layer: Layer) -> Key:
    shapes = (shape_of(value) for value in (layer.x, layer.g, layer.gradient))
    return (*shapes, layer.x.dtype, layer.strides, layer.dilations, layer.pads)
