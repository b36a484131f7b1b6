#!/usr/bin/env python3
"""Converts models as `amp-transpile MODEL` does, by this commit and by an earlier one, and compares the results.

    git worktree add --detach ../former COMMIT
    python lab/compare_defaults.py ../former OUT.jsonl MODEL...      # MODEL.inputs.npz beside a model are its inputs
    python lab/compare_defaults.py --page                            # docs/benchmarks/former_default.md, from its files

Every model is converted with its inputs and without, each time in a process of its own. Times are predicted for one
inference on the default device, both by this commit's prices: the earlier commit's result is priced as a file.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

import amp_transpiler as amp
from amp_transpiler.conversion import plain_copy
from amp_transpiler.cost import predicted as cost_of_run, traffic
from amp_transpiler.report.wording import percent
from amp_transpiler.targets.devices import DEFAULT_DEVICE
from gpu.models import inputs_beside

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "benchmarks" / "former_default"
PAGE = ROOT / "docs" / "benchmarks" / "former_default.md"
Record = dict[str, Any]

_A_TENTH = 1.1
_INTRODUCTION = """# Beside the former default

What `amp-transpile MODEL` makes of models by default, and what it made of them at an earlier commit, where 16 bits were
taken wherever they were accurate enough: size and predicted time as ratios to those of the source, and the verdict with
the error of the worst output, each as its own commit stated it. Both commits' files are priced by the later commit.
Every model runs with the inputs that belong to it, and without any. `lab/compare_defaults.py` made the page, from files
in `docs/benchmarks/former_default/`. [The default on a GPU](default.md) has measured times."""

# Runs in either tree, whose `transpile` has had these names since the first release.
_CONVERT = """
import json, sys
import amp_transpiler as amp
source, result, inputs = sys.argv[1:]
report = amp.transpile(source, result, inputs=inputs or None, cache=False)
errors = [row.relative for row in report.outputs.values() if "float" in row.dtype]
print(json.dumps({"word": report.verdict_word, "error": max(errors, default=None), "low": report.low_nodes}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the page from its files, and stop")
    parser.add_argument("former", type=pathlib.Path, nargs="?", help="a checkout of the earlier commit")
    parser.add_argument("out", type=pathlib.Path, nargs="?")
    parser.add_argument("models", type=pathlib.Path, nargs="*")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page(sorted(RESULTS.glob("*.jsonl"))), encoding="utf-8")
        return 0
    if not options.models:
        parser.error("name the checkout, the file to write and the models")
    with options.out.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head(options.former)) + "\n")
        for record in compared(options.former.resolve(), options.models):
            file.write(json.dumps(record) + "\n")
            file.flush()
            print(row(record), flush=True)
    return 0


def head(former: pathlib.Path) -> Record:
    """Return the first line of a file of results: when and with what it was made."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("onnx", "onnxruntime-gpu"))
    commits = {name: commit_of(tree) for name, tree in (("former", former), ("now", ROOT))}
    return {"date": f"{dt.datetime.now(dt.UTC).date()}", **commits, "versions": versions, "device": DEFAULT_DEVICE.name}


def commit_of(tree: pathlib.Path) -> str:
    """Return the commit that a checkout is at."""
    command = ["git", "-C", str(tree), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def compared(former: pathlib.Path, models: list[pathlib.Path]) -> Iterator[Record]:
    """Yield a record for each model with and without its inputs: what either commit made of it."""
    for model in models:
        for inputs in dict.fromkeys((inputs_beside(model), None)):
            yield {
                "model": f"{model.parent.name}/{model.stem}",
                "inputs": inputs is not None,
                "bytes": model.stat().st_size,
                "milliseconds": predicted(model),
                "former": converted(former, model, inputs),
                "now": converted(ROOT, model, inputs),
            }


def converted(tree: pathlib.Path, model: pathlib.Path, inputs: pathlib.Path | None) -> Record:
    """Return what a checkout makes of a model: verdict, low nodes, bytes and predicted milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "result.onnx"
        arguments = [str(model.resolve()), str(result), "" if inputs is None else str(inputs.resolve())]
        command = [sys.executable, "-c", _CONVERT, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tree, env=environment)
        size = sum(path.stat().st_size for path in pathlib.Path(folder).iterdir())
        report: Record = json.loads(done.stdout.splitlines()[-1])
        return report | {"bytes": size, "milliseconds": predicted(result)}


def predicted(model: pathlib.Path) -> float:
    """Return the predicted milliseconds of one run of a model on the default device, as ONNX Runtime optimizes it."""
    costs = traffic(plain_copy(amp.load(model)).model, fuse=True)
    return cost_of_run(costs, DEFAULT_DEVICE).milliseconds


def page(files: Sequence[pathlib.Path]) -> str:
    """Return the page: an introduction, and a section for each file of results."""
    return "\n\n".join([_INTRODUCTION, *map(section, files)]) + "\n"


def section(file: pathlib.Path) -> str:
    """Return the part of the page about one file of results."""
    first, *records = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    counts = [
        f"{sum(ratio(record, which) > _A_TENTH for record in records)} of {len(records)}" for which in ("former", "now")
    ]
    return "\n".join(
        [
            f"## {first['date']}, commits {first['former']} and {first['now']}",
            "",
            f"{first['versions']}. Predicted more than a tenth slower than float32 on {first['device']}: {counts[0]}",
            f"before, {counts[1]} now.",
            "",
            "| model | inputs | size, before | now | verdict, before | now | time, before | now |",
            f"| {' | '.join(['---'] * 8)} |",
            *map(row, records),
        ]
    )


def row(record: Record) -> str:
    """Return a record as a row. Sizes and predicted times are ratios to those of the source."""
    former, now = record["former"], record["now"]
    cells = [record["model"], "yes" if record["inputs"] else "no"]
    cells += [f"{conversion['bytes'] / record['bytes']:.2f}" for conversion in (former, now)]
    cells += [stated(conversion) for conversion in (former, now)]
    cells += [f"{ratio(record, which):.2f}" for which in ("former", "now")]
    return f"| {' | '.join(cells)} |"


def ratio(record: Record, which: str) -> float:
    """Return the predicted time of the `former` result or that of `now`, as a ratio to the source's."""
    return float(record[which]["milliseconds"] / record["milliseconds"])


def stated(made: Record) -> str:
    """Return the word of a verdict, and the error of the worst output."""
    return made["word"] if made["error"] is None else f"{made['word']}: within {percent(made['error'])}"


if __name__ == "__main__":
    sys.exit(main())
