"""The accumulation type of float16 matrix products on CUDA: one choice for a whole process.

ONNX Runtime's CUDA provider reads it from the environment variable ORT_CUDA_GEMM_OPTIONS, an integer: bit 0 accumulates
in float16, bit 1 forbids reduced precision inside a float32 reduction, bit 2 is cuBLAS's pedantic mode. It reads the
variable once, at the first float16 product of the process. bfloat16 always accumulates in float32, and convolutions,
which use cuDNN, ignore the variable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import threading
from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

from amp_transpiler.errors import EnvironmentProblem, OptionError
from amp_transpiler.runtime.places import Place

__all__ = ["VARIABLE", "TilingAccum", "check_tiling_accum", "gemm_option", "warn_without_effect"]

logger = logging.getLogger(__name__)

TilingAccum: TypeAlias = Literal["fp32", "low"]

VARIABLE = "ORT_CUDA_GEMM_OPTIONS"

_ACCUMULATE_LOW = 1  # bit 0 of the variable
_NAMES = {"fp32": "float32", "low": "float16"}


@dataclasses.dataclass(slots=True)
class _Process:
    """The choice of this process: that of its first CUDA session."""

    chosen: TilingAccum | None = None


_process = _Process()
_lock = threading.Lock()


def check_tiling_accum(tiling_accum: str, place: Place) -> None:
    """Check that `tiling_accum` is a setting that exists on `place`.

    Raises:
        OptionError: it is neither "fp32" nor "low".
        EnvironmentProblem: "low" on the CPU.
    """
    if tiling_accum not in get_args(TilingAccum):
        raise OptionError(f"tiling_accum must be 'fp32' or 'low', got {tiling_accum!r}")
    if tiling_accum == "low" and not place.reads_gemm_options:
        raise EnvironmentProblem(
            f"tiling_accum='low' is an option of ONNX Runtime's CUDA provider, but this runs on {place}, where matrix "
            "products are accumulated in float32: leave it at 'fp32', or run on a CUDAPlace"
        )


@contextlib.contextmanager
def gemm_option(tiling_accum: TilingAccum, place: Place) -> Iterator[None]:
    """A CUDA session that is opened in this context accumulates float16 matrix products in the given type.

    The first CUDA session decides for the process; for "low" the environment variable is set. If the session fails to
    open, everything stays as it was. On the CPU nothing changes.

    Raises:
        EnvironmentProblem: a CUDA session of this process has the other setting, or the user has set the environment
            variable to contradict.
    """
    if not place.reads_gemm_options:
        yield
        return
    with _lock:
        if _process.chosen is None:  # other threads wait here until the first session is open
            with _in_environment(tiling_accum):
                yield
            _process.chosen = tiling_accum
            return
    if _process.chosen != tiling_accum:
        raise EnvironmentProblem(
            f"tiling_accum={tiling_accum!r}: a CUDA session of this process has tiling_accum={_process.chosen!r}, "
            "and ONNX Runtime reads that once in a process: choose one for all of them, or run this in its own process"
        )
    yield


@contextlib.contextmanager
def _in_environment(tiling_accum: TilingAccum) -> Iterator[None]:
    """Set the variable for `tiling_accum`, and leave it set unless the block fails."""
    before = os.environ.get(VARIABLE)
    setting = before or ""  # ONNX Runtime ignores an empty variable
    _refuse_contradiction(tiling_accum, setting)
    if setting or tiling_accum == "fp32":
        yield
        return
    os.environ[VARIABLE] = str(_ACCUMULATE_LOW)
    try:
        yield
    except BaseException:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
        raise
    logger.info("%s=%d: float16 matrix products accumulate in float16", VARIABLE, _ACCUMULATE_LOW)


def _refuse_contradiction(tiling_accum: TilingAccum, setting: str) -> None:
    if not setting:
        return
    if not re.fullmatch(r"[+-]?[0-9]+", setting):
        raise EnvironmentProblem(f"the environment has {VARIABLE}={setting}, which is no integer: unset it")
    wanted: TilingAccum = "low" if int(setting) & _ACCUMULATE_LOW else "fp32"
    if wanted != tiling_accum:
        raise EnvironmentProblem(
            f"tiling_accum={tiling_accum!r}, but the environment has {VARIABLE}={setting}, which accumulates float16 "
            f"matrix products in {_NAMES[wanted]}: unset it, or ask for tiling_accum={wanted!r}"
        )


def warn_without_effect() -> None:
    """Warn that `tiling_accum="low"` has no effect on a program without float16 values."""
    logger.warning(
        "tiling_accum='low' changes nothing: the program has no float16 value, and ONNX Runtime accumulates float32 "
        "and bfloat16 in float32 always"
    )
