"""A trial run of a model on ONNX Runtime's CPU provider, with plausible inputs."""

from __future__ import annotations

import os
import pathlib
import time
from typing import Any

import numpy as np

from corpus import inputs

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

Record = dict[str, Any]


def trial(path: str, save_inputs: str | None = None, threads: int = 1) -> Record:
    """Load and run the model at `path`; write the inputs that worked to `save_inputs` (.npz)."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    record: Record = {"ort": ort.__version__}
    start = time.perf_counter()
    try:
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  any refusal is the finding
        record["load"] = str(error)[:300]
        return record
    record["load"], record["load_s"] = "ok", round(time.perf_counter() - start, 2)
    feed, outputs = _first_that_runs(session, path, record)
    if feed is None:
        return record
    record["run"] = "ok"
    record["fed"] = {name: [str(value.dtype), list(value.shape)] for name, value in feed.items()}
    _describe(session, outputs, record)
    if save_inputs and not any(value.dtype == object for value in feed.values()):
        np.savez_compressed(save_inputs, **feed)  # type: ignore[arg-type]  # its keywords are arrays by name
    return record


def _first_that_runs(session: Any, path: str, record: Record) -> tuple[dict[str, np.ndarray] | None, list[Any]]:
    rule = inputs.rule_for(path)
    attempts = [(rule.plan, rule)] if rule else []
    failure = "no plan"
    for plan, own_rule in [*attempts, *((plan, None) for plan in inputs.PLANS)]:
        try:
            feed = inputs.feeds(session.get_inputs(), plan, own_rule)
            start = time.perf_counter()
            outputs = session.run(None, feed)
        except Exception as error:  # noqa: BLE001  a plan that does not fit fails in any way; the next one is tried
            failure = str(error)[:300]
        else:
            record["run_s"] = round(time.perf_counter() - start, 3)
            return feed, outputs
    record["run"] = failure
    return None, []


def _describe(session: Any, outputs: list[Any], record: Record) -> None:
    finite, nontrivial, results = True, False, []
    for argument, value in zip(session.get_outputs(), outputs, strict=True):
        if not isinstance(value, np.ndarray):
            results.append({"name": argument.name, "type": type(value).__name__})
            continue
        row: Record = {"name": argument.name, "dtype": str(value.dtype), "shape": list(value.shape)}
        if value.size and value.dtype.kind in "fiub":
            wide = value.astype(np.float64)
            row["finite"] = bool(np.isfinite(wide).all())
            for key, number in (("min", np.nanmin(wide)), ("max", np.nanmax(wide)), ("std", np.nanstd(wide))):
                row[key] = float(f"{number:.5g}")
            finite &= row["finite"]
            nontrivial |= _says_something(value, wide)
        results.append(row)
    record["results"], record["finite"], record["nontrivial"] = results, finite, nontrivial


def _says_something(value: np.ndarray, wide: np.ndarray) -> bool:
    if value.dtype.kind == "f":
        return bool(np.nanstd(wide) > 1e-7 or (value.size == 1 and wide.flat[0] != 0))
    return value.dtype.kind in "iu" and bool(wide.any())


def inputs_path(model: pathlib.Path) -> pathlib.Path:
    """Return where the inputs of `model` are kept: `STEM.inputs.npz` beside it."""
    return model.with_name(model.stem + ".inputs.npz")
