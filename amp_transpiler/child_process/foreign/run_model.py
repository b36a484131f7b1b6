"""Runs models in the interpreter that was given this file: it needs numpy and ONNX Runtime, of any release.

A request is a line of JSON on standard input, and so is the reply on standard output; what libraries print goes to
standard error. `child_process.interpreter` writes the one and reads the other. Nothing of this package is imported, and
the syntax is that of Python 3.8.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import Any

__all__ = ["main"]

_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_WEIGHTS = "optimized.data"  # beside the optimized graph, which may hold more than a file of ONNX's format can


def main() -> None:
    """Say which ONNX Runtime this is, then carry out requests; what it refuses is an answer, too."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _send(replies, _greeting())
    for line in sys.stdin:
        _send(replies, _run(json.loads(line)))


def _send(replies: Any, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


def _greeting() -> dict[str, Any]:
    try:
        import numpy as np
        import onnxruntime
    except Exception as error:  # noqa: BLE001  such as a numpy that it was not built for
        return {"missing": f"{type(error).__name__}: {error}"}
    return {"version": onnxruntime.__version__, "numpy": np.__version__, "python": platform.python_version()}


def _run(request: dict[str, Any]) -> dict[str, Any]:
    stage = "load"
    try:
        session = _session(request)
        facts: dict[str, Any] = {"provider": session.get_providers()[0]}
        stage = "run"
        names = request["outputs"] or [output.name for output in session.get_outputs()]
        reads = {value.name for value in session.get_inputs()}
        facts["unread"] = _results(session, request["feeds"], request["results"], names, reads)
    except Exception as error:  # noqa: BLE001  its kinds differ between releases
        return {"stage": stage, "refused": str(error) or type(error).__name__}
    return facts


def _session(request: dict[str, Any]) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not request["optimize"]:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if request["optimized"]:
        options.optimized_model_filepath = request["optimized"]
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    providers = [_CPU]
    if request["cuda"] and _CUDA in onnxruntime.get_available_providers():
        providers.insert(0, _CUDA)
        if hasattr(onnxruntime, "preload_dlls"):  # since 1.21: CUDA's libraries from Python packages
            onnxruntime.preload_dlls()
    return onnxruntime.InferenceSession(request["model"], options, providers=providers)


def _results(session: Any, feeds: list[str], files: list[str], names: list[str], reads: Any) -> list[str]:
    """Write the results of each sample to its file, as arrays numbered like the names; return which are none."""
    import numpy as np

    unread = set()
    for sample, path in zip(feeds, files):  # noqa: B905  Python 3.8 and 3.9 have no `strict`
        with np.load(sample) as stored:
            fed = {name: stored[name] for name in stored.files if name in reads}
        arrays = {}
        for number, value in enumerate(session.run(names, fed)):
            if not isinstance(value, (np.ndarray, np.generic)):  # a sequence, a map, an empty optional
                unread.add(names[number])
                continue
            array = np.asarray(value)
            arrays[str(number)] = array.astype(np.str_) if array.dtype == object else array
        np.savez(path, **arrays)  # type: ignore[arg-type]  # names of arrays, not its option
    return sorted(unread)


if __name__ == "__main__":
    main()
