#!/usr/bin/env python3
"""Converts models with the fusions that are the default, and with none, and compares the results.

    python lab/bench_fusion.py OUT.jsonl MODEL...      # MODEL.inputs.npz or inputs.npz beside a model are its inputs
    python lab/bench_fusion.py --page                  # docs/benchmarks/fusion.md, from docs/benchmarks/fusion/

Models in which nothing is fused are left out: without verification it is asked first what is. Each conversion has a
process of its own. Times are predicted for one inference on the default device.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from amp_transpiler.report.wording import percent
from compare_defaults import commit_of
from gpu.models import inputs_beside

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "benchmarks" / "fusion"
PAGE = ROOT / "docs" / "benchmarks" / "fusion.md"
Record = dict[str, Any]

_LIMIT = 0.02  # of float16 at level auto
_INTRODUCTION = """# Fusion by default

What `amp-transpile MODEL` makes of models in which it fuses nodes, beside `--fuse none`: verdict with the error of the
worst output, allowed 2%, predicted time of one inference on an H100, size of the files, nodes in float16 and casts.
Fused is what a device has run (`ops/fusions.py`). Attention stays in pieces where its mask has an open number of
keys, or where no fused kernel takes its heads. `lab/bench_fusion.py` made the page, from files in
`docs/benchmarks/fusion/`."""

_CONVERT = """
import json, sys
import amp_transpiler as amp
source, result, inputs, options = sys.argv[1:]
report = amp.transpile(source, result, inputs=inputs or None, cache=False, **json.loads(options))
errors = [row.relative for row in report.outputs.values() if "float" in row.dtype]
times = report.known_times()
print(json.dumps({
    "word": report.verdict_word, "error": max(errors, default=None), "low": report.low_nodes, "casts": report.casts,
    "fused": dict(report.fused), "milliseconds": times.result, "source": times.fp32,
}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the page from its files, and stop")
    parser.add_argument("--prefer", default="balance", choices=["balance", "time", "size"])
    parser.add_argument("out", type=pathlib.Path, nargs="?")
    parser.add_argument("models", type=pathlib.Path, nargs="*")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page(sorted(RESULTS.glob("*.jsonl"))), encoding="utf-8")
        return 0
    if not options.models:
        parser.error("name the file to write and the models")
    with options.out.open("w", encoding="utf-8") as file:
        first = head(len(options.models), options.prefer)
        for record in itertools.chain((first,), compared(options.models, options.prefer)):
            file.write(json.dumps(record) + "\n")
            file.flush()
            if "model" in record:
                print(row(record), flush=True)
    return 0


def head(models: int, prefer: str) -> Record:
    """Return the first line of a file of results: when and with what it was made, and of how many models."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("onnx", "onnxruntime-gpu"))
    today = f"{dt.datetime.now(dt.UTC).date()}"
    return {"date": today, "commit": commit_of(ROOT), "versions": versions, "models": models, "prefer": prefer}


def compared(models: Sequence[pathlib.Path], prefer: str) -> Iterator[Record]:
    """Yield a record for each model in which something is fused."""
    for model in models:
        quick = {"verify": False, "prefer": "size"}
        if not converted(model, quick)["fused"]:
            continue
        shared = model.parent / "inputs.npz"
        inputs = inputs_beside(model) or (shared if shared.exists() else None)
        yield {
            "model": f"{model.parent.name}/{model.stem}",
            "inputs": inputs is not None,
            "none": converted(model, {"prefer": prefer, "fuse": "none"}, inputs),
            "default": converted(model, {"prefer": prefer}, inputs),
        }


def converted(model: pathlib.Path, options: Record, inputs: pathlib.Path | None = None) -> Record:
    """Return what the options make of a model: verdict, low nodes, bytes and predicted milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(model), f"{folder}/result.onnx", "" if inputs is None else str(inputs), json.dumps(options)]
        command = [sys.executable, "-c", _CONVERT, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        size = sum(path.stat().st_size for path in pathlib.Path(folder).iterdir())
        report: Record = json.loads(done.stdout.splitlines()[-1])
        return report | {"bytes": size}


def page(files: Sequence[pathlib.Path]) -> str:
    """Return the page that the files make."""
    return "\n".join([_INTRODUCTION, *(line for file in files for line in section(file))]) + "\n"


def section(file: pathlib.Path) -> Iterator[str]:
    """Yield the lines about one run."""
    first, *records = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    yield from ("", f"## {first['date']}, commit {first['commit']}, --prefer {first['prefer']}", "")
    worse = sum(not keeps_gate(record) for record in records)
    yield f"{first['versions']}. Something can be fused in {len(records)} of {first['models']} models. Slower, with"
    yield f"another verdict, or with an error 1.2 times as large and a tenth of the limit more: {worse} of them."
    yield ""
    yield "| model | fused | verdict, none | fused | ms of fp32 | none | fused | MB, none | fused | low, none | fused |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    yield from map(row, records)


def keeps_gate(record: Record) -> bool:
    """Whether the fused result is no slower, has no worse verdict, and an error that is about as small."""
    before, after = record["none"], record["default"]
    more = (after["error"] or 0.0) - (before["error"] or 0.0)
    accurate = more <= max(0.2 * (before["error"] or 0.0), 0.1 * _LIMIT)
    return accurate and after["word"] == before["word"] and after["milliseconds"] <= before["milliseconds"] * (1 + 1e-9)


def row(record: Record) -> str:
    """Return a model's row."""
    before, after = record["none"], record["default"]
    fused = ", ".join(f"{count} {name.rpartition('::')[2]}" for name, count in after["fused"].items())
    cells = [
        record["model"],
        fused or "nothing: better without",
        *(f"{side['word']}: {percent(side['error'] or 0.0)}" for side in (before, after)),
        *(f"{time:.3f}" for time in (before["source"], before["milliseconds"], after["milliseconds"])),
        *(f"{side['bytes'] / 1e6:.2f}" for side in (before, after)),
        *(f"{side['low']} ({side['casts']} casts)" for side in (before, after)),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
