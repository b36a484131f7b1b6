"""The table of a run: how many mutants of each class of mutations came to what."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

from fuzzing.mutations import LEVELS
from fuzzing.outcomes import CLASSES, FAULTS, Outcome


class Summary:
    """Counts outcomes as they come in."""

    def __init__(self) -> None:
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self.judged: collections.Counter[str] = collections.Counter()
        self.faults: list[Outcome] = []
        self.vague: list[Outcome] = []
        self.strict: list[Outcome] = []
        self.slowest = Outcome(-1, "")
        self.largest = Outcome(-1, "")

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        self.counts[outcome.kind, outcome.level] += 1
        if outcome.judged:
            self.judged[outcome.judged.split(":")[0]] += 1
        if "loads it" in outcome.judged:
            self.strict.append(outcome)
        if outcome.kind in FAULTS:
            self.faults.append(outcome)
        elif outcome.kind == "vague":
            self.vague.append(outcome)
        self.slowest = max(self.slowest, outcome, key=lambda o: o.seconds)
        self.largest = max(self.largest, outcome, key=lambda o: o.megabytes)

    @property
    def total(self) -> int:
        """How many there were."""
        return sum(self.counts.values())

    def of_kind(self, kind: str) -> int:
        """Return how many came to one class."""
        return sum(count for (each, _), count in self.counts.items() if each == kind)

    def markdown(self) -> str:
        """Return the table: a row a class of outcomes, a column a class of mutations."""
        rows = [["outcome", *LEVELS, "all"]]
        for row in CLASSES:
            cells = [self.counts[row.name, level] for level in LEVELS]
            rows.append([f"**{row.words}**" if row.fault else row.words, *map(str, cells), str(self.of_kind(row.name))])
        totals = [sum(self.counts[row.name, level] for row in CLASSES) for level in LEVELS]
        rows.append(["all", *map(str, totals), str(self.total)])
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines.insert(1, "|" + " --- |" * len(rows[0]))
        return "\n".join(lines)

    def progress(self) -> str:
        """Return one line with the counts so far."""
        counts = [f"{row.name} {count}" for row in CLASSES if (count := self.of_kind(row.name))]
        return f"{self.total}: " + ", ".join(counts)

    def groups(self) -> list[tuple[str, list[Outcome]]]:
        """Return the faults by cause, the most frequent first."""
        return _by_cause(self.faults)

    def fault_lines(self) -> Iterable[str]:
        """Yield one line for each cause of faults, of vague messages, and of refusals where ONNX Runtime is content."""
        for title, group in (("", self.faults), ("", self.vague), ("ONNX Runtime loads it; ", self.strict)):
            for _, outcomes in _by_cause(group):
                first = outcomes[0]
                yield f"{len(outcomes):5} x {title}{first.kind}, mutant {first.index}: {first.detail}  [{first.where}]"

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        return {
            "mutants": self.total,
            "classes": {row.name: self.of_kind(row.name) for row in CLASSES},
            "by_mutation": {
                level: {row.name: self.counts[row.name, level] for row in CLASSES if self.counts[row.name, level]}
                for level in LEVELS
            },
            "judged": dict(self.judged),
            "slowest": {"index": self.slowest.index, "seconds": self.slowest.seconds},
            "largest": {"index": self.largest.index, "megabytes": self.largest.megabytes},
        }


def _by_cause(outcomes: list[Outcome]) -> list[tuple[str, list[Outcome]]]:
    causes: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        causes.setdefault(outcome.signature, []).append(outcome)
    return sorted(causes.items(), key=lambda item: -len(item[1]))
