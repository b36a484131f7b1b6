"""A scratch copy of the tree, and the worker process that runs tests in it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from mutation.tables import ROOT

__all__ = ["Scratch"]


class Scratch:
    """A copy of the tree, with a worker in it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        # The worker sees the packages of this interpreter, but not the folders given for cosmic-ray alone.
        environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{folder / 'lab'}", "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mutation.worker"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = self._answer()
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"mutate: the worker in {self.folder} died")
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    @classmethod
    @contextlib.contextmanager
    def opened(cls) -> Iterator[Scratch]:
        with tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True) as folder:
            scratch = cls(pathlib.Path(folder).resolve())
            try:
                yield scratch
            finally:
                scratch.close()
