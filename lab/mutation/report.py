"""The table of a run, and the list of the survivors."""

from __future__ import annotations

import collections
import json

from mutation.record import Fate
from mutation.tables import Module

__all__ = ["score", "survivors", "table"]

_COLUMNS = ("killed", "timeout", "survived", "equivalent")


def score(fates: list[Fate]) -> str:
    """Return the share of the mutants that tests see, among those that are not equivalent."""
    outcomes = collections.Counter(fate.outcome for fate in fates)
    seen = outcomes["killed"] + outcomes["timeout"]
    judged = seen + outcomes["survived"]
    return f"{seen / judged:.0%}" if judged else "-"


def table(rows: list[tuple[Module, list[Fate], str]]) -> str:
    """Return the Markdown table: modules, their fates, and how many mutants there are in all."""
    lines = ["| module | before | " + " | ".join(_COLUMNS) + " | score | drawn of |", "| --- " * 8 + "|"]
    for module, fates, of in [*rows, *_sum(rows)]:
        outcomes = collections.Counter(fate.outcome for fate in fates)
        counts = " | ".join(str(outcomes[column]) for column in _COLUMNS)
        lines.append(f"| {module.name} | {module.before or '-'} | {counts} | {score(fates)} | {of} |")
    return "\n".join(lines) + "\n"


def _sum(rows: list[tuple[Module, list[Fate], str]]) -> list[tuple[Module, list[Fate], str]]:
    before = [tuple(map(int, module.before.split("/"))) for module, _, _ in rows if module.before]
    text = f"{sum(pair[0] for pair in before)}/{sum(pair[1] for pair in before)}"
    total = sum(int(of) for _, _, of in rows)
    return [(Module("all", (), before=text), [fate for _, fates, _ in rows for fate in fates], str(total))]


def survivors(rows: list[tuple[Module, list[Fate], str]], seed: int) -> str:
    """Return the survivors as TOML."""
    parts = [f"# The survivors of docs/evidence/mutation.md, written by lab/mutate.\nseed = {seed}\n"]
    for module, fates, _ in rows:
        for fate in fates:
            if fate.outcome == "survived":
                entry = {"module": module.name, "function": fate.function, "line": fate.line, "mutated": fate.mutated}
                parts.append("[[mutant]]\n" + "".join(f"{key} = {json.dumps(text)}\n" for key, text in entry.items()))
    return "\n".join(parts)
