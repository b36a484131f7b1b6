#!/usr/bin/env python3
"""Puts conversions for TensorRT beside those of NVIDIA's AutoCast: share in 16 bits, error, time, and what builds.

    python lab/bench_autocast.py ROWS.jsonl --autocast PYTHON FOLDER... [--largest 100e6] [--only WORD]
        [--format bfloat16]
    python lab/bench_autocast.py ROWS.jsonl --refresh FOLDER...    # our conversions anew, AutoCast's as they are
    python lab/bench_autocast.py ROWS.jsonl --seconds --autocast PYTHON FOLDER... [--only WORD]
    python lab/bench_autocast.py --write                           # docs/benchmarks/autocast.md from its files

PYTHON is that of an environment with nvidia-modelopt[onnx]==0.47.0. A row a model, small ones first; what ROWS has is
not made again. Every way gets the same sample: the first of the corpus' inputs, or of made-up ones. AutoCast is called
as its documentation says (`programs/peer.py`), with inputs and outputs that keep their types. All results
are measured alike: the outputs of the float32 program that rounds where they round, on that sample, at the other levels
that level auto compares at, and on a hundredth of its floats; the results of layers in the network that TensorRT-RTX's
parser makes of them, and whether its builder makes an engine. Seconds are those of the CPU, after imports, AutoCast's
own run of the model and our comparison and search included; those of each level without verification stand beside it.
`--seconds` measures the latter and AutoCast's anew, each the least of three runs, one after the other. It needs no GPU.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import math
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import amp_transpiler as amp
from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.errors import AmpError, CheckFailed
from amp_transpiler.files.loading import load
from amp_transpiler.precision.limits import Limits
from amp_transpiler.program.program import Program
from amp_transpiler.systems.option_names import DtypeName, LevelName
from amp_transpiler.verification.accuracy import CannotCompare, Reference, make_reference
from amp_transpiler.verification.engine_check import profile_of
from amp_transpiler.verification.signal_levels import Gains
from bench_precision import cpu_seconds
from compare_defaults import commit_of
from programs import autocast_page
from tensorrt_probe import build

LAB = pathlib.Path(__file__).resolve().parent
PAGE = LAB.parent / "docs" / "benchmarks" / "autocast.md"
RESULTS = PAGE.parent / "autocast"
LEVELS: Sequence[LevelName] = ("auto", "O2")
FORMATS: Sequence[DtypeName] = ("float16", "bfloat16")
_REASONS = 12  # of nodes in float32, the most frequent ones
QUIET = 0.01  # what the floats of a sample are multiplied by, too
LONGEST = 300  # CPU seconds of one conversion by AutoCast
RUNS = 3  # of which the fastest counts, where only time is asked for
Record = dict[str, Any]
_NO_COMPARISON: tuple[type[Exception], ...] = (AmpError, CannotCompare, *RUN_ERRORS)


def main() -> int:
    """Run it, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=pathlib.Path, nargs="?")
    parser.add_argument("folders", type=pathlib.Path, nargs="*")
    parser.add_argument("--autocast", help="the Python that has nvidia-modelopt")
    parser.add_argument("--largest", type=float, default=100e6, help="bytes of a model")
    parser.add_argument("--only", default="", help="a word in the path")
    parser.add_argument("--format", choices=FORMATS, default="float16")
    parser.add_argument("--refresh", action="store_true")
    parser.add_argument("--seconds", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_intermixed_args()
    if options.write:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    low = next(known for known in FORMATS if known == options.format)
    known = {row["model"]: row for row in _rows(options.rows)}
    for name, path in _models(options.folders, options.largest):
        if options.only not in name or (name in known) is not (options.refresh or options.seconds):
            continue
        if options.seconds:
            _measure_seconds(known[name]["ways"], path, options.autocast, low)
        elif options.refresh:
            ways = known[name]["ways"]
            ways |= _row(path, None, low)["ways"] | {way: ways[way] for way in ("AutoCast",) if way in ways}
            known[name]["commit"] = commit_of(LAB)
        else:
            head = {"model": name, "format": low, "bytes": path.stat().st_size, "commit": commit_of(LAB)}
            known[name] = head | _row(path, options.autocast, low)
        lines = (json.dumps(row) + "\n" for row in known.values())
        options.rows.write_text("".join(lines), encoding="utf-8")
        print(
            name,
            {
                way: (way_record.get("share"), way_record.get("error"))
                for way, way_record in known[name]["ways"].items()
            },
        )
    return 0


def page() -> str:
    """Return the page of the files."""
    return autocast_page.page([row for file in sorted(RESULTS.glob("*.jsonl")) for row in _rows(file)])


def _rows(path: pathlib.Path | None) -> list[Record]:
    if path is None:
        raise SystemExit("name the file of rows")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _models(folders: Sequence[pathlib.Path], largest: float) -> Iterator[tuple[str, pathlib.Path]]:
    """Yield names and paths, small models first, of equal files one."""
    files = [(folder.name, path) for folder in folders for path in folder.rglob("*.onnx")]
    seen: set[bytes] = set()
    for folder, path in sorted(files, key=lambda entry: (entry[1].stat().st_size, entry)):
        digest = hashlib.sha256(path.read_bytes()).digest()
        if path.stat().st_size <= largest and digest not in seen:
            seen.add(digest)
            yield f"{folder}/{path.parent.name}/{path.name}", path


def _row(path: pathlib.Path, autocast: str | None, low: DtypeName) -> Record:
    try:
        program, reference = _with_sample(path)
    except (AmpError, CannotCompare) as error:
        return {"fault": " ".join(str(error).split())[:300], "ways": {}}
    others = {"levels": list(Gains(reference).references().values()), "quiet": _quiet(program, reference)}
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "inputs.npz"
        np.savez(data, **reference.samples[0])
        source = build(path, profile_of(reference.samples))
        row: Record = {"source": source.fault, "ways": {}}
        for way in ("AutoCast", *LEVELS):
            result = pathlib.Path(folder) / f"{way}.onnx"
            if way == "AutoCast":
                result_row = _by_autocast(autocast, path, data, result, low)
            else:
                result_row = _by_us(way, path, data, result, low)
            if "seconds" in result_row and way in LEVELS:
                result_row["unverified"] = _unverified_seconds(way, path, result.with_name("unverified.onnx"), low)
            row["ways"][way] = result_row | (_measured(result, reference, others) if result.exists() else {})
    return row


def _with_sample(path: pathlib.Path) -> tuple[Program, Reference]:
    """Return a model with one sample and what it computes of it."""
    candidates = (path.with_suffix(".inputs.npz"), path.with_name("inputs.npz"))
    inputs = next((str(candidate) for candidate in candidates if candidate.exists()), None)
    program = load(path)
    reference = make_reference(program, program, inputs)
    return program, reference.with_samples(reference.samples[:1], reference.outputs[:1])


def _measure_seconds(ways: Record, path: pathlib.Path, autocast: str | None, low: DtypeName) -> None:
    """Put the least seconds of several runs into the records of a model's conversions."""
    with tempfile.TemporaryDirectory() as folder:
        result, data = pathlib.Path(folder) / "result.onnx", pathlib.Path(folder) / "inputs.npz"
        np.savez(data, **_with_sample(path)[1].samples[0])
        for way in (known for known in ways if "seconds" in ways[known]):
            if way != "AutoCast":
                ways[way]["unverified"] = min(_unverified_seconds(way, path, result, low) for _ in range(RUNS))
            elif autocast is not None:
                runs = [_by_autocast(autocast, path, data, result, low) for _ in range(RUNS)]
                ways[way]["seconds"] = min(run["seconds"] for run in runs)


def _by_autocast(
    python: str | None, path: pathlib.Path, data: pathlib.Path, result: pathlib.Path, low: DtypeName
) -> Record:
    if python is None:
        return {}
    peer = LAB / "programs" / "peer.py"
    command = [python, str(peer), "AutoCast", *map(str, (path, data, result, LONGEST)), low]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=4 * LONGEST)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"refused": f"it ended with status {done.returncode}"}
    record = json.loads(lines[-1])
    return {"refused": record["error"]} if "error" in record else {"seconds": record["seconds"]}


