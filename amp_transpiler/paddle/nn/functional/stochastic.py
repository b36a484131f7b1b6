"""Functions that draw random numbers: dropout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.graph.program import Variable
from amp_transpiler.paddle.framework.programs import default_startup_program
from amp_transpiler.paddle.framework.random_state import ensure_random_state
from amp_transpiler.paddle.nn.functional.building import axis_of, builder_of, choice, wrap

__all__ = ["dropout"]


def dropout(
    x: Variable,
    p: float = 0.5,
    axis: int | Sequence[int] | None = None,
    training: bool = True,
    mode: str = "upscale_in_train",
) -> Variable:
    """Set elements to 0 at random.

    The program keeps a random seed and the step's number as persistable values. So each run draws anew, and draws the
    same in every process that starts from the same state. `clone(for_test=True)` removes it.

    Args:
        x: the tensor to drop elements of.
        p: the probability of each element to be dropped.
        axis: draw for each index along these axes, and share the draw along the others; None to draw for each element.
        training: False to drop nothing.
        mode: `upscale_in_train` divides by `1 - p` in training; `downscale_in_infer` multiplies by it in inference.

    Raises:
        OptionError: `p` is no probability, or there is no such mode.
    """
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


def _dropped(x: Variable, value: ir.Value, p: float) -> ir.Value:
    ensure_random_state(x.program, default_startup_program())
    builder = builder_of(x)
    ratio = builder.constant(np.array(p, np.float32))
    return builder.op("Dropout", [value, ratio, builder.constant(np.array(True))])


def _ones(x: Variable, axes: Sequence[int]) -> ir.Value:
    """Ones in the shape of `x` along `axes`, with 1 along the others."""
    builder = builder_of(x)
    drawn = builder.constant(np.array([axis in axes for axis in range(x.ndim)]))
    shape = builder.where(drawn, builder.shape(x.value), 1)
    dtype = x.value.dtype or ir.DataType.FLOAT
    ones = builder.op("ConstantOfShape", [shape], {"value": ir.tensor(np.ones(1, dtype.numpy()))})
    sizes = list(x.value.shape) if x.value.shape is not None else []
    ones.shape = ir.Shape([size if axis in axes else 1 for axis, size in enumerate(sizes)])
    return ones


mark_functions(globals(), __all__)
