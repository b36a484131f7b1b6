"""Tells what a step reserves on the stand-ins, as it is and as CUDA graphs; started by `launches.py run`.

    python lab/launches.py run lab/programs/graph_memory.py NETWORK LEVEL DTYPE FORM [small]

FORM is `plain`, `turns` (two graphs that take turns, one for each set of buffers) or `in_place` (one that overwrites
its state). Prints a JSON object: the bytes that the process has taken from the device when four steps are done, and
whether steps were run in that form.
"""

from __future__ import annotations

import json
import sys

import amp_transpiler as amp
from amp_transpiler import static
from amp_transpiler.runtime.in_place_graphs import InPlaceGraph
from amp_transpiler.runtime.step_graphs import StepGraph
from programs.ours import training_step
from programs.sizes import NETWORKS, feeds_of, small

STEPS = 4
FORMS = {"plain": None, "turns": StepGraph, "in_place": InPlaceGraph}


def main() -> None:
    name, level, dtype, form, *rest = sys.argv[1:]
    network = small(NETWORKS[name]) if "small" in rest else NETWORKS[name]
    step, feeds, place = training_step(network, level, dtype), feeds_of(network), amp.CUDAPlace(0)
    before = place.memory_in_use() or 0
    executor = static.Executor(place, cuda_graph=form != "plain", in_place=form == "in_place")
    with static.scope_guard(static.Scope()):
        executor.run(step.startup)
        for _ in range(STEPS):
            executor.run(step.main, feeds, [step.loss], return_numpy=False)
        graphs = [compiled.graph for compiled in executor._steps._steps.values()]  # noqa: SLF001  no public way
        taken = (place.memory_in_use() or 0) - before
    as_asked = type(graphs[-1]) is (FORMS[form] or type(None))
    print(json.dumps({"reserved": taken, "as_asked": as_asked}))


if __name__ == "__main__":
    main()
