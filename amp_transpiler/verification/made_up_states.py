"""Makes up states of a training step by their roles: what an optimizer starts from, not random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amp_transpiler.graph.training_step import TrainingStep

__all__ = ["with_made_up_states"]


def with_made_up_states(
    sample: Mapping[str, Any], step: TrainingStep, run: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a made-up sample with states that a training step may start from.

    Moments and counters are zero; counters are one if zero makes the outputs NaN or infinite, as it may a loss scale.
    Statistics are positive, since one of them may be a variance. Parameters stay as they are, and so does what has an
    initial value in the model, which the sample does not hold.

    Args:
        sample: input name -> array.
        step: the states.
        run: runs a sample, and returns the outputs by name.
    """
    feeds = dict(sample)
    for state in step.states:
        if state.input in feeds and state.role != "parameter":
            value = np.asarray(feeds[state.input])
            feeds[state.input] = np.abs(value) if state.role == "statistic" else np.zeros_like(value)
    counters = {s.input: np.ones_like(feeds[s.input]) for s in step.states if s.role == "counter" and s.input in feeds}
    if not counters or _is_finite(run(feeds)):
        return feeds
    ones = {**feeds, **counters}
    return ones if _is_finite(run(ones)) else feeds


def _is_finite(outputs: Mapping[str, Any]) -> bool:
    arrays = [np.asarray(value) for value in outputs.values() if isinstance(value, np.ndarray)]
    return all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f")
