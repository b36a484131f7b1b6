"""Gradients of convolutions. The batch size may be symbolic; channels and spatial sizes must be known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.autodiff.windows import Window, in_shape_of, sizes_of, window_of
from amp_transpiler.graph.builder import GraphBuilder

_BACKWARDS = -(2**63) + 1  # the end of a Slice with step -1 that takes the first element too


@gradient("Conv")
def conv(n: NodeGradient) -> list[ir.Value | None]:
    """A transposed convolution of `g` with W; a convolution of X with `g`, batch for channels; the sum of `g`."""
    b, x, w, g = n.b, n.x, n.input(1), n.g
    group = n.attribute("group", 1)
    window = window_of(n, sizes_of(n, x), sizes_of(n, w))
    dx = dw = None
    if n.wants(0):
        dx = in_shape_of(_data_gradient(n, g, window, group), x)
    if n.wants(1):
        dw = in_shape_of(_weight_gradient(n, x, g, window, group), w)
    return [dx, dw, _bias_gradient(b, g) if n.wants(2) else None]


@gradient("ConvTranspose")
def conv_transpose(n: NodeGradient) -> list[ir.Value | None]:
    """The same with X and `g` exchanged: a transposed convolution is what a convolution does to gradients."""
    b, x, w, g = n.b, n.x, n.input(1), n.g
    group = n.attribute("group", 1)
    window = _transposed_window(n)
    dx = dw = None
    if n.wants(0):
        dx = in_shape_of(b.op("Conv", [g, w], _attributes(window, group)), x)
    if n.wants(1):
        dw = in_shape_of(_weight_gradient(n, g, x, window, group), w)
    return [dx, dw, _bias_gradient(b, g) if n.wants(2) else None]


def _attributes(window: Window, group: int) -> dict[str, Any]:
    return {
        "kernel_shape": list(window.kernel),
        "strides": list(window.strides),
        "dilations": list(window.dilations),
        "pads": window.pads,
        "group": group,
    }


def _transposed_window(n: NodeGradient) -> Window:
    """The windows of a ConvTranspose over its output, which plays the part of a Conv's input."""
    inputs, outputs, kernel = sizes_of(n, n.x), sizes_of(n, n.y), sizes_of(n, n.input(1))
    auto_pad = n.attribute("auto_pad", "NOTSET")
    strides = tuple(n.attribute("strides") or [1] * len(inputs))
    dilations = tuple(n.attribute("dilations") or [1] * len(inputs))
    adjust = n.attribute("output_padding") or [0] * len(inputs)
    if auto_pad == "VALID" or (auto_pad == "NOTSET" and not n.attribute("output_shape")):
        pads = [] if auto_pad == "VALID" else n.attribute("pads")
        pads = list(pads or [0] * (2 * len(inputs)))
        return Window(kernel, strides, dilations, tuple(pads[: len(inputs)]), tuple(pads[len(inputs) :]))
    begin, end = [], []
    for size, out, k, stride, dilation, more in zip(inputs, outputs, kernel, strides, dilations, adjust, strict=True):
        total = max(stride * (size - 1) + more + dilation * (k - 1) + 1 - out, 0)
        small, large = total // 2, total - total // 2
        begin.append(small if auto_pad == "SAME_UPPER" else large)
        end.append(large if auto_pad == "SAME_UPPER" else small)
    return Window(kernel, strides, dilations, tuple(begin), tuple(end))


def _bias_gradient(b: GraphBuilder, g: ir.Value) -> ir.Value:
    """The sum over everything but channels, in float32."""
    assert g.shape is not None
    return b.sum(g, [axis for axis in range(len(g.shape)) if axis != 1], keepdims=False)


def _data_gradient(n: NodeGradient, g: ir.Value, window: Window, group: int) -> ir.Value:
    b, w = n.b, n.input(1)
    inputs, outputs = sizes_of(n, n.x), sizes_of(n, n.y)
    if g.dtype == ir.DataType.BFLOAT16:  # CUDA has no bfloat16 ConvTranspose, but a Conv
        around = _window_of_adjoint(window)
        if around is not None:
            return b.op("Conv", [g, _adjoint_weight(n, w, group)], _attributes(around, group))
        g, w = b.high(g), b.high(w)
    unused = window.unused(inputs, outputs)
    attributes = _attributes(window, group)
    if window.begin == window.end:
        attributes["output_padding"] = list(unused)
        return b.op("ConvTranspose", [g, w], attributes)
    # cuDNN pads both ends alike: compute all, and cut the padding off.
    attributes["pads"] = [0] * (2 * window.rank)
    attributes["output_padding"] = [max(rest - end, 0) for rest, end in zip(unused, window.end, strict=True)]
    full = b.op("ConvTranspose", [g, w], attributes)
    ends = [begin + size for begin, size in zip(window.begin, inputs, strict=True)]
    return b.slice(full, window.begin, ends, _spatial(window.rank))


