"""Drops elements and channels at random."""
# ruff: noqa: A002  # Paddle's names

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.paddle.building import accept_name, axis_of, builder_of, choice, wrap
from amp_transpiler.paddle.framework.programs import default_startup_program
from amp_transpiler.paddle.framework.random_state import ensure_random_state
from amp_transpiler.program.program import Variable

__all__ = ["alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"]


def dropout(
    x: Variable,
    p: float = 0.5,
    axis: int | Sequence[int] | None = None,
    training: bool = True,
    inplace: bool | str = False,
    mode: str = "upscale_in_train",
) -> Variable:
    """Set elements to 0 at random.

    The program keeps a random seed and the step's number as persistable values. So each run draws new numbers, and
    every process that starts from the same state draws the same ones. `clone(for_test=True)` removes it.

    Args:
        x: the tensor to drop elements of.
        p: the probability of each element to be dropped.
        axis: draw for each index along these axes, and share the draw along the others; None to draw for each element.
        training: False to drop nothing.
        inplace: no effect; a mode in this place, where it was in Paddle 2, counts as one.
        mode: `upscale_in_train` divides by `1 - p` in training; `downscale_in_infer` multiplies by it in inference.

    Raises:
        OptionError: `p` is no probability, or there is no such mode.
    """
    mode = inplace if isinstance(inplace, str) else mode
    choice("dropout: mode", mode, ("upscale_in_train", "downscale_in_infer"))
    if not 0 <= p <= 1:
        raise OptionError(f"dropout: p must be a probability, got {p}")
    builder = builder_of(x)
    if p == 0:
        return x
    y = x.value
    if training and axis is None:
        y = _dropped(x, y, p)
    elif training:
        axes = [axis_of(x, number) for number in ([axis] if isinstance(axis, int) else axis or ())]
        y = builder.mul(y, _dropped(x, _ones(x, axes), p))
    if (
        mode == "downscale_in_infer"
    ):  # ONNX's operator scales up in training: this undoes it, and scales down in inference
        y = builder.mul(y, 1.0 - p)
    return wrap(x, y)


def dropout1d(input: Variable, p: float = 0.5, training: bool = True, inplace: bool = False) -> Variable:
    """Set whole channels of sequences [batch, channels, length] to 0 at random; see `dropout`."""
    return dropout(input, p, [0, 1], training, inplace)


def dropout2d(x: Variable, p: float = 0.5, training: bool = True, data_format: str = "NCHW") -> Variable:
    """Set whole channels of images to 0 at random; see `dropout`."""
    return dropout(x, p, [0, 1] if data_format == "NCHW" else [0, 3], training)


def dropout3d(x: Variable, p: float = 0.5, training: bool = True, data_format: str = "NCDHW") -> Variable:
    """Set whole channels of volumes to 0 at random; see `dropout`."""
    return dropout(x, p, [0, 1] if data_format == "NCDHW" else [0, 4], training)


def alpha_dropout(x: Variable, p: float = 0.5, training: bool = True) -> Variable:
    """Set elements to the lowest value of `selu` at random, then scale and shift: mean and variance stay.

    Args:
        x: the tensor to drop elements of.
        p: the probability of each element to be dropped, below 1.
        training: False to drop nothing; `clone(for_test=True)` drops nothing either.

    Raises:
        OptionError: `p` is outside of [0, 1).
    """
    return _alpha_dropped(x, p, training, list(range(x.ndim)))


def feature_alpha_dropout(x: Variable, p: float = 0.5, training: bool = True) -> Variable:
    """Drop whole channels as `alpha_dropout` drops elements."""
    return _alpha_dropped(x, p, training, [0, 1])


_LOWEST = -1.0507009873554805 * 1.6732632423543772  # of selu


def _alpha_dropped(x: Variable, p: float, training: bool, axes: Sequence[int]) -> Variable:
    if not 0 <= p < 1:
        raise OptionError(f"alpha_dropout: p must be at least 0 and below 1, got {p}")
    if not training or p == 0:
        return x
    b = builder_of(x)
    factor = ((1 - p) * (1 + p * _LOWEST**2)) ** -0.5
    shift = -factor * _LOWEST * p
    mask = _dropped(x, b.cast(_ones(x, axes), ir.DataType.FLOAT), p)  # 0 or 1 / (1 - p); 1 where nothing drops
    scaled = b.add(b.mul(x.value, factor), shift)
    drawn = b.where(b.compare("Greater", mask, 0.0), scaled, factor * _LOWEST + shift)
    return wrap(x, b.where(b.compare("Equal", mask, 1.0), x.value, drawn))


def _dropped(x: Variable, value: ir.Value, p: float) -> ir.Value:
    ensure_random_state(x.program, default_startup_program())
    builder = builder_of(x)
    ratio = builder.constant(np.array(p, np.float32))
    return builder.op("Dropout", [value, ratio, builder.constant(np.array(True))])


def _ones(x: Variable, axes: Sequence[int]) -> ir.Value:
    """Return ones in the shape of `x` along `axes`, with 1 along the others."""
    builder = builder_of(x)
    drawn = builder.constant(np.array([axis in axes for axis in range(x.ndim)]))
    shape = builder.where(drawn, builder.shape(x.value), 1)
    dtype = x.value.dtype or ir.DataType.FLOAT
    ones = builder.op("ConstantOfShape", [shape], {"value": ir.tensor(np.ones(1, dtype.numpy()))})
    sizes = list(x.value.shape) if x.value.shape is not None else []
    ones.shape = ir.Shape([size if axis in axes else 1 for axis, size in enumerate(sizes)])
    return ones


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
