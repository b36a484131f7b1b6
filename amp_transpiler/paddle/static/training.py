"""`Executor.train` trains for epochs over a loader, with a record, checkpoints to resume from, and early stop."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.files.durable import write_file
from amp_transpiler.paddle.optimizer.lr_base import LRScheduler
from amp_transpiler.paddle.optimizer.lr_driven import ReduceOnPlateau
from amp_transpiler.paddle.static import io
from amp_transpiler.paddle.static.step_statistics import StepProbe, StepStatistics
from amp_transpiler.paddle.training_log import (
    Callback,
    TrainingLog,
    TrainingStep,
    append_line,
    draw_loss_curve,
    in_words,
    lines_file,
    show_line,
)
from amp_transpiler.program.program import Program, Variable
from amp_transpiler.runtime.scope import Scope, global_scope

__all__ = ["Ranks", "TrainOptions", "train"]

logger = logging.getLogger(__name__)

_BAR = 20  # characters
ScheduleBy = Literal["step", "epoch"]
_NAME = re.compile(r"step-(\d+)\.safetensors")


class Runs(Protocol):
    """Runs a program, as an `Executor` does."""

    def run(self, program: Program, feed: Any, fetch_list: Any, *, scope: Scope) -> list[Any]:
        """Run a program once."""

    def ranks(self) -> Ranks:
        """Return the processes that train together."""


class Ranks:
    """Represents the processes that train together: here, only one. Rank 0 writes the files, and all use what it reads.

    Attributes:
        rank: the number of this process.
    """

    rank = 0

    def from_first(self, text: str) -> str:
        """Return the text that rank 0 passes, on every rank."""
        return text

    def mean(self, number: float) -> float:
        """Return the mean of the ranks' numbers."""
        return number

    def save(self, program: Program, path: str | os.PathLike[str], scope: Scope) -> None:
        """Write a checkpoint; every rank calls it."""
        io.save(program, path, scope)

    def load(self, program: Program, path: str | os.PathLike[str], scope: Scope) -> None:
        """Read a checkpoint; every rank calls it."""
        io.load(program, path, scope=scope)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Holds the arguments of `Executor.train` besides program, loader and epochs.

    Attributes:
        loss: the variable to record; the program's first output unless given.
        optimizer: the optimizer. The loss scale and skipped steps of `decorate`'s result are recorded.
        schedule_by: what an epoch of the program's schedules is: a "step", as in Paddle's `Model.fit`, or an "epoch"
            of the data: they are stepped then. A schedule that a callback has stepped is left alone in that step, and a
            ReduceOnPlateau always: a callback gives it its value. None: only callbacks step.
        feed_list: variables or names that a batch's parts are fed to, where batches are lists.
        scope: where the values live; the global scope unless given.
        callbacks: called with each `TrainingStep`.
        steps: the most steps, those of earlier calls included; None for all.
        checkpoints: a folder. A checkpoint is written every `save_every` steps and at the end, and a later call with
            the same folder goes on from the newest: parameters, optimizer, random masks, and the place in the data.
        save_every: steps between checkpoints; None: only the end.
        keep: how many checkpoints are kept.
        resume: whether to go on from the newest checkpoint.
        patience: epochs without progress after which to stop; None for never.
        evaluate: called with the epoch's number behind each epoch; returns what must become smaller. The mean loss of
            the epoch unless given.
        log_file: a file that gets a line of JSON for each step; `log.jsonl` beside the checkpoints unless given.
        plot: a file that gets a picture of the loss in the end.
        progress: whether a line on the standard error shows where the training is; None: if that is a terminal.
        statistics_every: steps between looks at gradients and at the forward pass, which the record keeps as
            `statistics`, and the log file in the step's line: zeros, numbers that are not finite, the largest one of
            each tensor. Such a step is computed a second time; None for no look. In one process only.
    """

    loss: Variable | str | None = None
    optimizer: Any = None
    schedule_by: ScheduleBy | None = "step"
    feed_list: Sequence[Variable | str] | None = None
    scope: Scope | None = None
    callbacks: Iterable[Callback] = ()
    steps: int | None = None
    checkpoints: str | os.PathLike[str] | None = None
    save_every: int | None = None
    keep: int = 3
    resume: bool = True
    patience: int | None = None
    evaluate: Callable[[int], float] | None = None
    log_file: str | os.PathLike[str] | None = None
    plot: str | os.PathLike[str] | None = None
    progress: bool | None = None
    statistics_every: int | None = None

    def check(self) -> None:
        """Raise OptionError for numbers without a meaning."""
        for name in ("save_every", "keep", "patience", "steps", "statistics_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"train: {name} must be 1 or more, got {value}")
        if self.schedule_by not in (None, *get_args(ScheduleBy)):
            raise OptionError(f"train: schedule_by must be 'step', 'epoch' or None, got {self.schedule_by!r}")
        if self.save_every is not None and self.checkpoints is None:
            raise OptionError("train: save_every needs checkpoints, the folder that they go to")


@dataclasses.dataclass(slots=True)
class _Place:
    """Says how far a training run has come: what a checkpoint keeps beside the scope's values."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    skipped: int = 0
    best: float | None = None
    bad_epochs: int = 0
    stopped: bool = False
    loss_sum: float = 0.0
    loss_count: int = 0


