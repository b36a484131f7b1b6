#!/usr/bin/env python3
"""Writes the options of docs/reference/command.md and the arguments in `transpile`'s docstring from `option_table.py`.

    python scripts/option_docs.py           # rewrite both
    python scripts/option_docs.py --check   # change nothing; exit 1 and show the difference if they are out of date

Run it after every change of the table.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import pathlib
import re
import sys
import textwrap

from amp_transpiler.option_table import GROUPS, OPTIONS, Option
from amp_transpiler.pipeline import transpile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "command.md"
PIPELINE = ROOT / "amp_transpiler" / "pipeline.py"

_TABLE = re.compile(r"(?<=<!-- options, by scripts/option_docs.py -->\n).*?(?=<!-- end of options -->)", re.DOTALL)
_ARGUMENTS = re.compile(r"(?<=    Args:\n)        src: .*?(?=\n    Returns:)", re.DOTALL)
_WIDTH = 120


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if a file is out of date")
    check = parser.parse_args().check
    status = 0
    for path, text in updated().items():
        before = path.read_text(encoding="utf-8")
        if before == text:
            continue
        if not check:
            path.write_text(text, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: rewritten")
            continue
        status = 1
        print(f"{path.relative_to(ROOT)} does not match option_table.py; run python scripts/option_docs.py")
        print("\n".join(difflib.unified_diff(before.splitlines(), text.splitlines(), "is", "should be", lineterm="")))
    return status


def updated() -> dict[pathlib.Path, str]:
    """Return both files with the texts that the table gives."""
    return {
        PAGE: _replaced(PAGE, _TABLE, page_table()),
        PIPELINE: _replaced(PIPELINE, _ARGUMENTS, docstring_arguments()),
    }


def _replaced(path: pathlib.Path, place: re.Pattern[str], text: str) -> str:
    before = path.read_text(encoding="utf-8")
    if len(place.findall(before)) != 1:
        raise SystemExit(f"{path}: expected one place that matches {place.pattern!r}")
    return place.sub(lambda _: text, before)


def page_table() -> str:
    """Return the Markdown table of the command's options, group by group."""
    lines = ["| option | meaning |", "| --- | --- |"]
    for group, heading in GROUPS.items():
        lines.append(f"| **{heading}** | |")
        for option in OPTIONS:
            if option.group == group and (option.flags or option.metavar):
                name = " ".join(filter(None, (", ".join(option.flags), option.metavar))).replace("|", r"\|")
                meaning = _sentences(option, option.text, repeated=option.metavar is not None).replace("|", r"\|")
                lines.append(f"| `{name}` | {meaning} |")
    return "\n".join(lines) + "\n"


def docstring_arguments() -> str:
    """Return the lines below `Args:`, in the order of the signature."""
    rows: dict[str, Option] = {}
    for option in OPTIONS:
        if option.parameter is not None:
            rows.setdefault(option.parameter, option)  # of several rows the first speaks for the parameter
    wrapper = textwrap.TextWrapper(
        _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False, break_long_words=False
    )
    lines = []
    for name in inspect.signature(transpile).parameters:
        option = rows[name]
        text = f"{name}: {_sentences(option, option.python or option.text)}"
        lines += wrapper.wrap(text)
    return "\n".join(lines) + "\n"


def _sentences(option: Option, text: str, *, repeated: bool = False) -> str:
    """Return the text and after it the values and their meanings."""
    if repeated and option.repeated:
        text += " May be repeated."
    values = "; ".join(
        f"`{value}`{' (default)' if value == option.default else ''}: {meaning}"
        for value, meaning in option.values.items()
    )
    return f"{text.removesuffix('.')}. {values}." if values else text


if __name__ == "__main__":
    sys.exit(main())
