"""Stage "truths": the arithmetic of the device's kernels, by the package's own probe."""

from __future__ import annotations

from amp_transpiler.runtime.places import place_named
from amp_transpiler.runtime.probe.measure import measure
from gpu.records import Task

__all__ = ["truths"]


def truths(task: Task) -> None:
    """Keep the answers to all questions of the probe."""
    for row in measure(place_named(task.place)):
        task.add(**row)