def train(executor: Runs, program: Program, loader: Any, epochs: int, options: TrainOptions) -> TrainingLog:
    """Train; see `Executor.train`."""
    options.check()
    if not program.updates or not any(p.kind == "parameter" for p in program.persistables.values()):
        raise InputError(f"train: {program!r} updates nothing: call an optimizer's minimize(loss) first")
    run = _Run(executor, program, options)
    run.go(loader, epochs)
    return run.log


class _Run:
    """Carries out one call of `train`.

    Args:
        executor: runs the program.
        program: the training program.
        options: the arguments.
    """

    def __init__(self, executor: Runs, program: Program, options: TrainOptions) -> None:
        self.executor, self.program, self.options = executor, program, options
        self.ranks = executor.ranks()
        self.batches: int | None = None  # of an epoch, if they can be counted
        self.scope = global_scope() if options.scope is None else options.scope
        self.loss = self._loss_name()
        self.folder = None if options.checkpoints is None else pathlib.Path(options.checkpoints)
        self.lines = _lines_file(options, self.folder) if self.ranks.rank == 0 else None
        self.schedules = _schedules(program)
        self.place = self._resumed() if options.resume else _Place()
        self.earlier = _earlier_lines(self.lines, self.place.step)
        place = self.place
        self.log = TrainingLog(options.optimizer, options.callbacks, start=place.step, skipped=place.skipped)
        self.probe = self._probe()
        shown = sys.stderr.isatty() if options.progress is None else options.progress
        self.shown = shown and self.ranks.rank == 0

    def _probe(self) -> StepProbe | None:
        if self.options.statistics_every is None:
            return None
        if type(self.ranks) is not Ranks:
            raise OptionError("train: statistics_every looks at steps of a single process: leave it out with several")
        return StepProbe(self.program)

    def _loss_name(self) -> str:
        loss = self.options.loss
        if loss is not None:
            return self.program.name_of(loss)
        if not self.program.outputs:
            raise InputError("train: the program names no loss: give loss=")
        return self.program.outputs[0]

    # The loop.

    def go(self, loader: Any, epochs: int) -> None:
        self.batches = _length(loader)
        place, saved = self.place, self.place.step
        while place.epoch < epochs and not self._is_done():
            if hasattr(loader, "set_epoch"):
                loader.set_epoch(place.epoch)
            for batch in _from(loader, place.batch):
                self._step(batch, epochs)
                if self.options.save_every and place.step % self.options.save_every == 0:
                    self._save()
                    saved = place.step
                if self._is_done():
                    break
            else:
                self._end_epoch()
        if self.folder is not None and (saved != place.step or place.stopped):
            self._save()
        if self.shown:
            sys.stderr.write("\n")
        if self.options.plot is not None and self.ranks.rank == 0:
            self._draw(pathlib.Path(self.options.plot))

    def _is_done(self) -> bool:
        steps = self.options.steps
        return self.place.stopped or (steps is not None and self.place.step >= steps)

    def _step(self, batch: Any, epochs: int) -> None:
        feed = self._feed(batch)
        statistics = self._measured(feed)
        loss, *rest = self.executor.run(self.program, feed, [self.loss, *self.log.fetch_list], scope=self.scope)
        samples = max((len(array) for array in map(np.asarray, feed.values()) if array.ndim), default=1)
        before = {name: schedule.last_epoch for name, schedule in self.schedules.items()}
        step = self.log.record(loss, rest, samples=samples)  # and callbacks
        if self.options.schedule_by == "step":
            self._step_schedules(before)
        place = self.place
        place.step, place.skipped = step.step, step.skipped
        place.batch += 1
        if math.isfinite(step.loss):
            place.loss_sum, place.loss_count = place.loss_sum + step.loss, place.loss_count + 1
        self._write_line(step, statistics)
        if self.shown:
            show_line(_progress(step, place, epochs, self.batches))

    def _measured(self, feed: Mapping[str, Any]) -> StepStatistics | None:
        """Look at the coming step, if it is its turn."""
        number, every = self.place.step + 1, self.options.statistics_every
        if self.probe is None or every is None or number % every:
            return None
        statistics = self.probe.measure(self.executor, feed, self.scope, number)
        self.log.statistics.append(statistics)
        logger.info("%s", statistics)
        return statistics

    def _step_schedules(self, before: Mapping[str, int]) -> None:
        for name, schedule in self.schedules.items():
            if schedule.last_epoch == before[name] and not isinstance(schedule, ReduceOnPlateau):
                schedule.step()

    def _feed(self, batch: Any) -> Mapping[str, Any]:
        if isinstance(batch, Mapping):
            return batch
        parts = list(batch) if isinstance(batch, (list, tuple)) else [batch]
        if len(parts) == 1 and isinstance(parts[0], Mapping):
            return parts[0]
        names = [self.program.name_of(item) for item in self.options.feed_list or ()]
        if len(names) != len(parts):
            raise InputError(
                f"train: a batch has {len(parts)} parts and feed_list has {len(names)} inputs: give feed_list=, or "
                "batches as dictionaries"
            )
        return dict(zip(names, parts, strict=True))

    def _end_epoch(self) -> None:
        place, options = self.place, self.options
        if place.batch == 0:
            raise InputError(
                "train: the loader has no batch: give a list or a DataLoader, which can be gone through again"
            )
        number = place.epoch
        place.epoch, place.batch = number + 1, 0
        before = {name: schedule.last_epoch for name, schedule in self.schedules.items()}
        mean = place.loss_sum / place.loss_count if place.loss_count else math.inf
        place.loss_sum, place.loss_count = 0.0, 0
        value = self.ranks.mean(mean if options.evaluate is None else float(options.evaluate(number)))
        if options.schedule_by == "epoch":
            self._step_schedules(before)
        if place.best is None or value < place.best:
            place.best, place.bad_epochs = value, 0
            return
        place.bad_epochs += 1
        if options.patience is not None and place.bad_epochs >= options.patience:
            place.stopped = True
            logger.info(
                "stopped after epoch %d: no progress for %d epochs, best %g", number, place.bad_epochs, place.best
            )

    # Records.

    def _write_line(self, step: TrainingStep, statistics: StepStatistics | None) -> None:
        if self.lines is None:
            return
        row = {**dataclasses.asdict(step), "epoch": self.place.epoch}
        append_line(self.lines, row if statistics is None else {**row, "statistics": dataclasses.asdict(statistics)})

    def _draw(self, path: pathlib.Path) -> None:
        fields = {field.name for field in dataclasses.fields(TrainingStep)}
        before = [TrainingStep(**{key: row[key] for key in fields}) for row in self.earlier]
        if steps := [*before, *self.log.steps]:
            draw_loss_curve(steps, path)

    # Checkpoints.

    def _save(self) -> None:
        folder = self.folder
        assert folder is not None
        stem = folder / f"step-{self.place.step:09d}"
        # The state first: a checkpoint counts once its values are there, and they come all at once.
        if self.ranks.rank == 0:
            schedules = {name: schedule.state_dict() for name, schedule in self.schedules.items()}
            state = {"place": dataclasses.asdict(self.place), "schedules": schedules}
            write_file(stem.with_suffix(".json"), json.dumps(state).encode())
        self.ranks.save(self.program, stem.with_suffix(".safetensors"), self.scope)
        if self.ranks.rank == 0:
            for _, old in _checkpoints(folder)[: -self.options.keep]:
                old.unlink(missing_ok=True)
                old.with_suffix(".json").unlink(missing_ok=True)

    def _resumed(self) -> _Place:
        if self.folder is None:
            return _Place()
        newest = json.loads(self.ranks.from_first(json.dumps(_newest(self.folder) if self.ranks.rank == 0 else {})))
        if not newest:
            return _Place()
        path, state, place = pathlib.Path(newest["path"]), newest["state"], _Place(**newest["state"]["place"])
        self.ranks.load(self.program, path, self.scope)
        for name, schedule_state in state.get("schedules", {}).items():
            if name in self.schedules:
                self.schedules[name].set_state_dict(schedule_state)
        logger.info("resumed from %s: step %d, epoch %d", path, place.step, place.epoch)
        return place


