"""Gradients of convolutions. The batch size may be symbolic; channels and spatial sizes must be known.

X is [N, C, ...], W is [M, C/G, ...] and `g` is [N, M, ...], with G groups. The transposed forms are those of
arXiv:1603.07285.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient
from amp_transpiler.autodiff.windows import Window, check_axes, sizes_of, window_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.marked_gradients import marks, result

_BACKWARDS = -(2**63) + 1  # as the end of a Slice with step -1: the first element is taken too


@gradient("Conv")
def conv(
    g: Expr, x: Expr, w: Expr, _bias: Expr | None = None, *, y: Expr, node: NodeGradient, group: int = 1
) -> Gradients:
    """A transposed convolution of `g` with W; a convolution of X with `g`, batch for channels; the sum of `g`."""
    window = window_of(node, sizes_of(x), sizes_of(w))
    return (
        lambda: _data_gradient(g, x, w, sizes_of(y), window, group).with_shape_of(x),
        lambda: _weight_gradient(x, g, window, group).with_shape_of(w),
        lambda: _bias_gradient(g),
    )


@gradient("ConvTranspose")
def conv_transpose(
    g: Expr, x: Expr, w: Expr, _bias: Expr | None = None, *, y: Expr, node: NodeGradient, group: int = 1
) -> Gradients:
    """As for Conv with X and `g` exchanged, since a transposed convolution is the gradient of a convolution."""
    window = _transposed_window(node, sizes_of(x), sizes_of(y), sizes_of(w))
    return (
        lambda: g.op("Conv", w, **window.attributes(group)).with_shape_of(x),
        lambda: _weight_gradient(g, x, window, group).with_shape_of(w),
        lambda: _bias_gradient(g),
    )


def _transposed_window(
    node: NodeGradient, inputs: Sequence[int], outputs: Sequence[int], kernel: Sequence[int]
) -> Window:
    """The windows of a ConvTranspose over its output, which takes the place of a Conv's input."""
    auto_pad, rank = node.attribute("auto_pad", "NOTSET"), len(inputs)
    strides = tuple(node.attribute("strides") or [1] * rank)
    dilations = tuple(node.attribute("dilations") or [1] * rank)
    adjust = node.attribute("output_padding") or [0] * rank
    check_axes(rank, outputs=outputs, kernel=kernel, strides=strides, dilations=dilations, output_padding=adjust)
    if auto_pad == "VALID" or (auto_pad == "NOTSET" and not node.attribute("output_shape")):
        pads = [] if auto_pad == "VALID" else node.attribute("pads")
        pads = list(pads or [0] * (2 * rank))
        begin, end = pads[:rank], pads[rank:]
        check_axes(rank, begin=begin, end=end)
        return Window(tuple(kernel), strides, dilations, tuple(begin), tuple(end))
    begin, end = [], []
    for size, out, k, stride, dilation, more in zip(inputs, outputs, kernel, strides, dilations, adjust, strict=True):
        total = max(stride * (size - 1) + more + dilation * (k - 1) + 1 - out, 0)
        small, large = total // 2, total - total // 2
        begin.append(small if auto_pad == "SAME_UPPER" else large)
        end.append(large if auto_pad == "SAME_UPPER" else small)
    return Window(tuple(kernel), strides, dilations, tuple(begin), tuple(end))


def _bias_gradient(g: Expr) -> Expr:
    """Return the sums of `g`. Their nodes are marked: training_passes/dead_biases.py finds those that are 0."""
    with marks(g.builder, g.builder.names.fresh("bias_gradient")):
        gradient = _sums_by_channel(g)
    result(gradient.value, 2)
    return gradient


def _sums_by_channel(g: Expr) -> Expr:
    if g.dtype not in LOW_DTYPES or not math.prod(sizes_of(g)):
        return g.sum([axis for axis in range(g.rank) if axis != 1], keepdims=False)
    # A product with ones reads 16 bits an element, sums in float32 and rounds once a sample; torch: once a batch.
    channels, *spatial = sizes_of(g, 1)
    count = math.prod(spatial)
    sums = g.reshape([-1, channels, count]) @ g.constant(np.ones((count, 1)), g.dtype)
    sums = sums if g.size(0) == 1 else sums.wide().sum([0], keepdims=False)
    return sums.reshape([channels])


