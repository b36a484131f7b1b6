"""The findings of a part of the benchmark, one record a line: one that is stopped loses only what it had not done."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Record", "Task", "Unavailable", "attempt", "timed"]

Record = dict[str, Any]


class Unavailable(Exception):
    """This machine lacks what is needed; the message names it."""


@dataclasses.dataclass(frozen=True)
class Task:
    """The task of a part.

    Attributes:
        kind: of the part.
        name: what it is done with.
        place: "cuda" or "cpu".
        folder: scratch of the whole run, where files of earlier parts lie.
        tiny: sizes that take next to no time.
        device: the row of the cost model, or None.
    """

    kind: str
    name: str
    place: str
    folder: pathlib.Path
    tiny: bool
    device: str | None = None

    @property
    def records(self) -> pathlib.Path:
        return self.folder / f"{self.kind}.{self.name}.jsonl"

    def add(self, **record: Any) -> None:
        """Keep a record."""
        with self.records.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": self.kind, "name": self.name, **record}) + "\n")

    def found(self) -> list[Record]:
        """Return the records that were kept."""
        if not self.records.exists():
            return []
        return [json.loads(line) for line in self.records.read_text(encoding="utf-8").splitlines()]


def attempt(task: Task, variant: str, dtype: str, measure: Callable[[], Record]) -> None:
    """Keep what `measure` finds, or why it failed: one failure must not cost the others."""
    start = time.perf_counter()
    try:
        found = measure()
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001  whatever fails is the finding
        found = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
    task.add(variant=variant, dtype=dtype, seconds=round(time.perf_counter() - start, 2), **found)


def timed(run: Callable[[], object], *, tiny: bool, wait: Callable[[], object] = lambda: None) -> Record:
    """Return the median and the ninth decile of some runs' milliseconds; `wait` waits for the device."""
    for _ in range(1 if tiny else 5):
        run()
    wait()
    times: list[float] = []
    end = time.perf_counter() + (0.01 if tiny else 1.5)
    while len(times) < 2 or (len(times) < 100 and time.perf_counter() < end):
        start = time.perf_counter()
        run()
        wait()
        times.append(1e3 * (time.perf_counter() - start))
    return {"ms": statistics.median(times), "p90_ms": sorted(times)[len(times) * 9 // 10], "runs": len(times)}
