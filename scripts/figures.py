#!/usr/bin/env python3
"""Run the commands behind the figures of the README and the docs again, and print old against new.

    scripts/figures                  # the commands that take five minutes at most and need nothing but this repository
    scripts/figures --all            # every command
    scripts/figures --only demo      # these commands or figures
    scripts/figures --list           # list the figures, with date, commit and cost
    scripts/figures --check          # run nothing: is every figure in its page, has every number in a page a figure?
    scripts/figures --update         # also write new numbers into the pages, and date and commit of the run

`docs/figures.toml` lists the commands and the figures that each gives. The numbers themselves are in the pages alone.
The exit status is 1 if a figure is not found or has moved by more than its tolerance.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "figures.toml"
PAGES = ("README.md", "docs/*.md", "docs/benchmarks/*.md", "docs/evidence/*.md")
_TABLES_OF_TESTS = tuple(  # their numbers are no measurements
    f"docs/evidence/{name}.md" for name in ("behaviours", "paddle_behaviours", "robustness", "statements")
)
CHEAP = 300  # seconds

_NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
_UNITS = (
    r"%|percent|m?s|[kMGT]B|x|times|seconds?|minutes?|hours?|nodes?|casts?|launch(?:es)?|models?|mutants?|tests?|bytes?|kernels?"
    r"|results?|samples?|parameters|kills?|calls?"
)
_ROWS = re.compile(r"\n\|.*\n\|[-| :]+\n((?:\|.*\n)+)")  # of a table, without its head
_BLOCK = re.compile(r"\n```\w*\n(.*?)```", re.DOTALL)
_TIME = re.compile(rf"({_NUMBER})(?= m?s\b)")
_TIME_TOLERANCE = 0.8  # at least: machines differ, and what else they do
_WITH_UNIT = re.compile(rf"(?<![\w.]){_NUMBER}\s?(?:{_UNITS})(?!\w)")
_ANY = re.compile(rf"(?<![\w.-])(?:{_NUMBER})(?![\w-])")
# Dates, versions and what stands in backticks are no measurements.
_NO_FIGURE = re.compile(
    r"\d{4}-\d\d-\d\d|\d+\.\d+\.\d+|`[^`\n]*`"
    r"|(?:Python|onnx|ONNX Runtime|opsets?|CUDA|cuDNN|PyTorch)\s\d[\d.]*(?:(?: to |, | and | or )\d[\d.]*\b(?! ?%))*"
)


@dataclasses.dataclass(frozen=True)
class Command:
    """A line for bash, run in the repository's root, where `$CORPUS` and `$OUT` are folders."""

    id: str
    run: str
    date: dt.date  # of the run that the figures in the pages are from
    commit: str
    seconds: int  # about as long it takes
    needs: str = ""  # what a fresh clone does not have


@dataclasses.dataclass(frozen=True)
class Figure:
    """Numbers in a page that one command gives.

    Either `text`, with `{}` for each number, and `found`, a pattern for the command's output with a group for each;
    or words that stand before a `table` whose rows the command prints, or before a `block` that is all that it prints.
    """

    id: str
    command: str
    file: str
    tolerance: float  # relative: what another run or machine may give
    text: str = ""
    found: str = ""
    table: str = ""
    block: str = ""

    def span(self, page: str) -> tuple[int, int] | None:
        """Return where it stands in the text of its page, None if it does not stand there."""
        if self.text:
            place = self._pattern().search(page)
            return place.span() if place else None
        start = page.find(self.table or self.block)
        lines = (_ROWS if self.table else _BLOCK).search(page, start) if start >= 0 else None
        return lines.span(1) if lines else None

    def values(self, page: str) -> list[str]:
        """Return the numbers in the page, or the lines of its table or block."""
        span = self.span(page)
        assert span, f"{self.id} is not in {self.file}"
        if self.text:
            place = self._pattern().fullmatch(page, *span)
            assert place
            return list(place.groups())
        return page[slice(*span)].splitlines()

    def measured(self, output: str, page: str) -> list[str] | None:
        """Return the same of a command's output, None if something is missing there."""
        if self.text:
            match = re.search(self.found, output, re.MULTILINE)
            return list(match.groups()) if match else None
        if self.block:
            return [line.rstrip() for line in output.strip("\n").splitlines()]
        printed = {_name(line): line for line in output.splitlines() if line.startswith("|")}
        wanted = [_name(row) for row in self.values(page)]
        return [printed[name] for name in wanted] if printed.keys() >= set(wanted) else None

    def updated(self, page: str, new: Sequence[str]) -> str:
        """Return the page with new numbers or rows."""
        begin, end = self.span(page) or (0, 0)
        here = "".join(f"{line}\n" for line in new)
        if self.text:
            here = page[begin:end]
            place = self._pattern().fullmatch(here)
            assert place
            for group, value in reversed(list(enumerate(new, start=1))):
                here = here[: place.start(group)] + value + here[place.end(group) :]
        return page[:begin] + here + page[end:]

    def _pattern(self) -> re.Pattern[str]:
        words = re.escape(self.text).replace(r"\{\}", f"({_NUMBER})")
        return re.compile(re.sub(r"(?:\\[ \n])+", r"\\s+", words))


