"""Counts of launches on stand-ins for CUDA's libraries (`lab/launches.py`), for tests that ask for `counted`."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from amp_transpiler.runtime.places import PLACE_VARIABLE

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "lab" / "launches.py"
MODULES = [ROOT, *(ROOT / folder for folder in ("scripts", "examples", "lab"))]  # as pytest's `pythonpath` has them
CANNOT_TELL = 3  # the script's exit status where this machine lacks gcc, binutils or the CUDA provider


class Counted:
    """What ONNX Runtime's CUDA provider would ask of a GPU. Each call starts a child, which takes some seconds."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def model(self, path: pathlib.Path, *arguments: str) -> dict[str, Any]:
        """Count the third run of a model; `arguments` are those of `launches.py count`."""
        counts = self._start("count", "--json", *arguments, str(path))
        assert "error" not in counts, counts["error"]
        return counts

    def program(self, source: pathlib.Path | str, *arguments: str, exact_memory: bool = False) -> Any:
        """Run a program, a file or its text, on the stand-ins; return the last line that it prints, read as JSON."""
        if isinstance(source, str):
            source, text = self._folder / "program.py", source
            source.write_text(text)
        return self._start("run", *(["--exact-memory"] if exact_memory else []), str(source), *arguments)

    @staticmethod
    def _start(*arguments: str) -> Any:
        path = os.pathsep.join([*map(str, MODULES), os.environ.get("PYTHONPATH", "")])
        # What lies in the user's cache must not change a count, nor a test what lies there.
        environment = {"AMP_TRANSPILER_CACHE": "0", **os.environ, "PYTHONPATH": path}
        environment.pop(PLACE_VARIABLE, None)  # the programs are to run on the device of the stand-ins
        command = [sys.executable, str(SCRIPT), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        if done.returncode == CANNOT_TELL:
            pytest.skip(f"launches: {done.stderr.strip()}")
        lines = done.stdout.splitlines()
        assert lines, done.stderr[-2000:]
        assert done.returncode == 0, f"{lines[-1]}\n{done.stderr[-2000:]}"
        return json.loads(lines[-1])
