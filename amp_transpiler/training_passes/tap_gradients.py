"""Writes the weight gradient of a convolution as the CPU computes it fastest: by slices of the data, one a tap."""

from __future__ import annotations

import itertools

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.training_passes.convolution_layer import Layer

__all__ = ["by_columns", "by_taps"]


def by_taps(builder: GraphBuilder, layer: Layer) -> ir.Value:
    """Write one product for each tap of the kernel."""
    m, c = layer.channels
    rows = _rows(builder, _swapped(builder, layer.g))
    source = _swapped(builder, _padded(builder, layer))
    products = [
        builder.reshape(builder.matmul(rows, builder.swap_last(_rows(builder, seen))), [m, c, 1])
        for seen in _seen(builder, layer, source)
    ]
    return builder.reshape(builder.concat(products, 2), [m, c, *layer.kernel])


def by_columns(builder: GraphBuilder, layer: Layer) -> ir.Value:
    """Write one product of all taps, whose inputs are laid out next to each other."""
    m, c = layer.channels
    rows = _rows(builder, _swapped(builder, layer.g))
    source = _swapped(builder, _padded(builder, layer))
    columns = builder.concat([_rows(builder, seen) for seen in _seen(builder, layer, source)], 0)
    product = builder.matmul(rows, builder.swap_last(columns))
    axes = range(1, 1 + len(layer.kernel))
    return builder.transpose(builder.reshape(product, [m, *layer.kernel, c]), [0, 1 + len(layer.kernel), *axes])


def _swapped(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return [N, C, ...] as [C, N, ...]."""
    assert x.shape is not None
    return builder.transpose(x, [1, 0, *range(2, len(x.shape))])


def _rows(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return [C, N, ...] as [C, N*L]."""
    assert x.shape is not None
    return builder.reshape(x, [int(x.shape[0]), -1])  # type: ignore[arg-type]  # channels are known


def _padded(builder: GraphBuilder, layer: Layer) -> ir.Value:
    if not any(layer.pads):
        return layer.x
    rank = len(layer.kernel)
    pads = [0, 0, *layer.pads[:rank], 0, 0, *layer.pads[rank:]]
    return builder.op("Pad", [layer.x, builder.constant(pads)])


def _seen(builder: GraphBuilder, layer: Layer, source: ir.Value) -> list[ir.Value]:
    """Return the padded input, channels first, as each tap of the kernel sees it."""
    axes = list(range(2, 2 + len(layer.kernel)))
    views = []
    for tap in itertools.product(*map(range, layer.kernel)):
        starts = [place * dilation for place, dilation in zip(tap, layer.dilations, strict=True)]
        spans = zip(starts, layer.outputs, layer.strides, strict=True)
        ends = [start + (size - 1) * stride + 1 for start, size, stride in spans]
        views.append(builder.slice(source, starts, ends, axes, layer.strides))
    return views
