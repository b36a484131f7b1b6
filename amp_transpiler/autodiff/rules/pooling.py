"""Gradients of pools. The batch size may be symbolic; channels and spatial sizes must be known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.autodiff.windows import apply_transposed, check_axes, sizes_of, window_matrix, window_of

_SMALL = 1 << 16  # elements of zeros that a session may keep


@gradient("MaxPool")
def max_pool(g: Expr, x: Expr, *, node: NodeGradient, kernel_shape: Sequence[int], storage_order: int = 0) -> Expr:
    """`g` scattered to the maxima: the first one of several."""
    if storage_order:
        raise NotDifferentiable("storage_order=1 counts indices by columns; use storage_order=0")
    if node.opset < 16:
        raise NotDifferentiable("ScatterElements adds from opset 16 on; raise the opset of the model")
    indices = node.output(1).reshape([-1])  # into the flat N x C x spatial tensor
    channels = sizes_of(x, 1)
    window = window_of(node, channels[1:], kernel_shape)
    overlap = any(stride < extent for stride, extent in zip(window.strides, window.extent, strict=True))
    g = g.wide() if overlap else g  # only where windows overlap is anything summed
    reduction = {"reduction": "add"} if overlap else {}
    flat = _zeros(g, x).reshape([-1])
    scattered = flat.op("ScatterElements", indices, g.reshape([-1]), axis=0, **reduction)
    return scattered.reshape([-1, *channels]).with_shape_of(x)


def _zeros(g: Expr, x: Expr) -> Expr:
    """Zeros in the shape of `x` and the type of `g`.

    ONNX Runtime would make large ones when the session is opened and keep them. It cannot know that an element of `g`
    is not what these are made of.
    """
    if x.is_static and math.prod(x.sizes) <= _SMALL:
        return x.zeros_like(g.dtype)
    first = g.reshape([-1]).slice([0], [1], [0])
    never = first.constant(np.zeros(1, np.bool_))
    return never.where(first, 0).expand_like(x)


@gradient("AveragePool")
def average_pool(g: Expr, x: Expr, *, y: Expr, node: NodeGradient, count_include_pad: int = 0) -> Expr:
    """The transposed averaging matrices, one per axis; that holds for padding, `ceil_mode` and dilations too."""
    return _unpool(node, g, x, y, "padded" if count_include_pad else "valid")


@gradient("LpPool")
def lp_pool(g: Expr, x: Expr, *, y: Expr, node: NodeGradient, p: int = 2) -> Expr:
    """`sign(x) |x|^(p-1)` times the sum over windows of `g y^(1-p)`."""
    return _unpool(node, _over_norm(g, y, p), x, y, "") * _norm_slope(x, p)


@gradient("GlobalLpPool")
def global_lp_pool(g: Expr, x: Expr, *, y: Expr, p: int = 2) -> Expr:
    """As for LpPool, with one window."""
    return _over_norm(g, y, p) * _norm_slope(x, p)


@gradient("GlobalAveragePool")
def global_average_pool(g: Expr, x: Expr) -> Expr:
    return (g * (1 / max(math.prod(sizes_of(x)), 1))).expand_like(x)


@gradient("GlobalMaxPool")
def global_max_pool(g: Expr, x: Expr, *, y: Expr) -> Expr:
    """`g` at the maximum; equal ones share it evenly."""
    mask = x.op("Equal", y).cast(x.dtype)  # bfloat16 too: training_passes/legalize.py adds CUDA's casts
    count = mask.sum(range(2, x.rank))
    return mask * (g.wide() / count).cast(x.dtype)


def _unpool(node: NodeGradient, g: Expr, x: Expr, y: Expr, average: str) -> Expr:
    inputs, outputs = sizes_of(x), sizes_of(y)
    check_axes(len(inputs), outputs=outputs)
    window = window_of(node, inputs, node.attribute("kernel_shape"))
    for axis in reversed(range(window.rank)):
        matrix = window_matrix(window, axis, inputs[axis], outputs[axis], average=average)
        g = apply_transposed(g, 2 + axis, matrix)
    return g.with_shape_of(x)


def _over_norm(g: Expr, y: Expr, p: int) -> Expr:
    """`g y^(1-p)`, 0 where the norm `y` is 0."""
    y, g = y.wide(), g.wide()
    if p == 1:
        return g
    zero = y.equals(0)
    return zero.where(0, g / zero.where(1, y) ** (p - 1))


def _norm_slope(x: Expr, p: int) -> Expr:
    """`sign(x) |x|^(p-1)`."""
    x = x.wide()
    if p == 2:
        return x
    return x.sign() if p == 1 else x.sign() * x.abs() ** (p - 1)
