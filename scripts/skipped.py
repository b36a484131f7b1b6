#!/usr/bin/env python3
"""Print what a run of CI left out, and why, and which tests took its time: tables over all its test runs and downloads.

    python scripts/skipped.py FOLDER [--expect NAME ...] [--left-out WHAT]

FOLDER holds a record of each run, NAME.jsonl: of pytest (--record), or of fetch_corpus.py and export_corpus.py
(--record). A test that one run skips and another runs is no gap; the table says where it ran. Runs that --expect names
and that left no record are told, too, and so is what was left out on purpose.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

NAMES = 3  # shown of each group
SLOWEST = 12  # files shown
WIDTH = 118
_PART = re.compile(r"^[\w.-]+/[\w./-]+: ")  # "exported/resnet50: ...": the same reason for each part of the corpus


@dataclasses.dataclass(frozen=True)
class Run:
    """A record of one run.

    Attributes:
        name: the file's name.
        chosen: pytest's -m, empty for all tests.
        skipped: test -> reason.
        ran: the tests that ran, whatever their outcome.
        failed: how many of them failed.
        absent: what was not fetched -> reason.
        files: file of tests -> seconds of its tests, in all workers together.
        seconds: what the run took; None for a run that died, or of no tests.
        ended: False for a run that died.
    """

    name: str
    chosen: str
    skipped: dict[str, str]
    ran: frozenset[str]
    failed: int
    absent: dict[str, str]
    files: dict[str, float]
    seconds: float | None
    ended: bool


@dataclasses.dataclass(frozen=True)
class Group:
    """Tests that the same runs skipped for one reason, and the other runs in which all of them ran."""

    runs: tuple[str, ...]
    reason: str
    tests: tuple[str, ...]
    elsewhere: tuple[str, ...]


def main() -> int:
    options = _options()
    runs = [read(path) for path in sorted(options.folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)]
    print("\n".join(table(runs, options.expect)))
    if options.left_out:
        print(f"\nleft out on purpose: {options.left_out}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--expect", nargs="*", default=[], metavar="NAME", help="runs that should have left a record")
    parser.add_argument("--left-out", metavar="WHAT", default="", help="what these runs do not try at all")
    return parser.parse_args()


def read(path: pathlib.Path) -> Run:
    """Read the record of a run."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    tests = [line for line in lines if "outcome" in line]
    files: collections.Counter[str] = collections.Counter()
    for line in lines:
        if "id" in line:
            files[line["id"].partition("::")[0]] += line.get("seconds", 0)
    return Run(
        path.stem,
        next((line["chosen"] for line in lines if "chosen" in line), ""),
        {line["id"]: line["reason"] for line in tests if line["outcome"] == "skipped"},
        frozenset(line["id"] for line in tests if line["outcome"] != "skipped"),
        len({line["id"] for line in tests if line["outcome"] == "failed"}),
        {line["absent"]: line["reason"] for line in lines if "absent" in line},
        dict(files),
        next((line["seconds"] for line in lines if "ended" in line and "seconds" in line), None),
        any("ended" in line for line in lines),
    )


def table(runs: list[Run], expected: Iterable[str] = ()) -> list[str]:
    """List the lines of the table."""
    lines = ["== what ran, what was skipped and what was not fetched"]
    lines += [_sum(run) for run in runs]
    known = {run.name for run in runs}
    lines += [f"  {name:10s} did not begin" for name in expected if name not in known]
    groups = sorted(grouped(runs), key=lambda group: (bool(group.elsewhere), -len(group.tests)))
    for title, some in (
        ("skipped, and run nowhere else", [group for group in groups if not group.elsewhere]),
        ("skipped in one run, but run in another", [group for group in groups if group.elsewhere]),
    ):
        lines += ["", f"{title}: {sum(len(group.tests) for group in some) or 'nothing'}"]
        lines += [line for group in some for line in _group_lines(group)]
    absent = [(run.name, name, reason) for run in runs for name, reason in run.absent.items()]
    lines += ["", f"not fetched or not made: {len(absent) or 'nothing'}"]
    lines += [_cut(f"  {name} ({run}): {reason}") for run, name, reason in absent]
    return [*lines, *_slowest(runs)]


def _slowest(runs: list[Run]) -> list[str]:
    """List the files of tests that took the most time."""
    files = sorted(((seconds, run.name, file) for run in runs for file, seconds in run.files.items()), reverse=True)
    spent = sum(seconds for seconds, _, _ in files)
    lines = [f"  {seconds:5.0f} s in {run}: {file}" for seconds, run, file in files[:SLOWEST]]
    return (
        ["", f"the slowest of {len(files)} files, which took {spent:.0f} s (all workers together):", *lines]
        if files
        else []
    )


def _sum(run: Run) -> str:
    told = [f"{len(run.ran)} tests ran", f"{run.failed} of them failed"] if run.ran or run.skipped else []
    told += [f"{len(run.skipped)} skipped"] if told else []
    told += [f"{len(run.absent)} parts missing"] if run.absent else []
    told += [] if run.seconds is None else [f"{run.seconds:.0f} s"]
    told += [] if run.ended else ["it did not end, so its record is not whole"]
    return f"  {run.name:10s} {', '.join(told) or 'nothing missing'}" + (f"  (-m '{run.chosen}')" if run.chosen else "")


def grouped(runs: list[Run]) -> Iterator[Group]:
    """Group the skipped tests by the runs that skipped them, by reason, and by where else they ran."""
    skipping: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for run in runs:
        for test, reason in run.skipped.items():
            skipping[test, _PART.sub("", " ".join(reason.split()))].append(run.name)
    groups: dict[tuple[tuple[str, ...], str, tuple[str, ...]], list[str]] = collections.defaultdict(list)
    for (test, reason), names in skipping.items():
        elsewhere = tuple(run.name for run in runs if run.name not in names and _has_run(run, test))
        groups[tuple(names), reason, elsewhere].append(test)
    for (names_of_runs, reason, elsewhere), tests in groups.items():
        yield Group(names_of_runs, reason, tuple(sorted(tests)), elsewhere)


def _has_run(run: Run, test: str) -> bool:
    """Whether a test ran; of a file that skipped itself as a whole: whether any of its tests did."""
    return test in run.ran or ("::" not in test and any(each.startswith(f"{test}::") for each in run.ran))


def _group_lines(group: Group) -> Iterator[str]:
    ran = f" (ran in: {', '.join(group.elsewhere)})" if group.elsewhere else ""
    yield _cut(f"  {len(group.tests):4d} in {', '.join(group.runs)}{ran}: {group.reason}", 2 * WIDTH)
    for test in group.tests[:NAMES]:
        yield _cut(f"         {test}")
    if len(group.tests) > NAMES:
        yield f"         and {len(group.tests) - NAMES} more"


def _cut(line: str, width: int = WIDTH) -> str:
    return line if len(line) <= width else line[: width - 3] + "..."


if __name__ == "__main__":
    sys.exit(main())
