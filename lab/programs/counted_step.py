"""Counts one training step on the stand-ins; started by `launches.py run`.

    python lab/launches.py run --exact-memory lab/programs/counted_step.py NETWORK LEVEL DTYPE [small]

Prints a JSON object: the counts of `launches.counting()`, and of the graphs that ONNX Runtime made of the step, for
each device, bytes and predicted milliseconds.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
import tempfile

import amp_transpiler as amp
import launches
from amp_transpiler import static
from programs.ours import training_step
from programs.sessions import Sessions, describe
from programs.sizes import NETWORKS, feeds_of, small

WARM_UP = 2


def main() -> None:
    name, level, dtype, *rest = sys.argv[1:]
    network = small(NETWORKS[name]) if "small" in rest else NETWORKS[name]
    step = training_step(network, level, dtype)
    feeds = feeds_of(network)
    with tempfile.TemporaryDirectory(prefix="counted-step-") as folder, static.scope_guard(static.Scope()):
        sessions = Sessions(pathlib.Path(folder)) if "layout" not in rest else None
        executor = static.Executor(amp.CUDAPlace(0))
        executor.run(step.startup)
        for _ in range(WARM_UP):
            executor.run(step.main, feeds, [step.loss], return_numpy=False)
        if sessions is not None:
            sessions.used.clear()
        with launches.counting() as counts:
            executor.run(step.main, feeds, [step.loss], return_numpy=False)
        counts.pop("kernels")
        described = {} if sessions is None else describe(list(sessions.graphs()))
    print(json.dumps({**dataclasses.asdict(network), "level": level, "dtype": dtype, **counts, **described}))


if __name__ == "__main__":
    main()