def _data_gradient(g: Expr, x: Expr, w: Expr, outputs: Sequence[int], window: Window, group: int) -> Expr:
    inputs = sizes_of(x)
    if g.dtype == ir.DataType.BFLOAT16:  # CUDA has no ConvTranspose of bfloat16, but a Conv
        around = _window_of_adjoint(window)
        if around is not None:
            return g.op("Conv", _adjoint_weight(w, group), **around.attributes(group))
        g, w = g.wide(), w.wide()
    unused = window.unused(inputs, outputs)
    attributes = window.attributes(group)
    if window.begin == window.end:
        return g.op("ConvTranspose", w, **attributes, output_padding=list(unused))
    # cuDNN pads both ends alike: compute all, then cut the padding off.
    attributes["pads"] = [0] * (2 * window.rank)
    padding = [max(rest - end, 0) for rest, end in zip(unused, window.end, strict=True)]
    full = g.op("ConvTranspose", w, **attributes, output_padding=padding)
    ends = [begin + size for begin, size in zip(window.begin, inputs, strict=True)]
    return full.slice(window.begin, ends, _spatial(window.rank))


def _window_of_adjoint(window: Window) -> Window | None:
    """The windows of the Conv that is the adjoint of a Conv with stride 1; None if there is none."""
    begin = tuple(extent - 1 - pad for extent, pad in zip(window.extent, window.begin, strict=True))
    end = tuple(extent - 1 - pad for extent, pad in zip(window.extent, window.end, strict=True))
    if any(stride != 1 for stride in window.strides) or min(*begin, *end) < 0:
        return None
    return Window(window.kernel, window.strides, window.dilations, begin, end)


def _adjoint_weight(w: Expr, group: int) -> Expr:
    """W [M, C/G, ...] as [C, M/G, ...], flipped in space."""
    m, c, *kernel = sizes_of(w, 0)
    axes = [2 + axis for axis, size in enumerate(kernel) if size > 1]
    if axes:
        w = w.slice([-1] * len(axes), [_BACKWARDS] * len(axes), axes, [-1] * len(axes))
    if group == 1:
        return w.transpose([1, 0, *_spatial(len(kernel))])
    parts = w.reshape([group, m // group, c, *kernel])
    turned = parts.transpose([0, 2, 1, *(axis + 1 for axis in _spatial(len(kernel)))])
    return turned.reshape([group * c, m // group, *kernel])


def _weight_gradient(x: Expr, g: Expr, window: Window, group: int) -> Expr:
    """The gradient of W: a Conv with batch for channels, `g` for weight, and strides and dilations exchanged.

    That of a 1x1 kernel is a product of matrices.
    """
    with marks(x.builder, x.builder.names.fresh("weight_gradient")):  # training_passes/weight_gradients.py finds it
        is_product = window.unit and group == 1
        gradient = _pointwise(x, g, window) if is_product else _by_convolution(x, g, window, group)
    result(gradient.value, 1)
    return gradient


def _by_convolution(x: Expr, g: Expr, window: Window, group: int) -> Expr:
    swap = [1, 0, *_spatial(window.rank)]
    exchanged = Window(sizes_of(g), window.dilations, window.strides, window.begin, window.end)
    gradient = _groups_in_front(x, group).op("Conv", g.transpose(swap), **exchanged.attributes(group))
    # Strides leave elements of x that no window reaches: with them the "output" is larger than the kernel.
    return _crop(gradient, window.kernel).transpose(swap)


def _groups_in_front(x: Expr, group: int) -> Expr:
    """X [N, C, ...] as [C/G, G*N, ...]: batch for channels, group by group."""
    c, *spatial = sizes_of(x, 1)
    axes = _spatial(len(spatial))
    if group == 1:
        return x.transpose([1, 0, *axes])
    parts = x.reshape([0, group, c // group, *spatial])
    turned = parts.transpose([2, 1, 0, *(axis + 1 for axis in axes)])
    return turned.reshape([c // group, -1, *spatial])


def _pointwise(x: Expr, g: Expr, window: Window) -> Expr:
    """The product of `g` as [M, N*L] and X as [C, N*L], transposed: a 1x1 convolution is a matrix product."""
    axes = _spatial(window.rank)
    (c, *inputs), (m, *outputs) = sizes_of(x, 1), sizes_of(g, 1)
    if any(stride != 1 for stride in window.strides):
        x = x.slice([0] * window.rank, inputs, axes, window.strides)
        x = _crop(x, outputs)
    return (_by_channel(g) @ _by_channel(x).T).reshape([m, c, *([1] * window.rank)])


def _by_channel(x: Expr) -> Expr:
    """X [N, C, ...] as [C, N*L]; with one sample that is a view."""
    channels, *spatial = sizes_of(x, 1)
    x = x if x.size(0) == 1 else x.transpose([1, 0, *_spatial(len(spatial))])
    return x.reshape([channels, -1])


def _crop(x: Expr, sizes: Sequence[int]) -> Expr:
    """The first `sizes` elements of the spatial axes of `x`."""
    assert x.shape is not None
    have = list(x.shape)[2:]
    axes = [2 + axis for axis, size in enumerate(sizes) if have[axis] != size]
    if not axes:
        return x
    return x.slice([0] * len(axes), [sizes[axis - 2] for axis in axes], axes)


def _spatial(rank: int) -> list[int]:
    return list(range(2, 2 + rank))
