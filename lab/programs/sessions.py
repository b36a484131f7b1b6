"""The graphs that ONNX Runtime makes of the models that a process opens, and what they cost."""

from __future__ import annotations

import collections
import functools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import amp_transpiler  # noqa: F401  before onnxruntime, whose telemetry it switches off

# isort: split

import onnx_ir as ir
import onnxruntime

from amp_transpiler.cost import DEVICES, predicted, traffic

__all__ = ["Sessions", "describe"]


class Sessions:
    """The sessions that a process opens from now on, each with the graph that ONNX Runtime made of it, in a file.

    Attributes:
        folder: where the files are written.
        used: the files of the sessions that ran since this was cleared, in the order of their first runs.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        os.environ["AMP_TRANSPILER_CACHE"] = "0"  # what is taken from the cache was optimized before
        self.folder = folder
        self.used: dict[pathlib.Path, None] = {}
        self._opened = 0
        make = onnxruntime.InferenceSession.__init__
        sessions = self

        def init(session: Any, model: Any, sess_options: Any = None, *rest: Any, **options: Any) -> None:
            sess_options = sess_options or onnxruntime.SessionOptions()
            session.written_to = sessions._next(sess_options)
            make(session, model, sess_options, *rest, **options)

        onnxruntime.InferenceSession.__init__ = init
        for name in ("run", "run_with_iobinding", "run_async"):
            setattr(onnxruntime.InferenceSession, name, self._watched(getattr(onnxruntime.InferenceSession, name)))

    def _next(self, options: Any) -> pathlib.Path | None:
        if options.optimized_model_filepath:  # somebody else wants it
            return None
        path = self.folder / f"{self._opened}.onnx"
        self._opened += 1
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{path.stem}.bin")
        return path

    def _watched(self, run: Any) -> Any:
        @functools.wraps(run)
        def watched(session: Any, *arguments: Any, **options: Any) -> Any:
            if session.written_to is not None:
                self.used[session.written_to] = None
            return run(session, *arguments, **options)

        return watched

    def graphs(self) -> Iterator[ir.Model]:
        """Yield the graphs of the sessions in `used`."""
        for path in self.used:
            yield ir.load(path)


def describe(graphs: Sequence[ir.Model]) -> dict[str, Any]:
    """Return bytes, launches by operator, and predicted milliseconds of a run of these graphs."""
    by_graph = [traffic(graph) for graph in graphs]  # once: it infers shapes, for seconds where a network is large
    exact = [traffic(graph, tf32=False) for graph in graphs]
    costs = [cost for node_costs in by_graph for cost in node_costs]
    by_operator: collections.Counter[str] = collections.Counter()
    for cost in costs:
        by_operator[cost.node.op_type] += cost.launches
    casts = [cost for cost in costs if cost.node.op_type == "Cast"]
    milliseconds = {
        name: {
            "ms": sum(predicted(node_costs, device).milliseconds for node_costs in by_graph),
            "graph_ms": sum(predicted(node_costs, device, cuda_graph=True).milliseconds for node_costs in by_graph),
            "busy_ms": sum(predicted(node_costs, device).busy_milliseconds for node_costs in by_graph),
            "exact_busy_ms": sum(predicted(node_costs, device).busy_milliseconds for node_costs in exact),
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
        "predicted": milliseconds,
    }
