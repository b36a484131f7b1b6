"""Finds the formulation of a weight gradient that a GPU is predicted to compute fastest, by the price list."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.cost.prediction import predict
from amp_transpiler.graph.builder import GraphBuilder, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.marked_gradients import MarkedGradient
from amp_transpiler.targets.devices import DEFAULT_DEVICE
from amp_transpiler.training_passes.convolution_layer import Layer
from amp_transpiler.training_passes.fuse_products import FuseProducts
from amp_transpiler.training_passes.unfolded_gradients import Unfolding, unfold, unfoldings

__all__ = ["Cheapest"]

Key: TypeAlias = tuple[object, ...]


class Cheapest:
    """Compares formulations of weight gradients by their prices; layers of equal sizes once.

    Each is written into a model of its own, whose time is predicted as part of a CUDA graph: kernels, and the gaps
    between them.

    Args:
        model: whose opsets count.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._known: dict[Key, Unfolding | None] = {}

    def unfolding(self, marked: MarkedGradient, layer: Layer) -> Unfolding | None:
        """Return the cheapest unfolding of a layer; None if the gradient as it stands costs no more."""
        key = _key(layer)
        if key not in self._known:
            self._known[key] = self._compared(marked, layer)
        return self._known[key]

    def _compared(self, marked: MarkedGradient, layer: Layer) -> Unfolding | None:
        prices: dict[Unfolding | None, float] = {None: self._price(layer, functools.partial(_copied, marked, layer))}
        for each in unfoldings(layer):
            prices[each] = self._price(layer, functools.partial(_unfolded, each))
        return min(prices, key=prices.__getitem__)

    def _price(self, layer: Layer, write: Callable[[_Probe], ir.Value]) -> float:
        probe = _Probe.of(self._model, layer)
        model = probe.builder.model
        model.graph.outputs.append(write(probe))
        FuseProducts()(model)
        return predict(model, DEFAULT_DEVICE, cuda_graph=True).milliseconds


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