@dataclasses.dataclass(frozen=True)
class Exempt:
    """Numbers that no command measures: a pattern for their place in a page, and why."""

    file: str
    text: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Figures:
    """The table."""

    commands: dict[str, Command]
    figures: list[Figure]
    exempt: list[Exempt]

    @classmethod
    def read(cls) -> Figures:
        """Read `docs/figures.toml`."""
        data = tomllib.loads(TABLE.read_text(encoding="utf-8"))
        return cls(
            {name: Command(name, **row) for name, row in data["commands"].items()},
            [Figure(**row) for row in data["figures"]],
            [Exempt(**row) for row in data["exempt"]],
        )

    def faults(self) -> Iterator[str]:
        """Yield what is wrong in the table, and each number of a page that has no figure."""
        for figure in self.figures:
            if figure.command not in self.commands:
                yield f"{figure.id}: there is no command {figure.command}"
            if sum(map(bool, (figure.text, figure.table, figure.block))) != 1:
                yield f"{figure.id}: needs one of text with found, table and block"
            if figure.text and re.compile(figure.found).groups != figure.text.count("{}"):
                yield f"{figure.id}: found has not as many groups as text has numbers"
            if figure.span((ROOT / figure.file).read_text(encoding="utf-8")) is None:
                yield f"{figure.id}: {figure.file} has no such text: {figure.text or figure.table or figure.block}"
        for path in (path for pattern in PAGES for path in sorted(ROOT.glob(pattern))):
            yield from self._uncovered(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))

    def _uncovered(self, name: str, page: str) -> Iterator[str]:
        spans = [span for figure in self.figures if figure.file == name and (span := figure.span(page))]
        spans += [place.span() for row in self.exempt if row.file == name for place in re.finditer(row.text, page)]
        for begin, number in numbers(page, measured=_is_measured(name)):
            if not any(start <= begin < end for start, end in spans):
                line = page.count("\n", 0, begin) + 1
                yield f"{name}:{line}: {number!r} has no row in docs/figures.toml, and no exemption there"


def numbers(page: str, *, measured: bool) -> Iterator[tuple[int, str]]:
    """Yield place and text of each number that may be a measurement.

    Args:
        page: its text.
        measured: take every number, as on a page of measurements; else only those with a unit.
    """
    hidden = [place.span() for place in _NO_FIGURE.finditer(page)]
    for place in (_ANY if measured else _WITH_UNIT).finditer(page):
        if not any(start <= place.start() < end for start, end in hidden):
            yield place.start(), place[0]


def _is_measured(name: str) -> bool:
    """Whether a page is one of measurements."""
    return name.startswith(("docs/benchmarks/", "docs/evidence/")) and name not in _TABLES_OF_TESTS


def _name(row: str) -> str:
    return row.split("|")[1].strip().strip("*")


def moved(old: str, new: str, tolerance: float) -> bool:
    """Tell whether two texts differ in a word, or in a number by more than the tolerance."""
    if _differ(_TIME.findall(old), _TIME.findall(new), max(tolerance, _TIME_TOLERANCE)):
        return True
    old, new = _TIME.sub("#", old), _TIME.sub("#", new)
    words = [" ".join(re.sub(_NUMBER, "#", text).split()) for text in (old, new)]
    return words[0] != words[1] or _differ(re.findall(_NUMBER, old), re.findall(_NUMBER, new), tolerance)


