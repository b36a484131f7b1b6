"""Which tests call which functions of the mutated modules, kept between runs for test files that did not change."""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any

from mutation.mutants import Mutant
from mutation.scratch import Scratch
from mutation.tables import ROOT, Module

__all__ = ["Coverage"]

_TIMEOUT = 540.0  # seconds for the tests of one file, unmutated
_WIDER = 150  # at most so many tests besides the nearest ones


class Coverage:
    """The calls of every test of the files looked at so far."""

    def __init__(self, state: pathlib.Path, mutated: list[Module], *, trust: bool = False) -> None:
        self._trust = trust
        self._path = state / "coverage.json"
        self._mutated = {module.name: module.path for module in mutated}
        self._files: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def look(self, names: tuple[str, ...], scratch: Scratch) -> None:
        """Run the test files among the names (files or folders) that are new or changed."""
        for file in _files(names):
            key = hashlib.sha256((ROOT / file).read_bytes()).hexdigest()
            if file in self._files and (self._trust or self._files[file]["key"] == key):
                continue
            paths = {name: str(scratch.folder / path) for name, path in self._mutated.items()}
            answer = scratch.ask(trace=paths, files=[file], timeout=_TIMEOUT)
            if "error" in answer:
                raise SystemExit(f"mutate: {file} fails without any mutant: {answer['error']}")
            self._files[file] = {"key": key, "tests": answer["tests"]}
            self._path.write_text(json.dumps(self._files))

    def nearest(self, module: Module, mutant: Mutant) -> tuple[list[str], float]:
        """Return all of the nearest tests, and the seconds that they take without a mutant.

        Those that call the mutated function come first, the quickest before the others. The rest must run, too: a call
        may have been seen in one test only because its result is kept.
        """
        called = f"{module.name}:{mutant.function}"
        near = self._tests(module.tests)
        order = sorted(near, key=lambda test: (not _calls(near[test][1], called), near[test][0]))
        return order, sum(near[test][0] for test in order)

    def wider(self, module: Module, mutant: Mutant) -> tuple[list[str], float]:
        """Return the other tests that call the mutated function, the quickest of them, and the seconds they take."""
        called = f"{module.name}:{mutant.function}"
        wide = {test: entry for test, entry in self._tests(module.wider).items() if _calls(entry[1], called)}
        order = sorted(wide, key=lambda test: wide[test][0])[:_WIDER]
        return order, sum(wide[test][0] for test in order)

    def _tests(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {test: entry for file in _files(names) for test, entry in self._files[file]["tests"].items()}


def _calls(functions: list[str], called: str) -> bool:
    """Return whether a test calls the function, or any of the module for what stands outside of functions."""
    return any(name.startswith(called) for name in functions) if called.endswith(":") else called in functions


def _files(names: tuple[str, ...]) -> list[str]:
    names_of_files: list[str] = []
    for name in names:
        path = ROOT / name
        if not path.exists():
            raise SystemExit(f"mutate: no such tests: {name}")
        names_of_files += (
            [name] if path.is_file() else [str(f.relative_to(ROOT)) for f in sorted(path.rglob("test_*.py"))]
        )
    return list(dict.fromkeys(names_of_files))
