"""Asks `lab/placement.py` in one process for all models: each start loads ONNX Runtime and its CUDA provider."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / "lab" / "placement.py"
_CANNOT_TELL = 3  # the script's exit status where this machine lacks gcc, or the CUDA provider

Place = Callable[..., dict[str, Any]]


class Placing:
    """Processes that place models, one for each level of optimization; started where they are needed.

    Args:
        errors: a file for what they write to stderr: a pipe that nobody reads before their end could fill up.
    """

    def __init__(self, errors: BinaryIO) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._errors = errors

    def place(self, *models: pathlib.Path, level: str = "all") -> dict[str, Any]:
        """Return the placement of all nodes of the models; skip the test where that cannot be told."""
        if level not in self._processes:
            command = [sys.executable, str(SCRIPT), "--json", "--level", level, "-"]
            self._processes[level] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
            )
        process, placed = self._processes[level], {}
        assert process.stdin is not None
        assert process.stdout is not None
        for model in models:
            try:
                process.stdin.write(f"{model}\n")
                process.stdin.flush()
                placed |= json.loads(process.stdout.readline())
            except (BrokenPipeError, json.JSONDecodeError):
                self._tell_why_it_ended(level)
        return placed

    def _tell_why_it_ended(self, level: str) -> None:
        process = self._processes.pop(level)
        process.communicate()
        self._errors.seek(0)
        told = self._errors.read().decode(errors="replace")
        if process.returncode == _CANNOT_TELL:
            pytest.skip(f"placement: {told.strip()}")
        pytest.fail(f"{SCRIPT.name} ended with status {process.returncode}: {told[-2000:]}")

    def end(self) -> None:
        """End all processes, which end with their input."""
        for process in self._processes.values():
            process.communicate()
