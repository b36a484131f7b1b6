"""Reads the convolution whose weight gradient a rule of autodiff wrote, and puts another formulation in its place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.marked_gradients import GRADIENT_KEY, MarkedGradient
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.ops.names import is_standard

__all__ = ["Layer", "layer_of", "replace"]

Write: TypeAlias = Callable[[GraphBuilder], ir.Value]
_WEIGHT = 1  # the input of Conv that is the weight
_MOVES = frozenset({"Reshape", "Slice", "Transpose"})


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """A convolution whose weight gradient is wanted.

    Attributes:
        x: [N, C, ...]; the sizes of its channels and planes are known.
        g: the gradient of its result, [N, M, ...], likewise.
        kernel, strides, dilations: as of the convolution.
        pads: at the begin of each spatial axis, then at the ends.
        groups: of its channels.
        gradient: what is rewritten, [M, C / groups, ...].
        is_product: whether the gradient is a product of matrices already, as that of a 1x1 kernel.
    """

    x: ir.Value
    g: ir.Value
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    groups: int
    gradient: ir.Value
    is_product: bool = False

    @property
    def channels(self) -> tuple[int, int]:
        """The channels of the result, M, and of the data, C."""
        m, c = shape_of(self.gradient)[:2]
        return m, c * self.groups

    @property
    def inputs(self) -> tuple[int, ...]:
        """The sizes of a plane of the data."""
        return _plane(self.x)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The sizes of a plane of the result."""
        return _plane(self.g)

    @property
    def samples(self) -> int | None:
        """The size of the batch; None if it is not known."""
        return shape_of(self.x)[0] if is_static(self.x) and is_static(self.g) else None

    @property
    def taps(self) -> int:
        """The places of the kernel."""
        return math.prod(self.kernel)


def layer_of(marked: MarkedGradient) -> Layer | None:
    """Read the convolution of a marked gradient; None for another gradient, or if sizes are not known."""
    gradient = marked.results.get(_WEIGHT)
    products = [node for node in marked.nodes if node.op_type in ("Conv", "MatMul") and is_standard(node)]
    if len(products) != 1 or gradient is None or len(marked.results) != 1 or not is_static(gradient):
        return None
    node = products[0]
    is_product = node.op_type == "MatMul"
    x, g = (_source(value, marked) for value in (reversed(node.inputs) if is_product else node.inputs[:2]))
    if x is None or g is None or not all(map(_has_sizes, (x, g))):
        return None
    kernel = shape_of(gradient)[2:]
    if is_product:
        rank = len(kernel)
        pads, ones, strides = (0,) * (2 * rank), (1,) * rank, _strides(marked, rank)
        return Layer(x, g, kernel, strides, ones, pads, 1, gradient, is_product=True)
    # The convolution of the rule exchanges strides and dilations.
    dilations, strides, pads = (tuple(node.attributes[name].as_ints()) for name in ("strides", "dilations", "pads"))
    return Layer(x, g, kernel, strides, dilations, pads, node.attributes["group"].as_int(), gradient)


def replace(shared: GraphBuilder, marked: MarkedGradient, layer: Layer, gradient: Write) -> None:
    """Put what a formulation writes in the place of a gradient's nodes.

    Args:
        shared: has the model, its names and the constants that formulations share.
        marked: the gradient's nodes.
        layer: the convolution.
        gradient: writes the formulation and returns its result.
    """
    first, names = marked.nodes[0], shared.names
    metadata = {key: text for key, text in first.metadata_props.items() if key != GRADIENT_KEY}
    prefix = f"{first.name or 'weight_gradient'}/"
    builder = GraphBuilder(shared.model, before=first, names=names, metadata=metadata, prefix=prefix, shares=shared)
    take_over(layer.gradient, gradient(builder), names)
    for node in reversed(marked.nodes):
        shared.graph.remove(node, safe=True)


def _source(value: ir.Value | None, marked: MarkedGradient) -> ir.Value | None:
    """Return what the nodes of a gradient read, and move before they multiply it."""
    while value is not None and value not in marked.reads:
        node = value.producer()
        if node is None or node not in marked.nodes or node.op_type not in _MOVES:
            return None
        value = node.inputs[0]
    return value


def _strides(marked: MarkedGradient, rank: int) -> tuple[int, ...]:
    """Return the strides by which the product of a 1x1 kernel takes elements of the data."""
    for node in marked.nodes:
        steps = constant_array(node.inputs[4]) if node.op_type == "Slice" and len(node.inputs) == 5 else None
        if steps is not None:
            return tuple(int(step) for step in steps)
    return (1,) * rank


def _has_sizes(value: ir.Value) -> bool:
    """Whether all sizes but the batch's are known."""
    return value.shape is not None and all(isinstance(size, int) for size in list(value.shape)[1:])


def _plane(value: ir.Value) -> tuple[int, ...]:
    assert value.shape is not None
    return tuple(int(size) for size in list(value.shape)[2:])  # type: ignore[arg-type]  # known, as checked
