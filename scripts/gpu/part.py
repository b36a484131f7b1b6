"""One part of `bench_gpu.py`, in a process of its own: `python part.py TASK.json`."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Mapping

import numpy as np

import amp_transpiler as amp
import gpu_truths
from amp_transpiler.runtime.places import place_named
from gpu.conversions import prepare
from gpu.inference import compiled, inference, torch_eager
from gpu.options import options
from gpu.records import Task, Unavailable
from gpu.training import compiled_training, torch_training, training


def truths(task: Task) -> None:
    """Keep what kernels accumulate in: what no CPU can tell."""
    place = place_named(task.place)

    def run(model: object, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.asarray(amp.Session(model, place, emulate=False).run(arrays)[0])  # type: ignore[arg-type]  # a ModelProto

    for truth in gpu_truths.all_truths(run):
        task.add(variant="truth", **dataclasses.asdict(truth))
    task.add(variant="float32 GEMM", dtype="float32", gemm_error=gpu_truths.float32_gemm_error(run))


KINDS: Mapping[str, Callable[[Task], None]] = {
    "truths": truths,
    "prepare": prepare,
    "options": options,
    "inference": inference,
    "torch": torch_eager,
    "compiled": compiled,
    "training": training,
    "torch_training": torch_training,
    "compiled_training": compiled_training,
}


def main() -> int:
    """Do the task; return 3 where this machine lacks what it needs, with the reason on the standard error."""
    given = json.loads(pathlib.Path(sys.argv[1]).read_text())
    task = Task(**{**given, "folder": pathlib.Path(given["folder"])})
    try:
        KINDS[task.kind](task)
    except (Unavailable, ModuleNotFoundError) as reason:
        print(reason, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
