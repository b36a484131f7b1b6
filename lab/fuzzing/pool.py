"""Worker processes, watched: one that dies, hangs or grows costs its mutant and is replaced."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import IO, Any

from fuzzing.attempt import MEMORY_LIMIT, peak_megabytes
from fuzzing.mutations import draw
from fuzzing.options import draw_options
from fuzzing.outcomes import Outcome
from fuzzing.seeds import Seed, all_seeds
from fuzzing.worker import DOOR

TIMEOUT = 20.0  # seconds for one mutant
_TURNS = 4000  # mutants after which a worker is replaced
_TICK = 0.25  # seconds between two looks at the workers
_ROOT = pathlib.Path(__file__).resolve().parents[2]

Task = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How mutants are run.

    Attributes:
        run: the seed of the run.
        jobs: worker processes.
        verified: the share of mutants whose result is verified.
        judged: the share of those that run on inputs of ours and are judged.
        corpus: a folder of further seeds.
        door: what stands for `transpile`, as `MODULE:FUNCTION`.
        timeout: seconds for one mutant.
        patience: more seconds for the first mutant of a worker, which pays for all imports.
    """

    run: int = 0
    jobs: int = 1
    verified: float = 0.5
    judged: float = 0.3
    corpus: pathlib.Path | None = None
    door: str = DOOR
    timeout: float = TIMEOUT
    patience: float = 20.0

    def task(self, index: int) -> Task:
        """Return the order to a worker to run one mutant."""
        return {"run": self.run, "index": index, "verified": self.verified, "judged": self.judged}


class Worker:
    """One worker process and what it is doing."""

    def __init__(self, setup: Setup, folder: pathlib.Path) -> None:
        self.setup = setup
        self.folder = folder
        self.task: Task | None = None
        self.started = 0.0
        self.turns = 0
        folder.mkdir(parents=True)
        self._log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fuzzing.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the parent; and children are killed with their worker
            text=True,
        )
        corpus = str(setup.corpus) if setup.corpus else ""
        self._send({"folder": str(folder), "corpus": corpus, "door": setup.door})

    @property
    def pipe(self) -> IO[str]:
        """Where answers come from."""
        assert self.process.stdout is not None
        return self.process.stdout

    def give(self, task: Task) -> None:
        """Start one mutant."""
        self.task, self.started = task, time.monotonic()
        self.turns += 1
        self._log.truncate(0)
        self._send({**task, "patience": self.setup.timeout * 0.8})

    def _send(self, message: Task) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a dead worker is noticed where its answer is read
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def last_words(self) -> str:
        """Return what it wrote to stderr about its present mutant."""
        return (self.folder / "log").read_bytes()[-20_000:].replace(b"\0", b"").decode("utf-8", "replace")

    def end(self) -> int:
        """Kill it and its children, remove its files, and return its exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        self.pipe.close()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return status


def _environment() -> dict[str, str]:
    paths = [str(_ROOT), str(_ROOT / "lab"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


class Pool:
    """Runs tasks in worker processes and yields an outcome for each, in the order in which they end."""

    def __init__(self, setup: Setup, folder: pathlib.Path | None = None) -> None:
        self._setup = setup
        self._seeds: list[Seed] = []
        # In memory where that is possible: a hundred thousand models are written and synced.
        shared = pathlib.Path("/dev/shm")  # noqa: S108  (a new folder is made in it)
        self._base = folder or (shared if os.access(shared, os.W_OK) else None)
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="fuzz-", dir=self._base))
        self._selector = selectors.DefaultSelector()
        self._workers: list[Worker] = []
        self._count = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()
        self._selector.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Yield the outcome of every task."""
        waiting: collections.deque[Task] = collections.deque()
        source = iter(tasks)
        while True:
            while len(waiting) < self._setup.jobs and (task := next(source, None)) is not None:
                waiting.append(task)
            self._assign(waiting)
            if not any(worker.task for worker in self._workers) and not waiting:
                return
            for key, _ in self._selector.select(_TICK):
                yield from self._hear(key.data)
            for worker in list(self._workers):
                yield from self._look_at(worker, waiting)

    def _assign(self, waiting: collections.deque[Task]) -> None:
        for worker in list(self._workers):
            if worker.task is None and worker.turns >= _TURNS:
                self._dismiss(worker)
        while len(self._workers) < self._setup.jobs and sum(w.task is None for w in self._workers) < len(waiting):
            self._count += 1
            worker = Worker(self._setup, self._folder / f"w{self._count}")
            self._workers.append(worker)
            self._selector.register(worker.pipe, selectors.EVENT_READ, worker)
        for worker in self._workers:
            if worker.task is None and waiting:
                worker.give(waiting.popleft())

    def _hear(self, worker: Worker) -> Iterator[Outcome]:
        line = worker.pipe.readline()
        if line:
            worker.task = None
            yield Outcome(**json.loads(line))
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(5.0)  # else its status would be that of being killed
        task, words = worker.task, worker.last_words()
        status = self._dismiss(worker)
        if status == 1 and "Traceback (most recent" in words:
            raise RuntimeError(f"the fuzzer itself failed at {task}:\n{words}")
        if task is not None:
            yield self._lost(task, "crash", _status_words(status), words)

    def _look_at(self, worker: Worker, waiting: collections.deque[Task]) -> Iterator[Outcome]:
        """Kill a worker that takes too long or too much."""
        task = worker.task
        if task is None or worker not in self._workers:
            return
        seconds, megabytes = time.monotonic() - worker.started, peak_megabytes(worker.process.pid, "VmRSS")
        if seconds > self._setup.timeout + (self._setup.patience if worker.turns == 1 else 0.0):
            words = worker.last_words()
            self._dismiss(worker)
            if task.get("retried"):
                yield self._lost(task, "timeout", f"more than {self._setup.timeout:.0f} s", words)
            else:
                waiting.appendleft({**task, "retried": True})  # another process may have kept this one waiting
        elif megabytes > MEMORY_LIMIT:
            os.killpg(worker.process.pid, signal.SIGABRT)  # which makes it write a traceback
            time.sleep(0.2)
            words = worker.last_words()
            self._dismiss(worker)
            yield self._lost(task, "memory", f"{megabytes} MB", words)

    def _dismiss(self, worker: Worker) -> int:
        self._selector.unregister(worker.pipe)
        self._workers.remove(worker)
        return worker.end()

    def _lost(self, task: Task, kind: str, detail: str, words: str) -> Outcome:
        """Describe a mutant whose worker cannot."""
        setup, index = self._setup, task["index"]
        options = task.get("options") or draw_options(setup.run, index, setup.verified)
        if "data" in task:
            return Outcome(index, kind, task["seed"], task["level"], task["steps"], options, detail, _place(words))
        self._seeds = self._seeds or all_seeds(setup.corpus)
        drawn = draw(setup.run, index, self._seeds, task.get("without", ()))
        steps = [name for name, _ in drawn.steps]
        return Outcome(index, kind, drawn.seed, drawn.level, steps, options, detail, _place(words))


def _status_words(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def _place(words: str) -> str:
    """Return the innermost line of the package in a traceback of faulthandler, which lists the innermost first."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', words)
    ours = [f"{path.split('amp_transpiler/')[-1]}:{line}" for path, line in frames if "/amp_transpiler/" in path]
    inner = ["/".join(pathlib.Path(path).parts[-2:]) + f":{line}" for path, line in frames[:1]]
    return " < ".join(dict.fromkeys([*ours[:1], *inner]))
