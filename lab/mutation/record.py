"""What became of each mutant: kept in a file of JSON lines, so that a run can be stopped and continued."""

from __future__ import annotations

import dataclasses
import json
import pathlib

__all__ = ["Fate", "Record"]


@dataclasses.dataclass(frozen=True)
class Fate:
    """The outcome of one mutant: killed, survived or timeout; equivalent where the table says so."""

    module: str
    name: str  # the mutant's
    function: str
    line: str  # the changed lines, before and after
    mutated: str
    operator: str
    outcome: str
    test: str = ""  # that saw it first
    seconds: float = 0.0


class Record:
    """The fates so far; a later one of the same mutant replaces the earlier one."""

    def __init__(self, state: pathlib.Path) -> None:
        self._path = state / "results.jsonl"
        self._fates: dict[tuple[str, str], Fate] = {}
        if self._path.exists():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                self._keep(Fate(**json.loads(line)))

    def _keep(self, fate: Fate) -> None:
        self._fates[fate.module, fate.name] = fate

    def add(self, fate: Fate) -> None:
        self._keep(fate)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(fate)) + "\n")

    def get(self, module: str, name: str) -> Fate | None:
        return self._fates.get((module, name))
