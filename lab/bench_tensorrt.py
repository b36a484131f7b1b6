#!/usr/bin/env python3
"""Counts which models TensorRT-RTX's builder takes before and after conversion, and how many results are 16 bits.

    python lab/bench_tensorrt.py OUT.jsonl FOLDER [--part 0/2] [--levels auto O2] [--formats float16 bfloat16]
        [--no-verify]
    python lab/bench_tensorrt.py --table OUT.jsonl ...

FOLDER holds models, each with `STEM.inputs.npz` or `inputs.npz` beside it or without. A row a model: the source's build
and, where that is taken, of each level and format the time of the conversion, the build and the error under emulation.
It needs the extra `tensorrt` and no GPU. `--table` prints the sums over such files.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any, TypeAlias

import numpy as np

import amp_transpiler as amp
from amp_transpiler.errors import AmpError, CheckFailed
from amp_transpiler.systems.option_names import DtypeName, LevelName
from amp_transpiler.verification.engine_check import guessed_profile, profile_of
from tensorrt_probe import build

Way: TypeAlias = tuple[LevelName, DtypeName]

LARGEST = 250e6  # bytes of a model


def main() -> int:
    """Run it, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("folders", type=pathlib.Path, nargs="*")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--levels", nargs="+", default=["auto", "O2"])
    parser.add_argument("--formats", nargs="+", default=["float16", "bfloat16"])
    parser.add_argument("--no-verify", action="store_true", help="convert without runs: no errors, and no search")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        files = [arguments.out, *arguments.folders]
        print(_table([json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]))
        return 0
    part, parts = map(int, arguments.part.split("/"))
    files = sorted(file for folder in arguments.folders for file in folder.rglob("*.onnx"))
    seen = set()
    if arguments.out.exists():
        seen = {json.loads(line)["model"] for line in arguments.out.read_text(encoding="utf-8").splitlines()}
    ways: list[Way] = [(level, dtype) for level in arguments.levels for dtype in arguments.formats]
    for file in (file for index, file in enumerate(files) if index % parts == part):
        if str(file) not in seen and file.stat().st_size < LARGEST:
            row = _row(file, ways, verify=not arguments.no_verify)
            with arguments.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
    return 0


def _row(file: pathlib.Path, ways: list[Way], *, verify: bool) -> dict[str, Any]:
    inputs = next(
        (
            p
            for p in (
                file.with_suffix(".inputs.npz"),
                file.with_name(file.name + ".inputs.npz"),
                file.with_name("inputs.npz"),
            )
            if p.exists()
        ),
        None,
    )
    if inputs is None:
        profile = guessed_profile(amp.load(file), {})
    else:
        with np.load(inputs) as arrays:
            profile = profile_of([dict(arrays)])
    source = build(file, profile)
    row: dict[str, Any] = {"model": str(file), "source": source.fault, "ways": {}}
    if source.fault:
        return row
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "out.onnx"
        for level, dtype in ways:
            before = time.perf_counter()
            way: dict[str, Any] = {}
            try:
                report = amp.transpile(
                    file,
                    result,
                    level=level,
                    dtype=dtype,
                    target="tensorrt",
                    inputs=inputs,
                    build="no",
                    cache=False,
                    verify=verify,
                )
                errors = [output.relative for output in report.outputs.values()]
                way |= {"verdict": report.verdict, "error": max(errors, default=None), "kept": report.kept_float32}
            except CheckFailed as failure:
                way |= {"verdict": f"refused: {failure}"}
            except AmpError as error:
                way |= {"verdict": f"not converted: {error}"}
            way["seconds"] = time.perf_counter() - before
            if result.exists():
                engine = build(result, profile)
                way |= {"fault": engine.fault, "share": engine.low_share, "build": engine.seconds}
                result.unlink()
            row["ways"][f"{level} {dtype}"] = way
    return row


def _table(rows: list[dict[str, Any]]) -> str:
    taken = [row for row in rows if not row["source"]]
    lines = [f"{len(rows)} models, {len(taken)} of which the builder takes in float32"]
    ways: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for row in taken:
        for name, way in row["ways"].items():
            ways[name].append(way)
    for name, results in ways.items():
        built = [way for way in results if way.get("fault") == ""]
        shares = [way["share"] for way in built if way["share"] is not None]
        seconds = [way["seconds"] for way in results]
        lines.append(
            f"{name}: {len(results)} converted, {sum('fault' in way for way in results)} written, {len(built)} built, "
            f"share in 16 bits {statistics.mean(shares or [0]):.2f} (mean), {statistics.median(shares or [0]):.2f} "
            f"(median), {statistics.median(seconds):.1f} s (median)"
        )
        for row in taken:
            way = row["ways"].get(name, {})
            if way.get("fault") != "":
                lines.append(f"  {row['model']}: {way.get('fault') or way.get('verdict')}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
