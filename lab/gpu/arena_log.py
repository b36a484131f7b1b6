"""Reads from ONNX Runtime's log what its arenas take from a device: no call of its Python package returns it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import IO
from unittest import mock

import amp_transpiler  # noqa: F401  before onnxruntime, whose telemetry it switches off

# isort: split

import onnxruntime

__all__ = ["ArenaLog", "arena_log", "taken"]

_INFO, _FATAL = 1, 4
_STANDARD_ERROR = 2
_EXTENDING = re.compile(r"Extending BFCArena for (\w+)\.")
_EXTENDED = re.compile(r"Extended allocation by (\d+) bytes")
_TOTAL = re.compile(r"Total allocated bytes: (\d+)")
_LOGGED = re.compile(r"\[[VI]:onnxruntime:")


@dataclasses.dataclass(frozen=True)
class ArenaLog:
    """The log of the sessions of this process, which grows.

    Attributes:
        file: what ONNX Runtime has written.
    """

    file: IO[str]

    def taken(self) -> dict[str, dict[str, float]]:
        """Return what `taken` does of all that has been logged so far."""
        self.file.seek(0)
        return taken(self.file.read())


def taken(log: str) -> dict[str, dict[str, float]]:
    """Return what arenas took, by the name of their memory: "Cuda", "CudaPinned" or "Cpu".

    Args:
        log: ONNX Runtime's log, informational lines included.

    Returns:
        For each name `mb`, the most that an arena of that name held at a time, in MiB; `pieces`, how often arenas of
        that name asked for more; and `largest_mb`, the most that they asked for at once.
    """
    sizes: dict[str, list[int]] = {}
    held: dict[str, int] = {}
    name = ""
    for line in log.splitlines():
        if extending := _EXTENDING.search(line):
            name = extending[1]
        elif extended := _EXTENDED.search(line):
            sizes.setdefault(name, []).append(int(extended[1]))
        elif total := _TOTAL.search(line):
            held[name] = max(held.get(name, 0), int(total[1]))
    return {
        name: {"mb": _mebibytes(held[name]), "pieces": len(each), "largest_mb": _mebibytes(max(each))}
        for name, each in sizes.items()
    }


def _mebibytes(size: int) -> float:
    return round(size / 2**20, 1)


@contextlib.contextmanager
def arena_log() -> Iterator[ArenaLog]:
    """Have arenas of this process log what they take, to a file in place of the standard error.

    What else was written to the standard error follows there at the end. Sessions log nothing more than they did, so
    that those opened meanwhile can be timed.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        sys.stderr.flush()
        standard_error = os.dup(_STANDARD_ERROR)
        os.dup2(file.fileno(), _STANDARD_ERROR)
        try:
            onnxruntime.set_default_logger_severity(_INFO)
            # Opening a session sets the severity, too.
            with mock.patch.object(onnxruntime, "set_default_logger_severity"):
                yield ArenaLog(file)
        finally:
            onnxruntime.set_default_logger_severity(_FATAL)
            sys.stderr.flush()
            os.dup2(standard_error, _STANDARD_ERROR)
            os.close(standard_error)
            file.seek(0)
            sys.stderr.writelines(line for line in file if not _LOGGED.search(line))
