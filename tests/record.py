"""The record of a run of pytest, which scripts/skipped.py reads: a line of JSON for each phase of a test, at once.

A run that is killed leaves what it had done and no last line.
"""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import pytest


class Recorder:
    """A plugin that writes the outcome and the seconds of every test, and the reason of every skip.

    With xdist it belongs to the process that hands out the tests: the reports of all workers arrive there.
    """

    def __init__(self, path: pathlib.Path, chosen: str) -> None:
        self._began = time.monotonic()
        self._file = path.open("w", encoding="utf-8", buffering=1)  # line by line
        self._write(began=True, chosen=chosen)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(id=report.nodeid, seconds=round(report.duration, 4), **_outcome(report, report.when))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if outcome := _outcome(report, "collect"):  # a file that skips itself as a whole has no test
            self._write(id=report.nodeid, **outcome)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write(ended=int(exitstatus), seconds=round(time.monotonic() - self._began, 1))

    def _write(self, **line: Any) -> None:
        self._file.write(json.dumps(line) + "\n")


def _outcome(report: pytest.TestReport | pytest.CollectReport, when: str) -> dict[str, str]:
    """The outcome that a phase decides: the call's, or a failure or skip of any phase."""
    if report.outcome == "skipped":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return {"outcome": "skipped", "reason": reason.removeprefix("Skipped: ")}
    return {"outcome": report.outcome} if when == "call" or report.outcome == "failed" else {}
