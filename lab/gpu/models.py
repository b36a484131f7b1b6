"""Stages "models" and "nodes": models and ONNX's node cases from folders, converted here and run on the device."""

from __future__ import annotations

import functools
import math
import pathlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

import amp_transpiler as amp
from amp_transpiler.runtime.places import Place, place_named
from gpu.compare import apart
from gpu.records import Record, Task, Unavailable, attempt

__all__ = ["case_feeds", "case_names", "inputs_beside", "model_names", "models", "node_slices", "nodes", "plain_value"]

MODEL_VARIANTS = (("auto", "float16"), ("O2", "float16"), ("auto", "bfloat16"))
NODE_VARIANTS = (("O2", "float16"), ("O2", "bfloat16"))
RUNS = 3
CASES_EACH = 40  # a process starts in the time of some dozens of cases

Arrays = Mapping[str, Any]


# ---- models ----
def model_names(folder: pathlib.Path | None) -> list[str]:
    """List the models that have inputs beside them: MODEL.inputs.npz, or that of the name without .onnx."""
    if folder is None:
        return []
    paths = sorted(folder.rglob("*.onnx"))
    return [str(path.relative_to(folder)) for path in paths if inputs_beside(path) is not None]


def inputs_beside(path: pathlib.Path) -> pathlib.Path | None:
    """Return the file of inputs beside a model, if there is one."""
    names = (f"{path.name}.inputs.npz", f"{path.stem}.inputs.npz")
    return next((path.with_name(name) for name in names if path.with_name(name).exists()), None)


def models(task: Task) -> None:
    """Compare a model's outputs on the device with float32 on the CPU, and with the emulation."""
    path = _source(task) / task.name
    inputs = inputs_beside(path)
    if inputs is None:
        raise Unavailable(f"{path} has no inputs beside it")
    with np.load(inputs, allow_pickle=True) as file:  # strings and sequences, in a folder that the user names
        feeds = {name: plain_value(file[name]) for name in file.files}
    _judge(task, task.name, path, feeds, MODEL_VARIANTS)


def plain_value(value: np.ndarray) -> Any:
    """Return an entry of a file of inputs as a feed: texts and sequences are objects in arrays of no axes."""
    return value.item() if value.dtype == object and value.shape == () else value


# ---- node cases ----
def case_names(folder: pathlib.Path | None) -> list[str]:
    """List the node cases of a folder that have inputs."""
    if folder is None:
        return []
    cases = sorted(path.parent for path in folder.rglob("model.onnx"))
    return [str(path.relative_to(folder)) for path in cases if (path / "test_data_set_0").is_dir()]


def node_slices(folder: pathlib.Path | None) -> list[str]:
    """List slices of the node cases, `FIRST-END`, a process each."""
    count = len(case_names(folder))
    return [f"{first}-{min(first + CASES_EACH, count)}" for first in range(0, count, CASES_EACH)]


def nodes(task: Task) -> None:
    """Compare a slice of the node cases at O2 in both formats; a case that ends the process is left out then."""
    folder = _source(task)
    first, end = map(int, task.name.split("-"))
    done = {record["case"] for record in task.found()}
    started = task.folder / f"{task.file_name}.started"
    if started.exists() and (crashed := started.read_text(encoding="utf-8")) not in done:
        task.add(case=crashed, failed="it ended the process")
        done.add(crashed)
    for name in case_names(folder)[first:end]:
        if name in done:
            continue
        started.write_text(name, encoding="utf-8")
        case = folder / name
        feeds = case_feeds(case)
        if feeds is not None:
            _judge(task, name, case / "model.onnx", feeds, NODE_VARIANTS, one_record=True)


