"""`onnxconverter_common.auto_mixed_precision`: float16 except for what your measure wants in float32.

    An import changes::

    from amp_transpiler.compat.auto_mixed_precision import auto_convert_mixed_precision

    model = auto_convert_mixed_precision(onnx.load("model.onnx"), {"x": x}, rtol=0.01, atol=0.001)

The original converts and runs the model tens to hundreds of times; here the errors of all nodes come from a few runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from amp_transpiler.compat.arguments import converted
from amp_transpiler.errors import OptionError

__all__ = ["Validate", "auto_convert_mixed_precision", "search_options"]

Validate: TypeAlias = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], bool]
"""Takes the outputs of float32 and of the result, in the order of the graph, and says whether the result is good."""

_GOOD = 1.0


def auto_convert_mixed_precision(
    model: onnx.ModelProto | ir.Model | str | os.PathLike[str],
    feed_dict: Mapping[str, np.ndarray],
    validate_fn: Validate | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    keep_io_types: bool = False,
    **options: Any,
) -> onnx.ModelProto:
    """Return the model in float16, with as many nodes in float32 as a validation asks for.

    Args:
        model: the model, or its path; not changed.
        feed_dict: input -> array: what the outputs are compared on.
        validate_fn: says whether outputs are good.
        rtol: outputs are good if `numpy.allclose` says so. With `validate_fn`, both must hold.
        atol: likewise.
        keep_io_types: inputs and outputs stay float32.
        options: options of `amp_transpiler.transpile`.

    Raises:
        OptionError: (a ValueError) neither a function nor a tolerance is given.
        CheckFailed: no conversion is good, not even float32.
    """
    defaults = search_options("auto_convert_mixed_precision", feed_dict, validate_fn, rtol, atol)
    defaults["keep_io_types"] = keep_io_types
    program, _ = converted("auto_convert_mixed_precision", model, options, defaults)
    return program.to_onnx()


def search_options(
    function: str, feeds: Mapping[str, np.ndarray], validate: Validate | None, rtol: float | None, atol: float | None
) -> dict[str, Any]:
    """Return the options of `transpile` that a validation stands for.

    Raises:
        OptionError: there is nothing to validate by.
    """
    if validate is None and rtol is None and atol is None:
        raise OptionError(f"{function}: `validate_fn` and `rtol` cannot both be None: give one of them")
    if validate is not None and not callable(validate):
        raise OptionError(f"{function}: expected a function of two lists of outputs, got {validate!r}")
    relative = None
    if rtol is not None or atol is not None:
        relative = 1e-5 if rtol is None else float(rtol)
    absolute = 1e-8 if atol is None else float(atol)

    def validation(exact: Sequence[Mapping[str, Any]], low: Sequence[Mapping[str, Any]]) -> float:
        worst = 0.0
        for exact_outputs, low_outputs in zip(exact, low, strict=True):
            left, right = list(exact_outputs.values()), list(low_outputs.values())
            if validate is not None and not validate(left, right):
                return math.inf
            if relative is not None:
                worst = max(worst, *(_excess(a, b, relative, absolute) for a, b in zip(left, right, strict=True)))
        return worst

    return {"level": "auto", "inputs": dict(feeds), "metric": validation, "metric_bound": _GOOD}


def _excess(exact: Any, low: Any, relative: float, absolute: float) -> float:
    """Return by how many times the difference exceeds what `numpy.allclose` allows; at most 1 if it is content."""
    left, right = np.asarray(exact, np.float64), np.asarray(low, np.float64)
    finite = np.isfinite(left) & np.isfinite(right)
    if not np.array_equal(left[~finite], right[~finite]):  # NaN is equal to nothing here, as there
        return math.inf
    left, right = left[finite], right[finite]
    if not left.size:
        return 0.0
    difference, allowed = np.abs(left - right), absolute + relative * np.abs(right)
    shares = np.divide(difference, allowed, out=np.where(difference > 0, math.inf, 0.0), where=allowed > 0)
    return float(shares.max())
