"""Counts one training step on the stand-ins; started by `launches.py run`.

    python scripts/launches.py run --exact-memory scripts/programs/counted_step.py NETWORK LEVEL DTYPE [small]

Prints a JSON object: the counts of `launches.counting()`, and of the graphs that ONNX Runtime made of the step, for
each device, bytes and predicted milliseconds.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
import onnxruntime

import amp_transpiler as amp
import launches
from amp_transpiler import static
from amp_transpiler.precision.cost import DEVICES, predict, traffic
from programs.ours import training_step
from programs.sizes import NETWORKS, feeds_of, small

WARM_UP = 2


class Sessions:
    """The sessions that a process opens, each with the graph that ONNX Runtime made of its model, in a file."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.used: set[pathlib.Path] = set()
        self._opened = 0
        make = onnxruntime.InferenceSession.__init__
        runs = {
            name: getattr(onnxruntime.InferenceSession, name) for name in ("run", "run_with_iobinding", "run_async")
        }
        sessions = self

        def init(session: Any, model: Any, sess_options: Any = None, *rest: Any, **options: Any) -> None:
            sess_options = sess_options or onnxruntime.SessionOptions()
            session.written_to = sessions._next(sess_options)
            make(session, model, sess_options, *rest, **options)

        onnxruntime.InferenceSession.__init__ = init
        for name, run in runs.items():
            setattr(onnxruntime.InferenceSession, name, self._watched(run))

    def _next(self, options: Any) -> pathlib.Path:
        path = self.folder / f"{self._opened}.onnx"
        self._opened += 1
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{path.stem}.bin")
        return path

    def _watched(self, run: Any) -> Any:
        @functools.wraps(run)
        def watched(session: Any, *arguments: Any, **options: Any) -> Any:
            self.used.add(session.written_to)
            return run(session, *arguments, **options)

        return watched

    def graphs(self) -> Iterator[ir.Model]:
        """Yield the graphs of the sessions that ran since `used` was cleared."""
        for path in sorted(self.used):
            yield ir.load(path)


def describe(graphs: list[ir.Model]) -> dict[str, Any]:
    """Return bytes, launches by operator, and predictions of a step."""
    costs = [cost for graph in graphs for cost in traffic(graph)]
    by_operator: collections.Counter[str] = collections.Counter()
    for cost in costs:
        by_operator[cost.node.op_type] += cost.launches
    casts = [cost for cost in costs if cost.node.op_type == "Cast"]
    predicted = {
        name: {
            "ms": sum(predict(graph, device).milliseconds for graph in graphs),
            "graph_ms": sum(predict(graph, device, cuda_graph=True).milliseconds for graph in graphs),
        }
        for name, device in DEVICES.items()
    }
    return {
        "nodes": len(costs),
        "casts": len(casts),
        "bytes": sum(cost.bytes for cost in costs),
        "cast_bytes": sum(cost.bytes for cost in casts),
        "copied": sum(cost.copied for cost in costs),
        "predicted_launches": sum(cost.launches for cost in costs),
        "by_operator": dict(by_operator.most_common()),
        "predicted": predicted,
    }


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
        found = {} if sessions is None else describe(list(sessions.graphs()))
    print(json.dumps({**dataclasses.asdict(network), "level": level, "dtype": dtype, **counts, **found}))


if __name__ == "__main__":
    main()
