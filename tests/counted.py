"""Counts of launches on stand-ins for CUDA's libraries (`lab/launches.py`), for tests that ask for `counted`."""

from __future__ import annotations

import fcntl
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
STEP = ROOT / "lab" / "programs" / "counted_step.py"
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


class CountedSteps:
    """Training steps of the networks of `lab/programs`, each counted once in a run of the tests.

    Tests of several files ask for the same steps, maybe in several workers: a folder of the run holds the counts.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def __call__(self, network: str, level: str, dtype: str) -> dict[str, Any]:
        """Return what `lab/programs/counted_step.py` prints of a step."""
        if level == "fp32":
            dtype = "float16"  # such a step has no low format
        path = self._folder / f"{network}-{level}-{dtype}.json"
        with path.with_suffix(".lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                counts = Counted(self._folder).program(STEP, network, level, dtype, exact_memory=True)
                path.write_text(json.dumps(counts), encoding="utf-8")
        counted: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return counted
