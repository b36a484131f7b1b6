#!/usr/bin/env python3
"""Writes `transpile`'s signature and docstring, and the options of docs/reference/command.md, as they are declared.

    python scripts/option_docs.py           # rewrite both files
    python scripts/option_docs.py --check   # change nothing; exit 1 and show the difference if they are out of date

Run it after every change of a field in `amp_transpiler/options/`. A parameter that is new comes last.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import json
import pathlib
import re
import sys
import textwrap

from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.options.option import GROUPS, Option, declarations
from amp_transpiler.options.table import OPTIONS
from amp_transpiler.pipeline import transpile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "command.md"
PIPELINE = ROOT / "amp_transpiler" / "pipeline.py"
FIELDS = ROOT / "amp_transpiler" / "options"

_TABLE = re.compile(r"(?<=<!-- options, by scripts/option_docs.py -->\n).*?(?=<!-- end of options -->)", re.DOTALL)
_ARGUMENTS = re.compile(r"(?<=    Args:\n)        src: .*?(?=\n    Returns:)", re.DOTALL)
_PARAMETERS = re.compile(
    r"(?<=    dst: str \| os.PathLike\[str\] \| None = None,\n    \*,\n).*?(?=\) -> Report:\n)", re.DOTALL
)
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
        print(f"{path.relative_to(ROOT)} does not match the declared options; run python scripts/option_docs.py")
        print("\n".join(difflib.unified_diff(before.splitlines(), text.splitlines(), "is", "should be", lineterm="")))
    return status


def updated() -> dict[pathlib.Path, str]:
    """Return both files with the texts that the declared options give."""
    page, pipeline = PAGE.read_text(encoding="utf-8"), PIPELINE.read_text(encoding="utf-8")
    pipeline = _replaced(PIPELINE, pipeline, _PARAMETERS, signature_parameters())
    return {
        PAGE: _replaced(PAGE, page, _TABLE, page_table()),
        PIPELINE: _replaced(PIPELINE, pipeline, _ARGUMENTS, docstring_arguments()),
    }


def _replaced(path: pathlib.Path, before: str, place: re.Pattern[str], text: str) -> str:
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


def parameters() -> list[str]:
    """Return the options in the order of `transpile`'s parameters: as they are there, then those that are new."""
    fields = declarations(ConversionOptions)
    there = [name for name in inspect.signature(transpile).parameters if name in fields]
    return [*there, *(name for name in fields if name not in there)]


def signature_parameters() -> str:
    """Return the lines below the asterisk in `transpile`'s signature: types as the fields write them, and defaults."""
    records = [
        node
        for name in ("deciding.py", "conversion.py")
        for node in ast.parse((FIELDS / name).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    written = {
        ast.unparse(field.target): (ast.unparse(field.annotation), field.value)
        for record in records
        for field in record.body
        if isinstance(field, ast.AnnAssign)
    }
    lines = []
    for name in parameters():
        annotation, call = written[name]
        lines.append(f"    {name}: {annotation} = {_default(declarations(ConversionOptions)[name].default, call)},\n")
    return "".join(lines)


def _default(default: object, call: ast.expr | None) -> str:
    """Return a default as a signature writes it: a plain value, or the name that the field has for another."""
    if type(default) is str:
        return json.dumps(default)
    if default is None or default == () or isinstance(default, (bool, int, float)):
        return repr(default)
    if not isinstance(call, ast.Call):
        raise SystemExit(f"{FIELDS}: a field of {ConversionOptions.__name__} is not made by option()")
    return ast.unparse(call.args[0])


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
    for name in ("src", "dst", *parameters()):
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
