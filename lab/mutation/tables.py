"""The data files: modules and their tests, equivalent mutants."""

from __future__ import annotations

import dataclasses
import pathlib
import tomllib

__all__ = ["EQUIVALENT", "MODULES", "ROOT", "SURVIVORS", "Equivalent", "Module", "equivalents", "modules", "stale"]

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = pathlib.Path(__file__).with_name("modules.toml")
EQUIVALENT = pathlib.Path(__file__).with_name("equivalent.toml")
SURVIVORS = pathlib.Path(__file__).with_name("survivors.toml")


@dataclasses.dataclass(frozen=True)
class Module:
    """A mutated module: its path below the package without `.py`, and the tests that must notice its mutants."""

    name: str
    tests: tuple[str, ...]  # the nearest: all of these run on a mutant
    wider: tuple[str, ...] = ()  # of these, some that call the mutated function
    before: str = ""  # killed of how many in the first measurement, with other mutants

    @property
    def path(self) -> str:
        return f"amp_transpiler/{self.name}.py"


@dataclasses.dataclass(frozen=True)
class Equivalent:
    """A mutant that no test can see, with the reason; lines without indentation."""

    module: str
    line: str
    mutated: str
    reason: str


def modules() -> list[Module]:
    rows = tomllib.loads(MODULES.read_text(encoding="utf-8"))["module"]
    return [Module(**row | {key: tuple(row.get(key, ())) for key in ("tests", "wider")}) for row in rows]


def equivalents() -> list[Equivalent]:
    return [Equivalent(**row) for row in tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("mutant", [])]


def stale(entries: list[Equivalent]) -> list[Equivalent]:
    """Return the entries whose lines are no longer in their module."""

    def lines(module: str) -> set[str]:
        return {line.strip() for line in (ROOT / Module(module, ()).path).read_text(encoding="utf-8").splitlines()}

    return [entry for entry in entries if not lines(entry.module).issuperset(entry.line.splitlines())]