def _differ(old: Sequence[str], new: Sequence[str], tolerance: float) -> bool:
    if len(old) != len(new):
        return True
    pairs = [(float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in zip(old, new, strict=True)]
    return any(abs(a - b) > tolerance * max(abs(a), abs(b)) for a, b in pairs)


def run(command: Command, corpus: pathlib.Path) -> str:
    """Run a command; return what it printed, even if it failed."""
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    with tempfile.TemporaryDirectory(prefix="figures-") as out:
        env = {**os.environ, "PATH": path, "OUT": out, "CORPUS": str(corpus.resolve()), "COLUMNS": "120"}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "lab")])
        words = ["bash", "-euo", "pipefail", "-c", command.run]
        done = subprocess.run(words, cwd=ROOT, env=env, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"failed     {command.id}: exit status {done.returncode}")
    return done.stdout


def compare(table: Figures, command: Command, output: str, *, update: bool) -> bool:
    """Print old against new for each figure of a command, and update the pages; tell whether all are as they were."""
    same = whole = True
    for figure in (figure for figure in table.figures if figure.command == command.id):
        path = ROOT / figure.file
        page = path.read_text(encoding="utf-8")
        old, new = figure.values(page), figure.measured(output, page)
        if new is None:
            print(f"NOT FOUND  {figure.id} ({figure.file})")
            same = whole = False
            continue
        lines = list(itertools.zip_longest(old, new, fillvalue=""))
        changes = [(before, after) for before, after in lines if before != after]
        for before, after in changes:
            far = moved(before, after, figure.tolerance)
            same &= not far
            print(f"{'MOVED' if far else 'near':10} {figure.id} ({figure.file}): {before.strip()}  ->  {after.strip()}")
        print(f"{'as it was':10} {figure.id} ({figure.file}): {len(lines) - len(changes)} of {len(lines)}")
        if update:
            path.write_text(figure.updated(page, new), encoding="utf-8")
    if update and whole:
        record(command)
    return same


def record(command: Command) -> None:
    """Write today's date and the commit at hand into the table."""
    text = TABLE.read_text(encoding="utf-8")
    head, mark, rest = text.partition(f"[commands.{command.id}]\n")
    rest = re.sub(r"(?m)^date = .*", f"date = {dt.datetime.now(tz=dt.UTC).date()}", rest, count=1)
    rest = re.sub(r"(?m)^commit = .*", f'commit = "{_commit()}"', rest, count=1)
    TABLE.write_text(head + mark + rest, encoding="utf-8")


def _commit() -> str:
    words = ["git", "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    options = _options()
    table = Figures.read()
    if options.check:
        faults = list(table.faults())
        print("\n".join(faults) or f"{len(table.figures)} figures of {len(table.commands)} commands: all in place")
        return int(bool(faults))
    if options.list:
        for command in table.commands.values():
            count = sum(figure.command == command.id for figure in table.figures)
            print(f"{command.id}: {count} figures, {command.date}, commit {command.commit}, {command.seconds} s")
            print(f"    {command.run}" + (f"\n    needs {command.needs}" if command.needs else ""))
        return 0
    same = True
    for command in table.commands.values():
        if options.only and not _names(command, table) & set(options.only):
            continue
        if reason := _left_out(command, options):
            print(f"left out   {command.id}: {reason}")
            continue
        print(f"running    {command.id}: {command.run}", flush=True)
        output = run(command, options.corpus)
        same &= compare(table, command, output, update=options.update)
    return int(not same)


def _names(command: Command, table: Figures) -> set[str]:
    return {command.id, *(figure.id for figure in table.figures if figure.command == command.id)}


def _left_out(command: Command, options: argparse.Namespace) -> str:
    if options.all or options.only or (command.seconds <= CHEAP and not command.needs):
        return ""
    return f"{command.seconds} s" + (f", needs {command.needs}" if command.needs else "") + " (--all or --only runs it)"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--all", action="store_true", help="run every command")
    what.add_argument("--only", nargs="+", metavar="ID", help="run these commands, or those of these figures")
    what.add_argument("--list", action="store_true", help="run nothing, list the commands")
    what.add_argument("--check", action="store_true", help="run nothing, hold the pages against the table")
    parser.add_argument("--update", action="store_true", help="write new numbers into the pages")
    parser.add_argument("--corpus", type=pathlib.Path, default=ROOT / ".corpus", help="$CORPUS (default: .corpus)")
    options = parser.parse_args()
    table = Figures.read()
    known = {*table.commands, *(figure.id for figure in table.figures)}
    if unknown := set(options.only or ()) - known:
        parser.error(f"no such command or figure: {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