def _newest(folder: pathlib.Path) -> dict[str, Any]:
    """Return the newest checkpoint of a folder and the state beside it; nothing if there is none.

    Raises:
        InputError: the state is damaged.
    """
    checkpoints = _checkpoints(folder)
    if not checkpoints:
        return {}
    path = checkpoints[-1][1]
    try:
        state = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        _Place(**state["place"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path.with_suffix('.json')}: no state of a training ({error}): remove both files") from error
    return {"path": str(path), "state": state}


def _schedules(program: Program) -> dict[str, LRScheduler]:
    """Return the schedules that `step` moves on, by the name of a rate that follows each."""
    driven = ((name, persistable.driver) for name, persistable in program.persistables.items())
    by_driver = {id(driver): (name, driver) for name, driver in driven if isinstance(driver, LRScheduler)}
    return dict(by_driver.values())


def _checkpoints(folder: pathlib.Path) -> list[tuple[int, pathlib.Path]]:
    """Return (step, file) of the checkpoints of a folder, the oldest first."""
    if not folder.is_dir():
        return []
    matches = ((match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)))
    return sorted((int(match.group(1)), path) for match, path in matches if path.with_suffix(".json").exists())


def _from(loader: Any, first: int) -> Iterator[Any]:
    """Yield the batches of an epoch without the first ones, which were trained on before."""
    batches = iter(loader() if callable(loader) and not hasattr(loader, "__iter__") else loader)
    for _ in range(first):
        if next(batches, None) is None:
            return
    yield from batches


def _length(loader: Any) -> int | None:
    """Return how many batches an epoch has; None where that is not known."""
    try:
        return len(loader)
    except TypeError:  # a function, or a stream
        return None


def _lines_file(options: TrainOptions, folder: pathlib.Path | None) -> pathlib.Path | None:
    path = folder / "log.jsonl" if options.log_file is None and folder is not None else options.log_file
    return None if path is None else lines_file(path)


def _earlier_lines(path: pathlib.Path | None, steps: int) -> list[dict[str, Any]]:
    """Return the lines of the steps that are resumed from, and leave only them in the file."""
    if path is None or not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # the line that a killed training was writing
            continue
        if row["step"] <= steps:
            rows.append(row)
    write_file(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return rows


def _progress(step: TrainingStep, place: _Place, epochs: int, batches: int | None) -> str:
    """Return one line that says how far a training run has come, with a bar where the epoch's length is known."""
    where = f"epoch {place.epoch + 1}/{epochs}"
    if batches:
        done = min(_BAR, _BAR * place.batch // batches)
        where += f" [{'=' * done}{'.' * (_BAR - done)}] {place.batch}/{batches}"
    else:
        where += f"  batch {place.batch}"
    return f"{where}  step {step.step}  {in_words(step)}"
