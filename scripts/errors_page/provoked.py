"""A plugin of pytest: which test provokes which message first.

    python -m pytest -p errors_page.provoked --provoked FILE tests/graph

FILE gets a line a message: `KEY<tab>TEST`; lines that are there stay.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import types
from typing import Any

import pytest

from amp_transpiler import errors
from errors_page.raised import FAULTS, PACKAGE, all_raised, module_of, raised_at

_sites: dict[tuple[str, int], str] = {}
_messages: dict[str, str] = {}
_ERRORS = str(pathlib.Path(errors.__file__))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--provoked", metavar="FILE", type=pathlib.Path, help="write which test provokes which message")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--provoked") is not None:
        _record_in(errors.AmpError)
        _record_in(argparse.ArgumentTypeError)


def _record_in(kind: type[Exception]) -> None:
    initialise = kind.__init__

    def recording(self: Any, *arguments: Any, **named: Any) -> None:
        _note(sys._getframe(1))  # noqa: SLF001 - the only way to the caller
        if arguments:
            _messages.setdefault(str(arguments[0]), _test())
        initialise(self, *arguments, **named)

    kind.__init__ = recording  # type: ignore[method-assign]


def _note(frame: types.FrameType | None) -> None:
    while frame is not None and frame.f_code.co_filename == _ERRORS:
        frame = frame.f_back
    if frame is not None:
        _site(frame.f_code.co_filename, frame.f_lineno)


def _test() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


def _site(file: str, line: int) -> None:
    test = _test()
    if test and file.startswith(str(PACKAGE)):
        _sites.setdefault((file, line), test)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Note Python's own errors, too: those that `pytest.raises` catches."""
    before = pytest.RaisesExc.__exit__ if hasattr(pytest, "RaisesExc") else None
    if before is None or item.config.getoption("--provoked") is None:
        yield
        return

    def leave(self: Any, kind: Any, error: Any, traceback: types.TracebackType | None) -> Any:
        while traceback is not None:
            last, traceback = traceback, traceback.tb_next
            if traceback is None:
                _site(last.tb_frame.f_code.co_filename, last.tb_lineno)
        return before(self, kind, error, None if error is None else error.__traceback__)

    pytest.RaisesExc.__exit__ = leave  # type: ignore[method-assign]
    try:
        yield
    finally:
        pytest.RaisesExc.__exit__ = before  # type: ignore[method-assign]


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--provoked")
    if path is None:
        return
    rows, known = all_raised(), {}
    if path.exists():
        known = dict(line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    for (file, line), test in _sites.items():
        row = raised_at(rows, module_of(pathlib.Path(file)), line)
        if row is not None:
            known.setdefault(row.key, test)
    for row in rows:
        if row.module in FAULTS and row.key not in known:
            pattern = row.pattern
            provoking = (test for message, test in _messages.items() if test and pattern.search(message))
            if (first := next(provoking, None)) is not None:
                known[row.key] = first
    path.write_text("".join(f"{key}\t{test}\n" for key, test in sorted(known.items())), encoding="utf-8")
