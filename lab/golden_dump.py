#!/usr/bin/env python3
"""Records what every way of converting does to every model, so that two versions of the code can be compared.

    python lab/golden_dump.py dump OUT.jsonl MODEL_OR_FOLDER...   # add what OUT does not have yet
    python lab/golden_dump.py dump OUT.jsonl FOLDER --repaired    # level auto, verified and repaired
    python lab/golden_dump.py compare BEFORE.jsonl AFTER.jsonl    # print every difference, exit 1 if there is any
    python lab/golden_dump.py summary FILE.jsonl             # a table for tests/lab/golden_small_models.txt
    python lab/golden_dump.py codes FILE.jsonl                    # how often each code of a reason occurs

A line is one conversion: model, way, format, the SHA-256 of the written files, and for every node its precision and
reason. Reasons are compared by code, so that a sentence may be reworded; those of a dump that has no codes by sentence.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

from amp_transpiler.precision.reasons import TEMPLATES
from golden.dump import WAYS, Record, records_of
from golden.summary import COLUMNS, summary_rows, written_with


def main() -> int:
    options = _options()
    if options.task == "dump":
        return _dump(options)
    if options.task == "one":
        for record in records_of(options.model, options.repaired, options.decisions_only):
            print(json.dumps(record), flush=True)
        return 0
    if options.task == "compare":
        return _compare(options.before, options.after)
    if options.task == "summary":
        return _summarize(options.file)
    return _count_codes(options.file)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    dump, single = tasks.add_parser("dump"), tasks.add_parser("one", help="(internal) one model in this process")
    dump.add_argument("out", type=pathlib.Path)
    dump.add_argument("models", type=pathlib.Path, nargs="+")
    dump.add_argument("--jobs", type=int, default=1)
    single.add_argument("model", type=pathlib.Path)
    for each in (dump, single):
        each.add_argument("--repaired", action="store_true", help="level auto alone, verified and repaired")
        each.add_argument("--decisions-only", action="store_true", help="float16 decisions, no files: for node tests")
    compare = tasks.add_parser("compare")
    compare.add_argument("before", type=pathlib.Path)
    compare.add_argument("after", type=pathlib.Path)
    for task in ("summary", "codes"):
        tasks.add_parser(task).add_argument("file", type=pathlib.Path)
    return parser.parse_args()


def _dump(options: argparse.Namespace) -> int:
    """Convert each model in a process of its own: a crash of ONNX Runtime then costs one model."""
    known = {record["model"] for record in _read(options.out)} if options.out.exists() else set()
    files = [f for path in options.models for f in (sorted(path.rglob("*.onnx")) if path.is_dir() else [path])]
    flags = ["--repaired"] * options.repaired + ["--decisions-only"] * options.decisions_only
    pending = [file for file in files if model_name(file) not in known]
    running: list[tuple[pathlib.Path, subprocess.Popen[str]]] = []
    failed = 0
    with options.out.open("a", encoding="utf-8") as out:
        while pending or running:
            while pending and len(running) < options.jobs:
                file = pending.pop(0)
                command = [sys.executable, __file__, "one", str(file), *flags]
                running.append((file, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
            file, process = running.pop(0)
            output, _ = process.communicate()
            if process.returncode:
                failed += 1
                print(f"{model_name(file)}: exit status {process.returncode}", file=sys.stderr)
                continue
            out.write(output)
            out.flush()
            print(f"{len(files) - len(pending)}/{len(files)} {model_name(file)}", flush=True)
    return 1 if failed else 0


def model_name(file: pathlib.Path) -> str:
    """The name that a model goes by in a dump: the last three parts of its path."""
    return "/".join(file.parts[-3:])


def _read(file: pathlib.Path) -> Iterator[Record]:
    with file.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _compare(before: pathlib.Path, after: pathlib.Path) -> int:
    new = {_key(record): record for record in _read(after)}
    seen, differences = 0, 0
    for old in _read(before):
        current = new.get(_key(old))
        if current is None:
            continue
        seen += 1
        for line in _differences(old, current):
            differences += 1
            print(" ".join(_key(old)), line)
    print(f"{seen} conversions compared, {differences} differences")
    return 1 if differences or not seen else 0


def _key(record: Record) -> tuple[str, str, str]:
    return record["model"], record["way"], record["dtype"]


def _differences(old: Record, new: Record) -> Iterator[str]:
    for key in ("error", "sha256", "casts", "opset"):
        if old.get(key) != new.get(key):
            yield f"{key}: {old.get(key)} -> {new.get(key)}"
    if "nodes" not in old or "nodes" not in new:
        return
    said = "codes" if "codes" in old and "codes" in new else "reasons"
    before, after = (
        [(name, op, precision, record[said][index]) for name, op, precision, index in record["nodes"]]
        for record in (old, new)
    )
    if len(before) != len(after):
        yield f"nodes: {len(before)} -> {len(after)}"
    for left, right in zip(before, after, strict=False):
        if left != right:
            yield f"{left} -> {right}"


def _summarize(file: pathlib.Path) -> int:
    rows = [COLUMNS, *summary_rows(_read(file))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"# written with {written_with()}")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _count_codes(file: pathlib.Path) -> int:
    codes = collections.Counter(code for record in _read(file) for code in record.get("codes", ()))
    for code, count in codes.most_common():
        print(f"{count:6}  {code}")
    print(f"{len(codes)} of {len(TEMPLATES)} codes; ways: {', '.join(WAYS)}")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
