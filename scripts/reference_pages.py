#!/usr/bin/env python3
"""Writes docs/reference/operators.md and lists.md from the operator table.

    python scripts/reference_pages.py           # rewrite both
    python scripts/reference_pages.py --check   # change nothing; exit 1 if they are out of date

Run it after every change of `amp_transpiler/ops/operators.txt`.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping

from amp_transpiler.ops.table import OperatorRow, operator_table

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "docs" / "reference"

_OPERATORS = """# Operators

One row an operator of `amp_transpiler/ops/operators.txt`. An operator without one, such as a custom one, is on no list.
`scripts/reference_pages.py` writes this page.

- **Kinds** are facts that rules use. `compute`: lower precision pays here. `movement`: moves, repeats or drops values.
  `exact`: every result is an input or its negation. `bounded`: results lie in a small interval. `capped`: a constant
  that rounds to infinity keeps its meaning. `sum`, `squares`, `root`, `scatter`: what a rule about sums asks for.
  `fused`: written by ONNX Runtime's optimizer. `loss`, `random`: as they say.
- **Unsafe**: level auto keeps the operator float32 in these formats, unless your data show that it is safe.
- The other columns are the lists of the five systems, which [Lists of every system](lists.md) explains. An empty cell
  of Paddle, PyTorch, MXNet or RAF means that a finer class, such as `Conv[depthwise]`, is treated like the operator.

"""
_COLUMNS = ("unsafe", "paddle", "torch", "mxnet", "raf", "sambanova", "paddle names")
_HEADINGS = ("operator", "kinds", "unsafe", "Paddle", "PyTorch", "MXNet", "RAF", "SambaNova", "Paddle's names")

_LISTS = """# Lists of every system

The operators by the list that each system has them on, from the operator table. A class in brackets
(`Conv[depthwise]`) has a place of its own. Your own lists come first: `--white`, `--black`,
`amp.AutoMixedPrecisionLists`. `scripts/reference_pages.py` writes this page.

"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if a page is out of date")
    check = parser.parse_args().check
    old = [path for path, text in pages().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in old:
        if not check:
            path.write_text(pages()[path], encoding="utf-8")
        print(f"{path.name}: {'out of date; run python scripts/reference_pages.py' if check else 'rewritten'}")
    return 1 if check and old else 0


def pages() -> dict[pathlib.Path, str]:
    """Return both pages as they should be."""
    return {FOLDER / "operators.md": operators_page(), FOLDER / "lists.md": lists_page()}


def operators_page() -> str:
    lines = [f"| {' | '.join(_HEADINGS)} |", "|" + " --- |" * len(_HEADINGS)]
    for name, row in operator_table().items():
        cells = (f"`{name}`", " ".join(sorted(row.kinds)), *(_cell(row, column) for column in _COLUMNS))
        lines.append(f"| {' | '.join(cells)} |")
    return _OPERATORS + "\n".join(lines) + "\n"


def _cell(row: OperatorRow, column: str) -> str:
    text = row.cells.get(column, "")
    if column == "unsafe" and text:
        return f"{text}: {row.cells['unsafe reason']}"
    return ", ".join(f"`{word}`" for word in text.split()) if column == "paddle names" else text


def lists_page() -> str:
    return _LISTS + "\n".join(section(*arguments) for arguments in _SYSTEMS)


def section(heading: str, text: str, column: str, meanings: Mapping[str, str], word: Callable[[str], str]) -> str:
    """Return the part of one system: what its page is, and the operators of each of its lists."""
    lists: dict[str, list[str]] = {key: [] for key in meanings}
    for name, row in operator_table().items():
        if column in row.cells:
            lists[word(row.cells[column])].append(name)
    rows = [f"| {key}: {meanings[key]} | {_names(names)} |" for key, names in lists.items() if names]
    return "\n".join([f"## {heading}\n", f"{text}\n", "| list | operators |", "| --- | --- |", *rows]) + "\n"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _whole(cell: str) -> str:
    return cell


def _first(cell: str) -> str:
    return cell.split(maxsplit=1)[0]


_SYSTEMS = (
    (
        "Level auto: numerically unsafe",
        "These stay float32 unless your data show that they are safe ([How level auto decides](../precision.md)).",
        "unsafe",
        {"both": "float16 and bfloat16", "float16": "float16 only"},
        _whole,
    ),
    (
        "Paddle",
        "[Paddle's behaviours](../evidence/paddle_behaviours.md) say what each level does with these lists.",
        "paddle",
        {
            "white": "lower precision",
            "gray": "follows its producers",
            "black": "float32 at O1; O2 and auto lift it",
            "unsupported": "float32 at O1, and at O2 too where it adds values up",
            "unlisted": "float32 at O1",
        },
        _whole,
    ),
    (
        "PyTorch",
        "The classes of CUDA's autocast ([PyTorch's autocast](../pytorch.md)).",
        "torch",
        {
            "lower_precision_fp": "lower precision",
            "fp32": "float32",
            "promote": "the widest type among the inputs",
            "fall_through": "no cast; takes what comes",
        },
        _whole,
    ),
    (
        "RAF",
        "The families of casting rules ([RAF's autocast](../raf.md)).",
        "raf",
        {
            "always": "lower precision",
            "never": "float32",
            "infer": "the majority of the inputs",
            "either": "lower precision if any input is",
            "concat": "the majority, up to five inputs",
            "follow": "as the first float input",
            "data": "the first input in lower precision, the others float32",
            "none": "never asked",
        },
        _first,
    ),
    (
        "MXNet",
        "The lists for float16; a few operators are on another one for bfloat16 ([MXNet's conversion](../mxnet.md)).",
        "mxnet",
        {
            "target": "lower precision",
            "fp32": "as written",
            "widest": "lower precision if all float inputs are",
            "neutral": "lower precision if any float input is",
        },
        _first,
    ),
    (
        "SambaNova",
        "The groups of `--mixed-ops` ([SambaNova's GraphAMP](../sambanova.md)). Presets treat all others alike.",
        "sambanova",
        {
            "gemm": "inputs in lower precision, result in float32",
            "softmax": "input in float32, result in lower precision",
        },
        _whole,
    ),
)


if __name__ == "__main__":
    sys.exit(main())
