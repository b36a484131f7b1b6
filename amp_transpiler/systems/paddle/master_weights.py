"""Master weights of low parameters: their names, and whether a parameter was set since they were made."""

from __future__ import annotations

import numpy as np

from amp_transpiler.graph.training_step import master_name

__all__ = ["master_name", "newer_value"]


def newer_value(parameter: np.ndarray, master: np.ndarray, low: np.dtype) -> np.ndarray | None:
    """Return what a master weight is to take over from its parameter, in float32; None if the master may stay.

    A parameter that equals its master, or its master rounded, comes from it. Any other was set later: pretrained
    weights that were written to the scope, or loaded, after the startup program.

    Args:
        parameter: the parameter's value, float32 or low.
        master: its master weight, float32, of the same shape.
        low: the low format.
    """
    value = parameter.astype(np.float32)
    rounded = master.astype(low).astype(np.float32)
    unchanged_values = [rounded] if parameter.dtype == low else [rounded, master]
    return None if any(np.array_equal(value, known, equal_nan=True) for known in unchanged_values) else value