def _window_of_adjoint(window: Window) -> Window | None:
    """The windows of the stride-1 Conv that is the adjoint of a stride-1 Conv; None if there is no such."""
    begin = tuple(extent - 1 - pad for extent, pad in zip(window.extent, window.begin, strict=True))
    end = tuple(extent - 1 - pad for extent, pad in zip(window.extent, window.end, strict=True))
    if any(stride != 1 for stride in window.strides) or min(*begin, *end) < 0:
        return None
    return Window(window.kernel, window.strides, window.dilations, begin, end)


def _adjoint_weight(n: NodeGradient, w: ir.Value, group: int) -> ir.Value:
    """W [M, C/G, ...] as [C, M/G, ...], flipped in space."""
    b, (m, c, *kernel) = n.b, sizes_of(n, w, 0)
    axes = [2 + axis for axis, size in enumerate(kernel) if size > 1]
    if axes:
        w = b.slice(w, [-1] * len(axes), [_BACKWARDS] * len(axes), axes, [-1] * len(axes))
    if group == 1:
        return b.transpose(w, [1, 0, *_spatial(len(kernel))])
    parts = b.reshape(w, [group, m // group, c, *kernel])
    turned = b.transpose(parts, [0, 2, 1, *(axis + 1 for axis in _spatial(len(kernel)))])
    return b.reshape(turned, [group * c, m // group, *kernel])


def _weight_gradient(n: NodeGradient, x: ir.Value, g: ir.Value, window: Window, group: int) -> ir.Value:
    """Gradient [M, C/G, ...] of the weight of a Conv of `x` [N, C, ...] with output gradient `g` [N, M, ...].

    It is a Conv with batch for channels, `g` for weight, and strides and dilations exchanged.
    """
    if window.unit and group == 1:
        return _pointwise_weight_gradient(n, x, g, window)
    b, axes = n.b, _spatial(window.rank)
    swap = [1, 0, *axes]
    made = b.op(
        "Conv",
        [_groups_in_front(n, x, group), b.transpose(g, swap)],
        _attributes(Window(sizes_of(n, g), window.dilations, window.strides, window.begin, window.end), group),
    )
    # Strides leave elements of x that no window reaches: with them the "output" is larger than the kernel.
    return b.transpose(_crop(b, made, window.kernel), swap)


def _groups_in_front(n: NodeGradient, x: ir.Value, group: int) -> ir.Value:
    """`x` [N, C, ...] as [C/G, G*N, ...]: batch for channels, group by group."""
    b, (c, *spatial) = n.b, sizes_of(n, x, 1)
    axes = _spatial(len(spatial))
    if group == 1:
        return b.transpose(x, [1, 0, *axes])
    parts = b.reshape(x, [0, group, c // group, *spatial])
    turned = b.transpose(parts, [2, 1, 0, *(axis + 1 for axis in axes)])
    return b.reshape(turned, [c // group, -1, *spatial])


def _pointwise_weight_gradient(n: NodeGradient, x: ir.Value, g: ir.Value, window: Window) -> ir.Value:
    """The product of `g` [M, N*L] and `x` [N*L, C]."""
    b, axes = n.b, _spatial(window.rank)
    (c, *inputs), (m, *outputs) = sizes_of(n, x, 1), sizes_of(n, g, 1)
    if any(stride != 1 for stride in window.strides):
        x = b.slice(x, [0] * window.rank, inputs, axes, window.strides)
        x = _crop(b, x, outputs)
    rows = b.reshape(b.transpose(g, [1, 0, *axes]), [m, -1])
    columns = b.reshape(b.transpose(x, [0, *axes, 1]), [-1, c])
    return b.reshape(b.matmul(rows, columns), [m, c, *([1] * window.rank)])


def _crop(b: GraphBuilder, x: ir.Value, sizes: Sequence[int]) -> ir.Value:
    """The first `sizes` elements of the spatial axes of `x`."""
    assert x.shape is not None
    have = list(x.shape)[2:]
    axes = [2 + axis for axis, size in enumerate(sizes) if have[axis] != size]
    if not axes:
        return x
    return b.slice(x, [0] * len(axes), [sizes[axis - 2] for axis in axes], axes)


def _spatial(rank: int) -> list[int]:
    return list(range(2, 2 + rank))
