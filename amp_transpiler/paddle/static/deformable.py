"""`static.nn.deform_conv2d` builds a convolution whose taps are moved by offsets that the data give."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import builder_of, numbers, program_of, size_at, wrap
from amp_transpiler.paddle.framework.parameters import ParameterMaker
from amp_transpiler.paddle.initial_values import Normal
from amp_transpiler.paddle.nn.functional.vision import grid_sample
from amp_transpiler.paddle.param_attr import Attr
from amp_transpiler.program.program import Variable

__all__ = ["deform_conv2d"]

_WHAT = "deform_conv2d"


def deform_conv2d(
    x: Variable,
    offset: Variable,
    mask: Variable | None,
    num_filters: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    deformable_groups: int = 1,
    im2col_step: int = 1,
    weight_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> Variable:
    """Append a convolution that reads between the pixels of an image: an offset moves each tap.

    Args:
        x: [batch, channels, height, width]; all but the batch must be known.
        offset: how far each tap is moved, down and to the right in turns,
            [batch, 2 * deformable_groups * taps, result height, result width].
        mask: factors of the taps, [batch, deformable_groups * taps, result height, result width]; None for none.
        num_filters: the number of filters.
        filter_size: their height and width.
        stride: step of the window.
        padding: zeros around the image.
        dilation: distance between the elements of the window.
        groups: groups of channels and filters.
        deformable_groups: groups of channels with offsets of their own.
        im2col_step: Paddle's, no effect.
        weight_attr: of the filters `deform_conv2d_0.w_0`; normal initial values of variance 2 / (window * channels).
        bias_attr: of the bias `deform_conv2d_0.b_0`; False for none.
        name: the layer's name instead of `deform_conv2d_0`.

    Raises:
        InputError: a size is not known, or the groups, offsets or mask do not fit.
        OptionError: the filters have no weight.
    """
    del im2col_step
    window, steps, pads, gaps = (
        numbers(value, 2, f"{_WHAT}: {label}")
        for value, label in (
            (filter_size, "filter_size"), (stride, "stride"), (padding, "padding"), (dilation, "dilation"),
        )
    )  # fmt: skip
    channels, taps, layer = size_at(x, 1, _WHAT), math.prod(window), ParameterMaker(_WHAT, name, program_of(x))
    if channels % (groups * deformable_groups) or num_filters % groups:
        raise InputError(f"{_WHAT}: {channels} channels and {num_filters} filters cannot be split into such groups")
    image = [size_at(x, axis, _WHAT) for axis in (2, 3)]
    sizes = [
        (size + 2 * pad - gap * (width - 1) - 1) // step + 1
        for size, pad, gap, width, step in zip(image, pads, gaps, window, steps, strict=True)
    ]
    for operand, count in ((offset, 2 * deformable_groups * taps), (mask, deformable_groups * taps)):
        if operand is not None and list(operand.shape[1:]) != [count, *sizes]:
            raise InputError(f"{_WHAT}: expected [batch, {count}, {sizes[0]}, {sizes[1]}], got {operand!r}")
    initial = Normal(0.0, math.sqrt(2.0 / (taps * channels)))
    weight = layer.weight(weight_attr, [num_filters, channels // groups, *window], x.value.dtype, initial)
    if weight is None:
        raise OptionError(f"{_WHAT}: the layer needs its weight: give None or a ParamAttr, not False")
    bias = layer.bias(bias_attr, [num_filters], x.value.dtype)
    begins = _begins(window, sizes, steps, pads, gaps)
    b, taken = builder_of(x, offset, mask), _sampled(x, offset, mask, begins, image, deformable_groups)
    rows = b.reshape(taken.value, [-1, groups, channels // groups * taps, math.prod(sizes)])
    filters = b.reshape(weight.value, [groups, num_filters // groups, channels // groups * taps])
    convolved = b.reshape(b.matmul(filters, rows), [-1, num_filters, *sizes])
    return wrap(x, convolved if bias is None else b.add(convolved, b.reshape(bias.value, [1, num_filters, 1, 1])))


def _begins(
    window: Sequence[int], sizes: Sequence[int], steps: Sequence[int], pads: Sequence[int], gaps: Sequence[int]
) -> np.ndarray:
    """Return where each tap reads without an offset, (right, down): [taps, places, 2]."""
    along = [
        np.arange(width)[:, None] * gap + np.arange(size)[None] * step - pad
        for width, size, step, pad, gap in zip(window, sizes, steps, pads, gaps, strict=True)
    ]
    shape = (window[0], window[1], sizes[0], sizes[1])
    down = np.broadcast_to(along[0][:, None, :, None], shape)
    right = np.broadcast_to(along[1][None, :, None, :], shape)
    return np.stack([right, down], -1).reshape(math.prod(window), math.prod(sizes), 2).astype(np.float32)


def _sampled(
    x: Variable, offset: Variable, mask: Variable | None, begins: np.ndarray, image: Sequence[int], parts: int
) -> Variable:
    """Return the values at each tap, [batch * parts, channels / parts, taps, places]."""
    b, (taps, places, _) = builder_of(x), begins.shape
    moved = b.transpose(b.reshape(offset.value, [-1, taps, 2, places]), [0, 1, 3, 2])
    down, right = b.nodes("Split", [moved], {"axis": 3, "num_outputs": 2}, outputs=2)
    place = b.add(b.concat([right, down], 3), b.constant(begins[None], x.value.dtype))
    scale = np.array([2.0 / image[1], 2.0 / image[0]])  # to the coordinates of grid_sample: -1 to 1 over the image
    grid = b.add(b.mul(place, b.constant(scale, x.value.dtype)), b.constant(scale / 2 - 1, x.value.dtype))
    part = wrap(x, b.reshape(x.value, [-1, x.shape[1] // parts, *image]))
    samples = grid_sample(part, wrap(x, grid), align_corners=False)
    if mask is None:
        return samples
    return wrap(x, b.mul(samples.value, b.reshape(mask.value, [-1, 1, taps, places])))


check_arguments(globals(), __all__)
