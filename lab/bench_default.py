#!/usr/bin/env python3
"""Times what the default preference chooses on a GPU: the source in float32 and the result, run in turns.

    python lab/bench_default.py FOLDER OUT.jsonl --seconds 300     # FOLDER: models with MODEL.inputs.npz beside
    python lab/bench_default.py --page          # docs/benchmarks/default.md from the files in docs/benchmarks/default/

Every model is converted with and without its inputs in float16, and with them in bfloat16, at level auto, as on a
machine without a GPU. What stays float32 is only counted: it is the source. Of the others both files run in sessions
of their own, as `Session` opens them, a run of one after a run of the other; the ratio is the median over the pairs.
Exit status 2 where no GPU answers.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

import amp_transpiler as amp
from amp_transpiler.runtime.cuda import cuda_problem
from gpu.models import inputs_beside, model_names, plain_value

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "benchmarks" / "default"
PAGE = ROOT / "docs" / "benchmarks" / "default.md"
_JOBS = (("float16", True), ("float16", False), ("bfloat16", True))  # format, with the model's inputs
_PAIRS = (12, 400)  # runs of each, at least and at most
_SECONDS_EACH = 1.2

Record = dict[str, Any]


def main() -> int:
    options = _options()
    if options.page:
        PAGE.write_text(page(sorted(RESULTS.glob("*.jsonl"))), encoding="utf-8")
        return 0
    if (problem := cuda_problem()) is not None:
        print(problem, file=sys.stderr)
        return 2
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as results, options.out.open("w", encoding="utf-8") as file:
        for record in measured(options.folder, pathlib.Path(results), options.jobs, end):
            file.write(json.dumps(record) + "\n")
            file.flush()
            print(line(record), flush=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("out", type=pathlib.Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=300.0, help="for all of it (default 300)")
    parser.add_argument("--jobs", type=int, default=4, help="conversions at once (default 4)")
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks/default.md")
    options = parser.parse_args()
    if not options.page and options.out is None:
        parser.error("name a folder of models and a file for the results, or --page")
    return options


def measured(folder: pathlib.Path, results: pathlib.Path, jobs: int, end: float) -> Iterator[Record]:
    """Convert all models, two thirds of the time at most, then yield a record for each that was converted."""
    orders = [(folder, name, results, dtype, inputs) for dtype, inputs in _JOBS for name in model_names(folder)]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running = [pool.submit(converted, *order) for order in orders]
        done, cut = concurrent.futures.wait(running, timeout=(end - time.monotonic()) * 2 / 3)
        for future in cut:
            future.cancel()
    for record in (future.result() for future in running if future in done):
        if record.get("low_nodes") and time.monotonic() < end:
            yield record | timed(folder / record["model"], pathlib.Path(record["file"]))
        else:
            yield record
    if cut:
        print(f"{len(cut)} conversions were not made: the time was over", file=sys.stderr)


def converted(folder: pathlib.Path, name: str, results: pathlib.Path, dtype: str, given: bool) -> Record:
    """Convert a model by default; one that fails is a record of why."""
    source = folder / name
    file = results / f"{name.replace('/', '__')}.{dtype}.{'inputs' if given else 'none'}.onnx"
    record: Record = {"model": name, "dtype": dtype, "inputs": given}
    inputs = inputs_beside(source) if given else None
    format_: Literal["float16", "bfloat16"] = "bfloat16" if dtype == "bfloat16" else "float16"
    try:
        report = amp.transpile(source, file, dtype=format_, cache=False, device_check="no", inputs=inputs)
    except Exception as error:  # noqa: BLE001  whatever fails is the finding
        return record | {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    figures = {"low_nodes": report.low_nodes, "nodes": report.nodes, "verdict": str(report.verdict)}
    return record | figures | {"file": str(file)}


def timed(source: pathlib.Path, result: pathlib.Path) -> Record:
    """Run float32 and the result in turns on the device; return medians, the ratio and the largest errors."""
    inputs = inputs_beside(source)
    assert inputs is not None, "only models with inputs are listed"
    with np.load(inputs, allow_pickle=True) as file:
        loaded = {name: plain_value(file[name]) for name in file.files}
    with amp.Session(source, amp.CPUPlace()) as session:
        feeds = {info.name: loaded[info.name] for info in session.inputs if info.name in loaded}
        reference = session.run(feeds)
    place = amp.CUDAPlace(0)
    with amp.Session(source, place) as wide, amp.Session(result, place) as low:
        errors = [max(_error(reference, session.run(feeds)) for _ in range(3)) for session in (wide, low)]
        pairs = list(_pairs(wide, low, feeds))
    times = np.asarray(pairs)
    first, second = (float(median) for median in 1e3 * np.median(times, axis=0))
    ratio = float(np.median(times[:, 1] / times[:, 0]))
    return {"fp32_ms": first, "ms": second, "ratio": ratio, "fp32_error": errors[0], "error": errors[1]}


def _pairs(wide: amp.Session, low: amp.Session, feeds: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    end, (least, most) = time.perf_counter() + _SECONDS_EACH, _PAIRS
    for count in range(most):
        if count >= least and time.perf_counter() > end:
            return
        marks = [time.perf_counter()]
        for session in (wide, low):
            session.run(feeds)
            marks.append(time.perf_counter())
        yield marks[1] - marks[0], marks[2] - marks[1]


def _error(reference: Sequence[Any], outputs: Sequence[Any]) -> float:
    floats = [
        (wanted.astype(np.float64), got.astype(np.float64))
        for wanted, got in zip(reference, outputs, strict=True)
        if isinstance(wanted, np.ndarray) and wanted.dtype.kind == "f" and wanted.shape == got.shape
    ]
    return max((float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(a)), 1e-30) for a, b in floats), default=0.0)


def line(record: Record) -> str:
    """Return what a record says, as a row of the page."""
    name = f"| {record['model']} | {record['dtype']} | {'yes' if record['inputs'] else 'no'} |"
    if "failed" in record:
        return f"{name} {record['failed']} |"
    if not record["low_nodes"]:
        return f"{name} kept float32 |"
    share = f" {record['low_nodes']}/{record['nodes']} |"
    if "ratio" not in record:
        return f"{name}{share} not timed |"
    return (
        f"{name}{share} {record['fp32_ms']:.3f} | {record['ms']:.3f} | {record['ratio']:.2f} |"
        f" {record['fp32_error']:.2%} | {record['error']:.2%} |"
    )


_HEAD = """# The default on a GPU

