"""The findings of a part of the benchmark, one record a line: one that is stopped loses only what it had not done."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Record", "Task", "Unavailable", "attempt", "timed"]

Record = dict[str, Any]


class Unavailable(Exception):
    """This machine lacks what is needed; the message names it."""


@dataclasses.dataclass(frozen=True)
class Task:
    """The task of a part.

    Attributes:
        stage: the kind of part.
        name: what it is done with.
        place: "cuda" or "cpu".
        folder: scratch of the whole run, where files of earlier parts lie.
        tiny: sizes that take next to no time.
        device: the row of the cost model, or None.
        source: the folder of the models or node cases that somebody brought, or None.
        cores: the cores that the part may use; empty for all.
        variants: the variants of models to prepare, such as `auto.float16`, beside float32; empty for all.
    """

    stage: str
    name: str
    place: str
    folder: pathlib.Path
    tiny: bool
    device: str | None = None
    source: pathlib.Path | None = None
    cores: tuple[int, ...] = ()
    variants: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        return f"{self.stage}.{self.name.replace('/', '_')}"

    @property
    def records(self) -> pathlib.Path:
        return self.folder / f"{self.file_name}.jsonl"

    @property
    def errors(self) -> pathlib.Path:
        """The file that everything that failed is written to, whole."""
        return self.folder / "errors.txt"

    def written(self) -> pathlib.Path:
        """Write the task to a file, which `read` reads, and return its path."""
        path = self.folder / f"{self.file_name}.task.json"
        path.write_text(json.dumps(dataclasses.asdict(self), default=str), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: pathlib.Path) -> Task:
        fields = json.loads(path.read_text(encoding="utf-8"))
        source = fields["source"] and pathlib.Path(fields["source"])
        lists = {name: tuple(fields[name]) for name in ("cores", "variants")}
        return cls(**{**fields, **lists, "folder": pathlib.Path(fields["folder"]), "source": source})

    def add(self, **record: Any) -> None:
        """Keep a record. A later one of the same variant and format takes its place."""
        with self.records.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": self.stage, "name": self.name, **record}, default=str) + "\n")

    def fail(self, what: str, text: str) -> None:
        """Keep the whole text of a failure."""
        with self.errors.open("a", encoding="utf-8") as file:
            file.write(f"==== {self.stage} {self.name} {what}\n{text.rstrip()}\n\n")

    def found(self) -> list[Record]:
        """Return the records that were kept."""
        if not self.records.exists():
            return []
        rows: dict[Any, Record] = {}
        for index, line in enumerate(self.records.read_text(encoding="utf-8").splitlines()):
            record = json.loads(line)
            rows[(record["variant"], record["dtype"]) if "variant" in record else index] = record
        return list(rows.values())


def attempt(task: Task, variant: str, dtype: str, measure: Callable[[], Iterator[Record]]) -> None:
    """Keep what `measure` finds, piece by piece, or why it failed: one failure must not cost the others."""
    start = time.perf_counter()
    record: Record = {"variant": variant, "dtype": dtype}
    try:
        for piece in measure():
            record |= {**piece, "seconds": round(time.perf_counter() - start, 2)}
            task.add(**record)
    except (Unavailable, ModuleNotFoundError):  # the part is skipped by that name
        raise
    except Exception as error:  # noqa: BLE001  whatever fails is the finding
        task.fail(f"{variant} {dtype}", traceback.format_exc())
        task.add(**record, failed=f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")


def timed(
    run: Callable[[], object], *, tiny: bool, wait: Callable[[], object] = lambda: None, seconds: float = 1.0
) -> Record:
    """Return milliseconds of some runs: the median, the ninth decile, and one of 20 runs in a row.

    Args:
        run: one run.
        tiny: whether this only shows that it works.
        wait: waits for the device.
        seconds: how long single runs are timed.
    """
    for _ in range(1 if tiny else 6):
        run()
    wait()
    times: list[float] = []
    end = time.perf_counter() + (0.01 if tiny else seconds)
    while len(times) < 2 or (len(times) < 100 and time.perf_counter() < end):
        start = time.perf_counter()
        run()
        wait()
        times.append(1e3 * (time.perf_counter() - start))
    in_a_row = 1 if tiny else 20
    start = time.perf_counter()
    for _ in range(in_a_row):
        run()
    wait()
    loop = 1e3 * (time.perf_counter() - start) / in_a_row
    return {
        "ms": round(statistics.median(times), 4),
        "p90_ms": round(sorted(times)[len(times) * 9 // 10], 4),
        "loop_ms": round(loop, 4),
        "runs": len(times),
    }
