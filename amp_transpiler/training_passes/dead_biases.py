"""Leaves the bias of a convolution out of the data that BatchNormalization normalises by the batch's statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.marked_gradients import GRADIENT_KEY, MarkedGradient
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.ops.names import is_standard

__all__ = ["take_dead_bias"]

_BIAS = 2  # the input of a convolution
_CONVOLUTIONS = ("Conv", "ConvTranspose")


def take_dead_bias(
    node: ir.Node, gradients: Iterable[MarkedGradient], builder_at: Callable[[ir.Node], GraphBuilder]
) -> ir.Value | None:
    """Leave the bias out of the convolution whose result a node normalises; return it, or None if it stays.

    What a bias adds is taken away with the mean. So no result changes but the running mean, to which the caller adds
    the bias, and the gradient of the bias is exactly 0: written so, instead of the rounding errors of a sum.

    1. Only the node and its gradient read what the convolution computes, perhaps behind a cast.
    2. The gradient of the bias is that of a rule, which nothing reads into. Otherwise it is computed as before.

    Args:
        node: a BatchNormalization in training mode.
        gradients: the marked gradients of the graph.
        builder_at: gives a builder that writes before a node.
    """
    x = node.inputs[0]
    inside = [gradient for gradient in gradients if x in gradient.reads]
    readers = {node, *(reader for gradient in inside for reader in gradient.nodes)}
    convolution = _convolution(x, readers)
    if convolution is None:
        return None
    bias = convolution.inputs[_BIAS]
    convolution.resize_inputs(_BIAS)
    for value in _casts_of([gradient.results[0] for gradient in inside if 0 in gradient.results]):
        for gradient in gradients:
            if gradient.reads == {value} and list(gradient.results) == [_BIAS]:
                _write_zeros(gradient, builder_at)
    return bias


def _convolution(x: ir.Value | None, readers: set[ir.Node]) -> ir.Node | None:
    """Return the convolution with a bias whose result only these nodes read."""
    while x is not None and not x.is_graph_output() and all(use.node in readers for use in x.uses()):
        maker = x.producer()
        if maker is None or not is_standard(maker):
            return None
        if maker.op_type in _CONVOLUTIONS:
            return maker if len(maker.inputs) > _BIAS and maker.inputs[_BIAS] is not None else None
        x, readers = (maker.inputs[0], {maker}) if maker.op_type == "Cast" else (None, set())
    return None


def _casts_of(values: Iterable[ir.Value]) -> Iterator[ir.Value]:
    """Yield the values, and casts of them."""
    for value in values:
        yield value
        casts = [use.node for use in value.uses() if use.node.op_type == "Cast" and is_standard(use.node)]
        yield from _casts_of(cast.outputs[0] for cast in casts)


def _write_zeros(gradient: MarkedGradient, builder_at: Callable[[ir.Node], GraphBuilder]) -> None:
    first, result = gradient.nodes[0], gradient.results[_BIAS]
    if not is_static(result):
        return
    builder = builder_at(first)
    builder.metadata = {key: text for key, text in first.metadata_props.items() if key != GRADIENT_KEY}
    sizes = builder.constant(np.array(shape_of(result), np.int64))
    take_over(result, builder.op("Expand", [builder.constant(0.0, result.dtype), sizes]), builder.names)
    for node in reversed(gradient.nodes):
        assert node.graph is not None
        node.graph.remove(node, safe=True)