def case_feeds(case: pathlib.Path) -> Arrays | None:
    """Return the first set of inputs; None if one is no tensor, or none is float32."""
    graph = onnx.load(case / "model.onnx").graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    files = sorted((case / "test_data_set_0").glob("input_*.pb"), key=lambda path: int(path.stem.rsplit("_", 1)[1]))
    if any(value.type.WhichOneof("value") != "tensor_type" for value in inputs):
        return None
    feeds = {
        value.name: onnx.numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))
        for value, file in zip(inputs, files, strict=False)  # optional inputs have no file
    }
    return feeds if any(value.dtype == np.float32 for value in feeds.values()) else None


# ---- both ----
def _judge(
    task: Task,
    name: str,
    path: pathlib.Path,
    feeds: Arrays,
    variants: Sequence[tuple[str, str]],
    *,
    one_record: bool = False,
) -> None:
    """Keep a record for float32 and each variant; or one for all, which is a case's."""
    place = place_named(task.place)
    target = task.folder / f"{task.file_name}.converted.onnx"
    with amp.Session(path, amp.CPUPlace()) as session:
        reference = session.run(_known(session, feeds))

    def wide() -> Iterator[Record]:
        yield apart(reference, _outputs(path, place, feeds))

    def converted(level: str, dtype: str) -> Iterator[Record]:
        checked = level == "auto"
        plain = all(isinstance(value, np.ndarray) and value.dtype != object for value in feeds.values())
        inputs: dict[str, Any] = {"inputs": dict(feeds)} if checked and plain else {}
        options: dict[str, Any] = {"level": level, "dtype": dtype, "verify": checked, **inputs}
        # The verdict of a machine without a GPU.
        report = amp.transpile(path, target, **options, device_check="no", prefer="size")
        row: Record = {"low_nodes": report.low_nodes, "nodes": report.nodes}
        if checked:
            row |= {"verdict": str(report.verdict), "stated_error": _stated(report)}
        emulated = _outputs(target, amp.CPUPlace(), feeds)
        yield row | apart(reference, emulated, "emulated_error")
        runs = _runs(target, place, feeds)
        outputs = max(runs, key=lambda run: apart(reference, run)["error"])
        row |= {"errors": [apart(reference, run)["error"] for run in runs]}
        yield row | apart(reference, outputs) | apart(emulated, outputs, "error_from_emulation")

    runs: dict[tuple[str, str], Callable[[], Iterator[Record]]] = {("fp32", "float32"): wide}
    runs |= {pair: functools.partial(converted, *pair) for pair in variants}
    if not one_record:
        for (level, dtype), measure in runs.items():
            attempt(task, level, dtype, measure)
        return
    record: Record = {"case": name}
    for (level, dtype), measure in runs.items():
        record[f"{level}.{dtype}"] = _last(task, f"{name} {level} {dtype}", measure())
    task.add(**record)


def _last(task: Task, what: str, pieces: Iterator[Record]) -> Record:
    """Return the last piece, or why there is none."""
    record: Record = {}
    try:
        for piece in pieces:
            record |= piece
    except Exception as error:  # noqa: BLE001  whatever fails is the finding
        task.fail(what, traceback.format_exc())
        record["failed"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return record


def _stated(report: amp.Report) -> float:
    """Return the largest error of a floating-point output that the verdict states."""
    rows = report.outputs.values()
    return max((math.inf if row.nonfinite else row.relative for row in rows), default=0.0)


def _outputs(path: pathlib.Path, place: Place, feeds: Arrays) -> list[Any]:
    with amp.Session(path, place) as session:
        return session.run(_known(session, feeds))


def _runs(path: pathlib.Path, place: Place, feeds: Arrays) -> list[list[Any]]:
    """Return what each of some runs computes: a fault of memory, or a sum in another order, shows in later ones."""
    with amp.Session(path, place) as session:
        return [session.run(_known(session, feeds)) for _ in range(RUNS)]


def _known(session: amp.Session, feeds: Arrays) -> dict[str, Any]:
    names = {info.name for info in session.inputs}
    return {name: value for name, value in feeds.items() if name in names}


def _source(task: Task) -> pathlib.Path:
    if task.source is None:
        raise Unavailable(f"no folder of {task.stage} was named (--{task.stage} FOLDER)")
    return task.source