What `amp-transpile MODEL` chooses at level auto with `--prefer balance`, on the device: the source in float32 and the
result run in turns, each in a session as `Session` opens it. Models were converted as on a machine without a GPU. What
stays float32 is the source, so it is counted and not timed. Errors are those of the device: the largest relative norm
error of an output over three runs. `lab/bench_default.py` made it, from files in `docs/benchmarks/default/`.
"""


def page(files: Sequence[pathlib.Path]) -> str:
    """Return the page: a table for each file of results."""
    parts = [_HEAD]
    for path in files:
        head, *records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        parts += [f"## {head['device']}, {head['date']}\n", *_tables(head, records)]
    return "\n".join(parts)


def _tables(head: Record, records: Sequence[Record]) -> Iterator[str]:
    low = sorted((record for record in records if "ratio" in record), key=lambda record: record["ratio"])
    float32 = sum(not record.get("low_nodes") and "failed" not in record for record in records)
    slower = sum(record["ratio"] > 1.1 for record in low)
    yield f"{head['versions']}. {head['note']}\n"
    yield f"{len(records)} conversions: {float32} stay float32, {len(low)} were timed. Of these {slower} take more than"
    yield f"1.10 times float32's time; all take {low[0]['ratio']:.2f} to {low[-1]['ratio']:.2f} times.\n"
    yield "| model | format | inputs | low nodes | float32, ms | result, ms | ratio | float32's error | error |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    yield from map(line, low)
    failed = [record for record in records if "failed" in record]
    if failed:
        yield "\nNot converted:\n"
        yield from (f"- {record['model']}, {record['dtype']}: {record['failed']}" for record in failed)
    yield ""


if __name__ == "__main__":
    sys.exit(main())