def _level(word: str) -> LevelName:
    return next(known for known in LEVELS if known == word)


def _by_us(level: str, path: pathlib.Path, data: pathlib.Path, result: pathlib.Path, low: DtypeName) -> Record:
    begun = cpu_seconds()
    try:
        report = amp.transpile(
            path, result, level=_level(level), dtype=low, target="tensorrt", inputs=data, build="no", cache=False
        )
    except (CheckFailed, AmpError) as error:
        return {"refused": " ".join(str(error).replace(str(path), path.name).split())[:300]}
    seconds = cpu_seconds() - begun
    why = collections.Counter(row.reason for row in report.decisions if row.precision == "float32")
    return {"seconds": seconds, "float32": why.most_common(_REASONS)}


def _unverified_seconds(level: str, path: pathlib.Path, result: pathlib.Path, low: DtypeName) -> float:
    """Return the seconds of a level without any run of the model."""
    begun = cpu_seconds()
    amp.transpile(path, result, level=_level(level), dtype=low, target="tensorrt", verify=False, cache=False)
    return cpu_seconds() - begun


def _quiet(program: Program, reference: Reference) -> list[Reference]:
    """Return the same with the floats of the sample divided; nothing without floats, or where it does not run so."""
    sample = {
        name: array * array.dtype.type(QUIET) if array.dtype.kind == "f" else array
        for name, array in reference.samples[0].items()
    }
    if not any(array.dtype.kind == "f" for array in sample.values()):
        return []
    try:
        return [make_reference(program, program, sample)]
    except _NO_COMPARISON:
        return []


def _measured(result: pathlib.Path, reference: Reference, others: Mapping[str, Sequence[Reference]]) -> Record:
    """Return what a result is like.

    Args:
        result: the file.
        reference: the sample, and what the source computes of it.
        others: key in the record -> the same at other levels, of which the worst counts.
    """
    engine = build(result, profile_of(reference.samples))
    record: Record = {"fault": engine.fault, "share": engine.low_share, "layers": engine.layers}
    unknown = dict.fromkeys(("error", *others))
    try:
        errors: dict[str, float | None] = {"error": _worst(reference, result)}
        for name, levels in others.items():
            errors[name] = max((_worst(each, result) for each in levels), default=None)
    except _NO_COMPARISON as error:
        return {**unknown, "why": " ".join(str(error).split())[:300]} | record
    return record | {name: "infinite" if error == math.inf else error for name, error in errors.items()}


def _worst(reference: Reference, result: pathlib.Path) -> float:
    """Return the largest error of an output."""
    rows, unjudged = reference.compare(load(result), Limits()), reference.unjudged()
    judged = [row for row in rows.values() if row.name not in unjudged]
    return max((math.inf if row.nonfinite else row.relative for row in judged), default=0.0)


if __name__ == "__main__":
    sys.exit(main())
