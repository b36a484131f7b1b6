"""Running parts: each in a process of its own, with a limit in time; those that are not timed beside each other."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import os
import pathlib
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from amp_transpiler.runtime.ort import allowed_cores
from gpu.records import Record, Task

__all__ = ["STAGES", "Part", "Stage", "run_all"]

LAB = pathlib.Path(__file__).resolve().parents[1]
UNAVAILABLE = 3
CORES_EACH = 2  # of parts beside each other
RESTARTS = 20  # of a slice of node cases, each of which may end the process


@dataclasses.dataclass(frozen=True)
class Stage:
    """A kind of part.

    Attributes:
        seconds: for one part at most.
        beside: whether parts may run beside each other, and beside those of a neighbouring stage: nothing is timed.
    """

    seconds: float
    beside: bool = False


STAGES: Mapping[str, Stage] = {
    "truths": Stage(100, beside=True),
    "prepare": Stage(150, beside=True),
    "training": Stage(45),
    "torch_training": Stage(40),
    "inference": Stage(100),
    "options": Stage(90),
    "torch": Stage(40),
    "models": Stage(110, beside=True),
    "nodes": Stage(100, beside=True),
    "compiled_training": Stage(90),
    "compiled": Stage(90),
}
"""Name -> stage, by worth: they run in this order."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part that ran, or did not: its task, how it ended, and the seconds it took."""

    task: Task
    ended: str
    seconds: float

    def record(self) -> Record:
        """Return what a file of results says of it."""
        return {"stage": "part", "of": self.task.stage, "name": self.task.name, "ended": self.ended, "s": self.seconds}


def run_all(tasks: Sequence[Task], seconds: float, done: Callable[[Part], None]) -> list[Part]:
    """Run tasks in their order within some seconds; `done` hears of each part in the thread that calls this."""
    end = time.monotonic() + seconds
    parts = []
    for beside, group in itertools.groupby(tasks, key=lambda task: STAGES[task.stage].beside):
        for part in _beside(list(group), end) if beside else (run_part(task, end) for task in group):
            print(
                f"{part.task.stage} {part.task.name}: {part.ended}, {part.seconds:.0f} s", file=sys.stderr, flush=True
            )
            parts.append(part)
            done(part)
    return parts


def _beside(tasks: Sequence[Task], end: float) -> Iterator[Part]:
    """Run tasks beside each other, each on cores of its own, so that they do not crowd each other out."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(allowed_cores()))
    shares: queue.SimpleQueue[tuple[int, ...]] = queue.SimpleQueue()
    workers = max(1, len(cores) // CORES_EACH)
    for index in range(workers):
        shares.put(tuple(cores[index * CORES_EACH : (index + 1) * CORES_EACH]))

    def run(task: Task) -> Part:
        share = shares.get()
        try:
            return run_part(dataclasses.replace(task, cores=share), end)
        finally:
            shares.put(share)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(run, task) for task in tasks]
        for future in concurrent.futures.as_completed(running):
            yield future.result()


def run_part(task: Task, end: float) -> Part:
    """Run one task in a process of its own, which ends with its limit or with the whole run's."""
    start = time.monotonic()
    limit = min(STAGES[task.stage].seconds, end - start)
    ended, known = "skipped: no time was left", -1
    for _ in range(RESTARTS):
        remaining = start + limit - time.monotonic()
        if remaining < 1:
            break
        ended = _run(task, remaining)
        crashed, records = ended.startswith("ended by"), len(task.found())
        if task.stage != "nodes" or not crashed or records == known:
            break
        known = records  # one case ended the process: the others go on without it
    return Part(task, ended, round(time.monotonic() - start, 1))


def _run(task: Task, limit: float) -> str:
    order = task.written()
    command = [sys.executable, str(LAB / "gpu" / "part.py"), str(order)]
    with (task.folder / f"{task.file_name}.stderr").open("w+", encoding="utf-8", errors="replace") as said:
        child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=said, env=environment(task.folder), start_new_session=True
        )
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # with the compilers that torch.compile starts
            child.wait()
            ended = f"stopped after {limit:.0f} s"
        else:
            ended = ""
        said.seek(0)
        text = said.read()
    ended = ended or _ending(child.returncode, text)
    if ended.startswith(("failed", "ended by", "stopped")):
        task.fail(ended.splitlines()[0][:200], text or "(nothing on the standard error)")
    return ended


def environment(folder: pathlib.Path) -> dict[str, str]:
    """Return the environment of a part: no network, and all that is cached lies in the scratch folder.

    A home folder that cannot be written to is replaced, too.
    """
    inherited = os.environ.get("PYTHONPATH")
    changes = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(LAB.parent), str(LAB), inherited])),
        "AMP_TRANSPILER_CACHE": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if not os.access(pathlib.Path("~").expanduser(), os.W_OK):
        changes["HOME"] = str(folder)
    return {**os.environ, **changes}


def _ending(status: int, said: str) -> str:
    last = (said.strip().splitlines() or [""])[-1][:300]
    if status == 0:
        return "done"
    if status == UNAVAILABLE:
        return f"skipped: {last}"
    return f"failed: {last}" if status > 0 else f"ended by {signal.Signals(-status).name}"
