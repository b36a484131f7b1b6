"""Multiplies by weights, looks up rows, pads and resizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.paddle.building import (
    Size,
    accept_name,
    builder_of,
    choice,
    emit,
    for_parameters,
    numbers,
    shape_operand,
    wrap,
)
from amp_transpiler.paddle.nn.functional.layout import as_given, channels_first
from amp_transpiler.program.program import Variable

__all__ = ["embedding", "interpolate", "linear", "one_hot", "pad"]

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
_RESIZE_MODES = {
    "nearest": "nearest",
    "linear": "linear",
    "bilinear": "linear",
    "trilinear": "linear",
    "bicubic": "cubic",
}


def linear(x: Variable, weight: Variable, bias: Variable | None = None) -> Variable:
    """Return `x @ weight + bias`.

    Args:
        x: [..., in]; of 16 bits with float32 parameters, it is cast to float32.
        weight: [in, out].
        bias: [out].
    """
    product = emit("MatMul", for_parameters(x, weight))
    return product if bias is None else emit("Add", [product, bias])


def embedding(
    x: Variable,
    weight: Variable,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    sparse: bool = False,
    scale_grad_by_freq: bool = False,
) -> Variable:
    """Look up rows of a table.

    Args:
        x: row numbers, int64 or int32, of any shape.
        weight: [rows, size].
        padding_idx: a row that reads as zeros and gets no gradient; a negative number counts from the last row.
        max_norm: rows that are longer read as rows of this length; the table itself stays as it is. A bool here is
            `sparse`, which came fourth before Paddle 3.
        norm_type: the `p` of the length.
        sparse: no effect: gradients are dense.
        scale_grad_by_freq: whether the gradient of a row is divided by how often `x` names it.

    Raises:
        InputError: `x` is of another element type, or there is no row `padding_idx`.
    """
    del sparse
    b = builder_of(x, weight)
    if x.value.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        raise InputError(f"embedding: row numbers must be int64 or int32, got {x!r}")
    rows = b.op("Gather", [weight.value, x.value], {"axis": 0})
    if max_norm is not None and not isinstance(max_norm, bool):
        rows = _shortened(x, rows, float(max_norm), norm_type)
    if scale_grad_by_freq:
        share = b.div(1.0, b.unsqueeze(_frequencies(x, weight), [x.ndim]))
        rows = _with_gradient_times(x, rows, b.cast(share, rows.dtype))
    if padding_idx is None:
        return wrap(x, rows)
    count = weight.shape[0]
    if not -count <= padding_idx < count:
        raise InputError(
            f"embedding: padding_idx {padding_idx} is no row of {weight!r}: expected {-count} to {count - 1}"
        )
    padding = b.unsqueeze(b.compare("Equal", x.value, padding_idx % count), [x.ndim])
    return wrap(x, b.where(padding, 0.0, rows))


def _shortened(x: Variable, rows: ir.Value, longest: float, norm_type: float) -> ir.Value:
    """Shorten rows to at most a length; the factor counts as a constant in gradients."""
    b = builder_of(x)
    size = b.pow(b.op("Abs", [b.high(rows)]), float(norm_type))
    length = b.pow(b.sum(size, [x.ndim]), 1.0 / norm_type)
    factor = b.where(b.compare("Greater", length, longest), b.div(longest, b.add(length, 1e-7)), 1.0)
    constant = wrap(x, b.cast(factor, rows.dtype))
    constant.stop_gradient = True
    return b.mul(rows, constant.value)


def _frequencies(x: Variable, weight: Variable) -> ir.Value:
    """Count how often each of the row numbers `x` is among them, in float32."""
    b = builder_of(x, weight)
    flat = b.reshape(x.value, [-1])
    zeros = b.op("ConstantOfShape", [b.slice(b.shape(weight.value), [0], [1], [0])])
    ones = b.expand_like(b.constant(1.0), flat)
    count = b.op("ScatterElements", [zeros, flat, ones], {"axis": 0, "reduction": "add"})
    return b.op("Gather", [count, x.value], {"axis": 0})


def _with_gradient_times(x: Variable, rows: ir.Value, share: ir.Value) -> ir.Value:
    """Return the same rows; their gradient is multiplied by a share."""
    b = builder_of(x)
    part = b.mul(rows, share)
    rest = wrap(x, b.sub(rows, part))
    rest.stop_gradient = True
    return b.add(part, rest.value)


def one_hot(x: Variable, num_classes: int) -> Variable:
    """Return float32 vectors, in a new last axis, that are 1 at the classes `x` (int64 or int32) and 0 elsewhere."""
    b = builder_of(x)
    values = b.constant(np.array([0.0, 1.0], np.float32))
    return wrap(x, b.op("OneHot", [x.value, b.constant(np.array(num_classes, np.int64)), values], {"axis": -1}))


def pad(
    x: Variable, pad: Sequence[int], mode: str = "constant", value: float = 0.0, data_format: str = "NCHW"
) -> Variable:
    """Return `x` with padding around it.

    Args:
        x: what to pad.
        pad: (before, after) for every axis, the first axis first; or for the spatial axes only, the last axis first:
            left, right, top, bottom, front, back.
        mode: `constant`, `reflect`, `replicate` or `circular`.
        value: the constant.
        data_format: where the channels are, for padding of spatial axes.

    Raises:
        OptionError: the mode is unknown, or `pad` has another length.
    """
    choice("pad: mode", mode, tuple(_PAD_MODES))
    amounts = [int(amount) for amount in pad]
    pairs = list(zip(amounts[::2], amounts[1::2], strict=False))
    spatial = x.ndim - 2
    if len(amounts) == 2 * spatial:
        pairs.reverse()
        others = [(0, 0)]
        pairs = others * 2 + pairs if data_format.startswith("NC") else others + pairs + others
    elif len(amounts) != 2 * x.ndim:
        raise OptionError(f"pad: expected {2 * x.ndim} or {2 * spatial} numbers for {x!r}, got {list(pad)}")
    b = builder_of(x)
    ends = np.array([before for before, _ in pairs] + [after for _, after in pairs], np.int64)
    inputs = [x.value, b.constant(ends)] + ([b.constant(value, x.value.dtype)] if mode == "constant" else [])
    return wrap(x, b.op("Pad", inputs, {"mode": _PAD_MODES[mode]}))


def interpolate(
    x: Variable,
    size: int | Variable | Sequence[Size] | None = None,
    scale_factor: float | Variable | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
    align_mode: int = 0,
    data_format: str = "NCHW",
) -> Variable:
    """Resize images.

    Args:
        x: [batch, channels, ...], or with the channels last.
        size: the sizes of the spatial axes: numbers and integer variables of one element, or one vector of them.
        scale_factor: factors on them instead: numbers, or a variable of one or as many.
        mode: `nearest`, `linear`, `bilinear`, `trilinear` or `bicubic`.
        align_corners: whether the centres of the corner pixels stay where they are.
        align_mode: 0 if a pixel's position is its centre, 1 if it is its corner; for the linear modes.
        data_format: where the channels are.

    Raises:
        OptionError: both or neither of size and factor are given, or the mode is unknown.
    """
    choice("interpolate: mode", mode, tuple(_RESIZE_MODES))
    if (size is None) == (scale_factor is None):
        raise OptionError("interpolate: give one of size and scale_factor")
    x = channels_first(x, data_format)
    b, spatial = builder_of(x), x.ndim - 2
    attributes: dict[str, Any] = {"mode": _RESIZE_MODES[mode], **_coordinates(mode, align_corners, align_mode)}
    attributes["axes"] = list(range(2, x.ndim))
    if size is not None:
        resized = b.op("Resize", [x.value, None, None, _sizes(x, size, spatial)], attributes)
    else:
        assert scale_factor is not None
        resized = b.op("Resize", [x.value, None, _factors(x, scale_factor, spatial)], attributes)
    if x.value.shape is not None:  # ONNX says nothing of a batch and channels beside computed sizes
        sizes = [None] * spatial if resized.shape is None else list(resized.shape)[2:]
        resized.shape = ir.Shape([*list(x.value.shape)[:2], *sizes])
    return as_given(wrap(x, resized), data_format)


def _sizes(x: Variable, size: int | Variable | Sequence[Size], spatial: int) -> ir.Value:
    """Return the sizes of the spatial axes as one vector."""
    if isinstance(size, int):
        size = [size]
    operand = shape_operand(x, size)
    if isinstance(operand, ir.Value):
        return _for_each(x, operand, spatial, size)
    lengths = numbers(operand, spatial, "interpolate: size")
    if min(lengths) < 1:
        raise OptionError(
            f"interpolate: size {lengths} is not positive: a free size is one of paddle.shape(y), not y.shape"
        )
    return builder_of(x).constant(np.array(lengths, np.int64))


def _factors(x: Variable, factor: float | Variable | Sequence[float], spatial: int) -> ir.Value:
    """Return the factors on the spatial axes as one float32 vector."""
    b = builder_of(x)
    if isinstance(factor, Variable):
        return _for_each(x, b.cast(factor.value, ir.DataType.FLOAT), spatial, factor)
    factors = [factor] * spatial if isinstance(factor, (int, float)) else list(factor)
    if len(factors) != spatial or min(factors) <= 0:
        raise OptionError(f"interpolate: expected a positive factor or {spatial} of them, got {factor!r}")
    return b.constant(np.array(factors, np.float32))


def _for_each(x: Variable, vector: ir.Value, spatial: int, argument: object) -> ir.Value:
    """Return a computed number for each spatial axis; one stands for all."""
    b = builder_of(x)
    flat = b.reshape(vector, [-1])
    length = None
    if vector.shape is not None:
        length = vector.shape[0] if len(vector.shape) > 0 else 1
    if length == spatial:
        return flat
    if isinstance(length, int) and length != 1:
        raise OptionError(f"interpolate: expected a number or {spatial} of them, got {argument!r}")
    return b.op("Expand", [flat, b.constant(np.array([spatial], np.int64))])


def _coordinates(mode: str, align_corners: bool, align_mode: int) -> dict[str, Any]:
    """Return the attributes of Resize that say which input pixels an output pixel is computed from."""
    if mode == "nearest":
        place, rounding = ("align_corners", "round_prefer_ceil") if align_corners else ("asymmetric", "floor")
        return {"coordinate_transformation_mode": place, "nearest_mode": rounding}
    if align_corners:
        return {"coordinate_transformation_mode": "align_corners"}
    half = mode == "bicubic" or align_mode == 0
    return {"coordinate_transformation_mode": "half_pixel" if half else "asymmetric", "cubic_coeff_a": -0.75}


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
