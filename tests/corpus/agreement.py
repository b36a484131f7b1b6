"""How far outputs are from those of float32: written apart from the package's own comparison, which it checks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

TWO_PERCENT = 0.02
FIVE_PERCENT = 0.05


def disagreement(wanted: Any, got: Any, limit: float, *, random: bool = False) -> str:
    """Say how `got` fails to agree with `wanted`, an output of float32; empty if it agrees.

    Args:
        wanted: an array, a list of them (a sequence), or None (an empty optional).
        got: what should be the same.
        limit: largest norm of the difference over the norm of `wanted`; integers count as numbers.
        random: compare shapes and types only.
    """
    if wanted is None or got is None:
        return "" if wanted is got else f"{got!r} instead of {wanted!r}"
    if isinstance(wanted, list):
        if len(wanted) != len(got):
            return f"{len(got)} items instead of {len(wanted)}"
        faults = (disagreement(w, g, limit, random=random) for w, g in zip(wanted, got, strict=True))
        return next(filter(None, faults), "")
    wanted, got = np.asarray(wanted), np.asarray(got)
    if (wanted.shape, wanted.dtype) != (got.shape, got.dtype):
        return f"{got.dtype}{list(got.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    if random:
        return ""
    if wanted.dtype.kind in "OUS":
        return "" if np.array_equal(wanted, got) else "other strings"
    return _numbers_disagree(_as_float64(wanted), _as_float64(got), limit)


def _as_float64(array: np.ndarray) -> np.ndarray:
    """Return the numbers in a row; a complex one is two."""
    flat = np.atleast_1d(array).ravel()
    return flat.view(flat.real.dtype).astype(np.float64) if flat.dtype.kind == "c" else flat.astype(np.float64)


def _numbers_disagree(wanted: np.ndarray, got: np.ndarray, limit: float) -> str:
    finite = np.isfinite(wanted)
    lost = int(np.count_nonzero(finite & ~np.isfinite(got)))
    if lost:
        return f"{lost} non-finite values where fp32 is finite"
    if not np.array_equal(wanted[~finite], got[~finite], equal_nan=True):
        return "another value where fp32 is infinite or NaN"
    norm = float(np.linalg.norm(wanted[finite]))
    difference = float(np.linalg.norm(got[finite] - wanted[finite]))
    relative = difference / norm if norm else (0.0 if difference == 0.0 else math.inf)
    return "" if relative <= limit else f"{relative:.2%} from float32 in relative norm"
