"""The recorded table: how far each model may be from float32, how many nodes are low, how many casts there may be.

`pytest tests/corpus -m slow --corpus FOLDER --all-cases --record-limits` writes entries that are new, or that got
better and in nothing worse; `--record-limits=forced` writes all that the run measured.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from tests.oracle.judge import Counts, Values

FILE = pathlib.Path(__file__).with_name("limits.json")
PROPERTY = "limits"  # a user property of a test under this name is what `--record-limits` writes

_UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # half the distance of two neighbours at 1
_FEW = 100  # floats in all outputs, so that one rounding the other way shows in the error
# Sums are added up in another order on another processor, so a few results are rounded the other way.
_MARGIN, _MARGIN_OF_FEW = 1.5, 2.0


@dataclasses.dataclass(frozen=True)
class Entry:
    """What one conversion of one model came to.

    Attributes:
        error: relative norm of the difference from float32, of the worst output; None: no judge could tell.
        low: nodes with a 16-bit input or output.
        casts: Cast nodes.
        differing: share of integers that differ.
    """

    error: float | None
    low: int
    casts: int
    differing: float = 0.0

    @classmethod
    def of(cls, values: Values | None, counts: Counts) -> Entry:
        if values is None:
            return cls(None, counts.low, counts.casts)
        return cls(_short(values.worst), counts.low, counts.casts, _short(values.differing))

    def row(self) -> list[Any]:
        error = "inf" if self.error is not None and math.isinf(self.error) else self.error
        return [error, self.low, self.casts, *([self.differing] if self.differing else [])]

    @classmethod
    def from_row(cls, row: list[Any]) -> Entry:
        return cls(math.inf if row[0] == "inf" else row[0], *row[1:])


def _short(number: float) -> float:
    return float(f"{number:.3g}")


def source_mark(model: pathlib.Path) -> str:
    """Return what tells one file of a name from another."""
    return _mark(model, model.stat().st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _mark(model: pathlib.Path, _mtime: int) -> str:
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:8]


@functools.cache
def recorded(file: pathlib.Path = FILE) -> dict[str, tuple[str, dict[str, Entry]]]:
    """Read the table: model -> the mark of its file, and variant -> entry."""
    if not file.exists():
        return {}
    table = json.loads(file.read_text())
    return {
        name: (mark, {v: Entry.from_row(row) for v, row in zip(table["variants"], rows, strict=False) if row})
        for name, (mark, *rows) in table["models"].items()
    }


def faults(name: str, mark: str, variant: str, entry: Entry, elements: int) -> list[str]:
    """Say in what a conversion is worse than the table allows.

    Args:
        name: of the model.
        mark: of the model's file; of another one nothing is known.
        variant: the way it was converted and the format, `O2 float16`.
        entry: what was measured.
        elements: the floats in all outputs.
    """
    limit = limit_of(name, mark, variant)
    if limit is None:
        return []
    level, dtype = variant.rsplit(maxsplit=1)
    if level == "auto" and entry.low > limit.low and entry.error is not None:
        # The level spends its tolerance on low nodes; which of two cuts it ends at may hang on the order of a sum.
        limit = dataclasses.replace(limit, error=None)
    return [f"{name}, {variant}: {fault}" for fault in _worse(entry, limit, dtype, elements)]


def limit_of(name: str, mark: str, variant: str) -> Entry | None:
    """Return what the table allows; None if it does not know this file, or this way of converting it."""
    known, entries = recorded().get(name, ("", {}))
    return entries.get(variant) if known == mark else None


def _is_shipped(name: str) -> bool:
    """Whether a model is the same file wherever it is fetched; those exported here depend on the exporter."""
    return name.startswith("shipped/")


def _worse(entry: Entry, limit: Entry, dtype: str, elements: int) -> Iterable[str]:
    if limit.error is not None:
        factor, units = (_MARGIN, 1.0) if elements >= _FEW else (_MARGIN_OF_FEW, 4.0)
        allowed = limit.error * factor + units * _UNIT[dtype]
        if entry.error is None or not entry.error <= allowed:
            yield f"error {entry.error}, recorded {limit.error}"
    if entry.low < limit.low:
        yield f"{entry.low} low nodes, recorded {limit.low}"
    if entry.casts > limit.casts:
        yield f"{entry.casts} casts, recorded {limit.casts}"
    if entry.differing > limit.differing * _MARGIN_OF_FEW + 1e-3:
        yield f"{entry.differing:.3g} of the integers differ, recorded {limit.differing}"


def record(measured: Iterable[Mapping[str, Any]], *, forced: bool, file: pathlib.Path = FILE) -> int:
    """Write what a run measured into the table; without `forced` only what is new, or better and in nothing worse.

    Returns:
        The number of entries that changed.
    """
    table = {name: (mark, dict(entries)) for name, (mark, entries) in recorded(file).items()}
    changed = 0
    for item in measured:
        entry = Entry.from_row(item["row"])
        mark, entries = table.get(item["model"], ("", {}))
        if mark != item["mark"]:
            if mark and not forced and _is_shipped(item["model"]):
                continue
            entries = {}
        table[item["model"]] = (item["mark"], entries)
        limit = entries.get(item["variant"])
        if limit != entry and (limit is None or forced or _is_better(entry, limit)):
            entries[item["variant"]], changed = entry, changed + 1
    _write(table, file)
    recorded.cache_clear()
    return changed


def _is_better(entry: Entry, limit: Entry) -> bool:
    error, allowed = (math.inf if e.error is None else e.error for e in (entry, limit))
    nothing_worse = (
        error <= allowed
        and entry.low >= limit.low
        and entry.casts <= limit.casts
        and entry.differing <= limit.differing
    )
    # A smaller error alone may be the order of some sum on this machine.
    return nothing_worse and (error < 0.8 * allowed or entry.low > limit.low or entry.casts < limit.casts)


def _write(table: Mapping[str, tuple[str, Mapping[str, Entry]]], file: pathlib.Path) -> None:
    variants = sorted({variant for _, entries in table.values() for variant in entries})
    lines = []
    for name, (mark, entries) in sorted(table.items()):
        row: list[Any] = [mark, *(entries[v].row() if v in entries else None for v in variants)]
        while row[-1] is None:
            row.pop()
        lines.append(f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}")
    models = ",\n".join(lines)
    file.write_text(f'{{"variants": {json.dumps(variants)},\n"models": {{\n{models}\n}}}}\n')
