"""How far outputs are apart, of any model: floats by their norm, integers by how many differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu.records import Record

__all__ = ["apart"]


def apart(reference: Sequence[Any], result: Sequence[Any], prefix: str = "error") -> Record:
    """Return the largest relative norm error of an output, and the largest share of integers that differ.

    The error is infinite where a finite value became another kind of number, or a shape is wrong. Sequences, strings
    and empty optionals are not compared.
    """
    worst, differing = 0.0, 0.0
    for wanted, value in zip(reference, result, strict=True):
        if not isinstance(wanted, np.ndarray) or not isinstance(value, np.ndarray) or wanted.dtype.kind in "OUS":
            continue
        if wanted.shape != value.shape:
            worst = math.inf
        elif wanted.dtype.kind in "iub":
            differing = max(differing, float(np.mean(wanted != value)) if wanted.size else 0.0)
        else:
            worst = max(worst, _relative(wanted.astype(np.float64), value.astype(np.float64)))
    row: Record = {prefix: worst}
    return row | ({f"{prefix}_integers": differing} if differing else {})


def _relative(wanted: np.ndarray, value: np.ndarray) -> float:
    finite = np.isfinite(wanted)
    if not np.isfinite(value[finite]).all():
        return math.inf
    both = finite & np.isfinite(value)
    difference, norm = np.linalg.norm((wanted - value)[both]), np.linalg.norm(wanted[both])
    return float(difference / norm if norm > 0 else difference)
