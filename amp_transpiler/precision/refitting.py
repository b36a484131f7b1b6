"""Casts constants of one float format to another: which of them stay exact, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import read
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.phrases import first_few, quoted

__all__ = ["refit", "refitting_note"]

_BLOCK = 1 << 20  # elements looked at in one go

_FAULTS = {
    "overflows": "beyond its range",
    "vanishes": "some elements become zero",
    "rounds": "rounded",
}


def refit(tensor: ir.TensorProtocol, low: LowFormat) -> str:
    """Say what becomes of a float tensor in another format.

    Returns:
        `exact`; or the worst of `rounds`: digits are lost, `vanishes`: a number becomes zero, and `overflows`: a finite
        number becomes infinite.
    """
    return read(tensor, lambda array: _refit(array.reshape(-1), low))


def _refit(flat: np.ndarray, low: LowFormat) -> str:
    fault = "exact"
    for at in range(0, flat.size, _BLOCK):
        wide = flat[at : at + _BLOCK].astype(np.float64)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            narrow = wide.astype(low.numpy).astype(np.float64)
        finite = np.isfinite(wide)
        if bool((finite & ~np.isfinite(narrow)).any()):
            return "overflows"
        if bool(((wide != 0) & (narrow == 0)).any()):
            fault = "vanishes"
        elif fault == "exact" and bool((finite & (wide != narrow)).any()):
            fault = "rounds"
    return fault


def refitting_note(constants: Iterable[tuple[str, ir.TensorProtocol]], low: LowFormat) -> tuple[str, ...]:
    """Return a sentence about the constants of another format, in `low`; none if there are no constants.

    Args:
        constants: name of each, and its tensor before.
        low: the format that they are converted to, or are where their readers become low.
    """
    names: dict[str, list[str]] = {}
    for name, tensor in constants:
        names.setdefault(refit(tensor, low), []).append(name)
    total = sum(map(len, names.values()))
    if not total:
        return ()
    parts = [f"{len(names.get('exact', ()))} of {total} constants are exact in {low.name}"]
    for fault, words in _FAULTS.items():
        if constant_names := names.get(fault):
            parts.append(f"{words}: {first_few(quoted(constant_names))}")
    return ("; ".join(parts),)
