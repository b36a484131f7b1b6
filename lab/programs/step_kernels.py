"""Prices the kernels of one training step; started by `launches.py run`.

    python lab/launches.py run lab/programs/step_kernels.py NETWORK LEVEL DTYPE [small]

Prints a JSON list: for each kind of kernel its family, operator, shapes, predicted milliseconds and number.
"""

from __future__ import annotations

import collections
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import amp_transpiler as amp
from amp_transpiler import static

# isort: split

import onnx_ir as ir

from amp_transpiler.cost import DEVICES, traffic
from amp_transpiler.cost.node_costs import NodeCost
from amp_transpiler.cost.shapes import Sizes, sizes_of
from amp_transpiler.cost.work import seconds_of
from programs.kernel_families import family_of_node, updates_of
from programs.ours import training_step
from programs.sessions import Sessions
from programs.sizes import NETWORKS, feeds_of, small

DEVICE = DEVICES["H100"]
_SHORT = {"FLOAT": "f32", "FLOAT16": "f16", "BFLOAT16": "bf16", "INT64": "i64", "BOOL": "bool"}


def main() -> None:
    name, level, dtype, *rest = sys.argv[1:]
    network = small(NETWORKS[name]) if "small" in rest else NETWORKS[name]
    step, feeds = training_step(network, level, dtype), feeds_of(network)
    with tempfile.TemporaryDirectory(prefix="step-kernels-") as folder, static.scope_guard(static.Scope()):
        sessions = Sessions(pathlib.Path(folder))
        executor = static.Executor(amp.CUDAPlace(0))
        executor.run(step.startup)
        sessions.used.clear()
        executor.run(step.main, feeds, [step.loss], return_numpy=False)
        seconds: dict[tuple[str, str, str], float] = collections.defaultdict(float)
        launches: collections.Counter[tuple[str, str, str]] = collections.Counter()
        for kind, cost in (pair for model in sessions.graphs() for pair in _kinds(model)):
            seconds[kind] += sum(seconds_of(work, DEVICE) for work in cost.kernels)
            launches[kind] += cost.launches
    costliest = sorted(seconds, key=seconds.__getitem__, reverse=True)
    print(json.dumps([[*kind, 1e3 * seconds[kind], launches[kind]] for kind in costliest]))


def _kinds(model: ir.Model) -> Iterator[tuple[tuple[str, str, str], NodeCost]]:
    """Yield family, operator and shapes of each node that has kernels, with its cost."""
    sizes, updates = sizes_of(model), updates_of(model.graph)
    for cost in traffic(model):
        if cost.kernels:
            family = family_of_node(cost.node, sizes, is_update=cost.node in updates)
            yield (family, cost.node.op_type, _shapes(cost.node, sizes)), cost


def _shapes(node: ir.Node, sizes: Sizes) -> str:
    inputs = [_shape(value, sizes) for value in node.inputs if value is not None and sizes.shape(value)]
    return f"{', '.join(inputs[:3])}{', ...' if len(inputs) > 3 else ''} to {_shape(node.outputs[0], sizes)}"


def _shape(value: ir.Value, sizes: Sizes) -> str:
    dtype = value.dtype.name if value.dtype is not None else "?"
    return f"{_SHORT.get(dtype, dtype.lower())}[{','.join(map(str, sizes.shape(value) or ()))}]"


if __name__ == "__main__":
    main()
