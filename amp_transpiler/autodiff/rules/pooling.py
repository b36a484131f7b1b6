"""Gradients of pools. The batch size may be symbolic; channels and spatial sizes must be known."""

from __future__ import annotations

import math

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.autodiff.windows import apply_transposed, in_shape_of, sizes_of, window_matrix, window_of


@gradient("MaxPool")
def max_pool(n: NodeGradient) -> ir.Value:
    """`g` scattered to where the maxima were: the first one of several."""
    b, x, g = n.b, n.x, n.g
    if n.attribute("storage_order", 0):
        raise n.error("storage_order=1 counts indices by columns; use storage_order=0")
    if b.opset < 16:
        raise n.error("ScatterElements adds from opset 16 on; raise the opset of the model")
    indices = b.reshape(n.output(1), [-1])  # into the flat N x C x spatial tensor
    channels = sizes_of(n, x, 1)
    window = window_of(n, channels[1:], n.attribute("kernel_shape"))
    overlap = any(stride < extent for stride, extent in zip(window.strides, window.extent, strict=True))
    # Sums are taken in float32; where windows do not overlap there are none.
    g = b.high(g) if overlap else g
    flat = b.reshape(b.zeros_like(x, g.dtype), [-1])
    attributes = {"axis": 0, **({"reduction": "add"} if overlap else {})}
    made = b.op("ScatterElements", [flat, indices, b.reshape(g, [-1])], attributes)
    return in_shape_of(b.reshape(made, [-1, *channels]), x)


@gradient("AveragePool")
def average_pool(n: NodeGradient) -> ir.Value:
    """The transposed averaging matrices, one per axis: also right for padding, `ceil_mode` and dilations."""
    return _unpool(n, n.g, "padded" if n.attribute("count_include_pad", 0) else "valid")


@gradient("LpPool")
def lp_pool(n: NodeGradient) -> ir.Value:
    """`sign(x) |x|^(p-1)` times the sum over windows of `g y^(1-p)`."""
    p = n.attribute("p", 2)
    return _through_norm(n, _unpool(n, _over_norm(n, p), ""), p)


@gradient("GlobalLpPool")
def global_lp_pool(n: NodeGradient) -> ir.Value:
    """As for LpPool, with one window."""
    p = n.attribute("p", 2)
    return _through_norm(n, _over_norm(n, p), p)


@gradient("GlobalAveragePool")
def global_average_pool(n: NodeGradient) -> ir.Value:
    """`g` over the number of elements, everywhere."""
    return n.b.expand_like(n.b.mul(n.g, 1.0 / max(math.prod(sizes_of(n, n.x)), 1)), n.x)


@gradient("GlobalMaxPool")
def global_max_pool(n: NodeGradient) -> ir.Value:
    """`g` where the maximum was, split evenly between several."""
    b, x = n.b, n.x
    assert x.shape is not None
    mask = b.cast(b.compare("Equal", x, n.y), x.dtype)
    count = b.sum(mask, list(range(2, len(x.shape))))
    return b.mul(mask, b.cast(b.div(b.high(n.g), count), x.dtype))


def _unpool(n: NodeGradient, g: ir.Value, average: str) -> ir.Value:
    inputs, outputs = sizes_of(n, n.x), sizes_of(n, n.y)
    window = window_of(n, inputs, n.attribute("kernel_shape"))
    for axis in reversed(range(window.rank)):
        matrix = window_matrix(window, axis, inputs[axis], outputs[axis], average=average)
        g = apply_transposed(n.b, g, 2 + axis, matrix)
    return in_shape_of(g, n.x)


def _over_norm(n: NodeGradient, p: int) -> ir.Value:
    """`g y^(1-p)`, 0 where the norm `y` is 0."""
    b, y = n.b, n.b.high(n.y)
    g = b.high(n.g)
    if p == 1:
        return g
    zero = b.compare("Equal", y, 0.0)
    return b.where(zero, 0.0, b.div(g, b.pow(b.where(zero, 1.0, y), float(p - 1))))


def _through_norm(n: NodeGradient, g: ir.Value, p: int) -> ir.Value:
    """`g sign(x) |x|^(p-1)`."""
    b, x = n.b, n.b.high(n.x)
    if p == 2:
        return b.mul(g, x)
    slope = b.op("Sign", [x])
    return b.mul(g, slope if p == 1 else b.mul(slope, b.pow(b.op("Abs", [x]), float(p - 1))))
