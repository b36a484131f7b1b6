"""One part of `bench_gpu.py`, in a process of its own: `python part.py TASK.json`."""

from __future__ import annotations

import importlib
import logging
import os
import pathlib
import sys
import warnings
from collections.abc import Mapping

from gpu.records import Task, Unavailable

STAGES: Mapping[str, tuple[str, str]] = {
    "truths": ("gpu.truths", "truths"),
    "prepare": ("gpu.conversions", "prepare"),
    "training": ("gpu.training", "training"),
    "torch_training": ("gpu.training", "torch_training"),
    "compiled_training": ("gpu.training", "compiled_training"),
    "inference": ("gpu.inference", "inference"),
    "torch": ("gpu.inference", "torch_eager"),
    "compiled": ("gpu.inference", "compiled"),
    "options": ("gpu.options", "options"),
    "models": ("gpu.models", "models"),
    "nodes": ("gpu.models", "nodes"),
}
"""Stage -> module and function; a stage needs only what its own module imports."""

WITH_FOREIGN_MODELS = ("models", "nodes")  # each of which says what is odd about it


def main() -> int:
    """Do the task; return 3 where this machine lacks what it needs, with the reason on the standard error."""
    task = Task.read(pathlib.Path(sys.argv[1]))
    if task.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, task.cores)  # before anything counts its threads
    if task.stage in WITH_FOREIGN_MODELS:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
    module, function = STAGES[task.stage]
    try:
        getattr(importlib.import_module(module), function)(task)
    except (Unavailable, ModuleNotFoundError) as reason:
        print(reason, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
