#!/usr/bin/env python3
"""Which decisions change because of what a device computes wrongly, model by model, with the rule.

    python lab/fault_decisions.py FOLDER_OR_MODEL...                        # level auto in float16 and bfloat16
    python lab/fault_decisions.py FOLDER --level O2 --dtype float16 --json OUT.json

Each model is converted twice, unverified: with the faults of `targets/data/arithmetic.txt` and as if it had none. A row
counts the nodes in lower precision before and after, and names the rules. A node without a rule of its own follows
another: it is part of one operator with it, or an island now.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import amp_transpiler as amp
from amp_transpiler.precision import device_faults
from amp_transpiler.precision.reasons import Reason, reason_of
from amp_transpiler.targets import Target
from amp_transpiler.targets.arithmetic import DeviceArithmetic
from amp_transpiler.targets.measured import arithmetic_for

BESIDE = "with a node beside it"


@dataclasses.dataclass(frozen=True)
class Change:
    """One conversion with and without the faults.

    Attributes:
        model: the file.
        level: the level.
        dtype: the format.
        before: nodes in lower precision without the faults.
        after: with them.
        rules: rule -> names of the nodes that it keeps in float32.
        refused: why the model is not converted; empty if it is.
    """

    model: str
    level: str
    dtype: str
    before: int = 0
    after: int = 0
    rules: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    refused: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--level", action="append", help="more than once for several; default: auto")
    parser.add_argument("--dtype", action="append", choices=("float16", "bfloat16"), help="default: both")
    parser.add_argument("--json", type=pathlib.Path, help="where to write the rows")
    options = parser.parse_args()
    rows = []
    for path in _models(options.models):
        for level in options.level or ["auto"]:
            for dtype in options.dtype or ["float16", "bfloat16"]:
                rows.append(change_of(path, level, dtype))
                print(line_of(rows[-1]), flush=True)
    print(*summary_of(rows), sep="\n")
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n", "utf-8")
    return 0


def _models(paths: list[pathlib.Path]) -> Iterator[pathlib.Path]:
    for path in paths:
        yield from sorted(path.rglob("*.onnx")) if path.is_dir() else [path]


def change_of(path: pathlib.Path, level: str, dtype: str) -> Change:
    """Return what the faults change of a model's conversion."""
    name = f"{path.parent.name}/{path.stem}"
    try:
        with without_faults():
            before = _low_nodes(path, level, dtype)[0]
        after, reasons = _low_nodes(path, level, dtype)
    except amp.AmpError as error:
        return Change(name, level, dtype, refused=str(error).splitlines()[0])
    rules: dict[str, list[str]] = {}
    for node in sorted(before - after):
        rules.setdefault(rule_of(reasons[node]), []).append(node)
    return Change(name, level, dtype, len(before), len(after), rules)


def _low_nodes(path: pathlib.Path, level: str, dtype: str) -> tuple[set[str], dict[str, Reason]]:
    options: Any = {"level": level, "dtype": dtype}  # argparse has checked them, or transpile does
    report = amp.transpile(path, verify=False, **options, prefer="size")
    low = {row.name for row in report.decisions if row.precision in ("float16", "bfloat16")}
    return low, {row.name: reason_of(row.reason) for row in report.decisions}


@contextlib.contextmanager
def without_faults() -> Iterator[None]:
    """Decide as if the device computed everything right."""

    def faultless(target: Target, device: str) -> DeviceArithmetic | None:
        arithmetic = arithmetic_for(target, device)
        return None if arithmetic is None else dataclasses.replace(arithmetic, rows={})

    with mock.patch.object(device_faults, "arithmetic_for", faultless):
        yield


def rule_of(reason: Reason) -> str:
    """Return the rule that a reason states; `BESIDE` if it states none."""
    values = reason.values
    if reason.code in ("mean-beyond-range", "seen-mean-beyond-range"):
        return f"{values['operator']} in {values['low']} sums before it divides"
    if reason.code == "wrong-kernel":
        return f"{values['operator']} in {values['low']} {values['fault']}"
    if reason.code == "wrong-kernel-inside" and isinstance(fault := values["fault"], Reason):
        return f"{values['operator']}: {rule_of(fault)}"
    return BESIDE


def line_of(row: Change) -> str:
    """Return a row of the table."""
    if row.refused:
        return f"{row.model:52} {row.level:5} {row.dtype:9} refused: {row.refused}"
    rules = "; ".join(f"{len(nodes)} x {rule}" for rule, nodes in row.rules.items())
    return f"{row.model:52} {row.level:5} {row.dtype:9} {row.before:5} -> {row.after:5}  {rules}".rstrip()


def summary_of(rows: list[Change]) -> Iterator[str]:
    """Yield the sums over models, the models that lose most, and the rules, for each level and format."""
    groups: dict[tuple[str, str], list[Change]] = {}
    for row in rows:
        if not row.refused:
            groups.setdefault((row.level, row.dtype), []).append(row)
    for (level, dtype), group in groups.items():
        before, after = sum(row.before for row in group), sum(row.after for row in group)
        share = after / before if before else 1.0
        yield f"\n{level} {dtype}: {len(group)} models, low nodes {before} -> {after} ({share:.2%})"
        worst = sorted((row for row in group if row.after < row.before), key=lambda row: row.after / row.before)[:5]
        yield from (f"  worst: {row.model} {row.after / row.before:.1%}" for row in worst)
        counts = collections.Counter({rule: 0 for row in group for rule in row.rules})
        for row in group:
            counts.update({rule: len(nodes) for rule, nodes in row.rules.items()})
        yield from (f"  {count:5} nodes: {rule}" for rule, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
