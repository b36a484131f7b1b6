"""A session in another layout is compared with the default layout before its first results are handed out.

Its second run is: an option of the CUDA provider was once wrong from the second run on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from amp_transpiler.errors import EnvironmentProblem
from amp_transpiler.runtime.feeds import ValueInfo, reordered

__all__ = ["compare_layouts"]

Run: TypeAlias = Callable[[Mapping[str, Any]], Sequence[Any]]
"""The feeds of a run -> its outputs."""

# The largest difference between two layouts, in relative norm: both round, and sum in orders of their own. float32 may
# be TF32, which has float16's places.
_MOST = {"bfloat16": 0.05}
_MOST_OTHERS = 0.01


def compare_layouts(run: Run, default: Run, feeds: Mapping[str, Any], outputs: Sequence[ValueInfo], name: str) -> None:
    """Run a session twice, on reordered feeds and on the feeds, and compare the second run with the default layout's.

    Args:
        run: runs the session.
        default: runs a session of the same model in the default layout.
        feeds: of the user's first run.
        outputs: of the model.
        name: of the session, for the error.

    Raises:
        EnvironmentProblem: an output differs by more than rounding.
    """
    run(reordered(feeds, 1))
    for info, value, expected in zip(outputs, run(feeds), default(feeds), strict=True):
        difference = _difference(value, expected)
        if not difference <= _MOST.get(info.dtype, _MOST_OTHERS):
            raise EnvironmentProblem(
                f"{name}: with layout='nhwc' output '{info.name}' differs by {difference:.2g} in relative norm from "
                "that of the default layout, in the second run: leave layout out, and report the model and the device"
            )


def _difference(value: Any, expected: Any) -> float:
    """Return the relative norm of the difference; 0 for what is not a tensor of floats, infinity for another shape."""
    got, wanted = np.asarray(value), np.asarray(expected)
    if wanted.dtype.kind not in "fV":
        return 0.0
    if got.shape != wanted.shape:
        return float("inf")
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.isfinite(got[finite]).all():
        return float("inf")
    norm = float(np.linalg.norm(wanted[finite]))
    return float(np.linalg.norm(got[finite] - wanted[finite])) / norm if norm else 0.0
