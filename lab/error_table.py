#!/usr/bin/env python3
"""Prints a table of errors over a corpus at level auto: of the whole, and of the worst part.

    python lab/error_table.py CORPUS                       # models up to 5 MB, float16
    python lab/error_table.py CORPUS --largest 50 --dtype bfloat16

`docs/concepts/error.md` says what parts are. A model is compared on the NAME.inputs.npz
beside it, or on made-up inputs.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
from typing import Literal

import amp_transpiler as amp
from amp_transpiler.report import OutputComparison


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--largest", type=float, default=5.0, help="size of a file in MB (default: 5)")
    parser.add_argument("--dtype", choices=["float16", "bfloat16"], default="float16")
    options = parser.parse_args()
    ratios = []
    print("| model | output | whole | worst part | which |\n|---|---|---|---|---|")
    for path in sorted(options.corpus.rglob("*.onnx")):
        if path.stat().st_size > 1e6 * options.largest:
            continue
        name = path.relative_to(options.corpus).with_suffix("")
        row = worst(path, options.dtype)
        if isinstance(row, str):
            print(f"| {name} | {row} | | | |", flush=True)
        elif row is not None:
            ratios.append(row.relative / row.of_all if row.of_all else 1.0)
            part = row.part or "the whole"
            print(f"| {name} | `{row.name}` | {row.of_all:.3%} | {row.relative:.3%} | {part} |", flush=True)
    if ratios:
        print(f"\n{len(ratios)} models, median ratio {statistics.median(ratios):.2f}")
    return 0


def worst(path: pathlib.Path, dtype: Literal["float16", "bfloat16"]) -> OutputComparison | str | None:
    """Return the comparison of the float output with the largest error, None without one; or why there is none."""
    data = path.with_suffix(".inputs.npz")
    try:
        report = amp.transpile(path, None, dtype=dtype, inputs=data if data.exists() else None, prefer="size")
    except amp.AmpError as error:
        return str(error).splitlines()[0]
    rows = [row for row in report.outputs.values() if "float" in row.dtype]
    return max(rows, key=lambda row: row.relative, default=None)


if __name__ == "__main__":
    sys.exit(main())
