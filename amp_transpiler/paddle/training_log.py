"""`TrainingLog` records every step of a training run, for callbacks, tables and a plot."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from amp_transpiler.errors import EnvironmentProblem, InputError, OutputError
from amp_transpiler.program.program import Variable

__all__ = ["TrainingLog", "TrainingStep"]

logger = logging.getLogger(__name__)

Callback = Callable[["TrainingStep"], object]

_IN_A_ROW = 10  # steps without use before a warning
_SCALED_IN_A_ROW = (
    40  # the same while the loss scale is above 1: it may come down from 2**15 by halves, every two steps
)
_REMEDIES = {
    "the loss": (
        'paddle.set_flags({"FLAGS_check_nan_inf": True}) makes the next run name the node where it begins. If its '
        'values are of 16 bits, train at level="O1", keep its operators float32 with custom_black_list, or take '
        'dtype="bfloat16"; if not, lower the learning rate'
    ),
    "a gradient": (
        'No loss scale mends that: train at level="O1", keep operators such as sums, powers and divisions float32 with '
        'custom_black_list, or take dtype="bfloat16"; if it is so in float32, too, clip gradients'
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingStep:
    """Records one step of a training run.

    Attributes:
        step: its number, from 1.
        loss: the loss, unscaled.
        loss_scale: the scale after the step; None if the loss is not scaled.
        overflowed: whether a gradient was infinite or NaN, so that no gradient was used.
        skipped: the number of steps that overflowed so far, this one included.
        samples_per_second: samples of the step over the time since the previous step; for the first step, since the log
            was created, which includes compiling.
    """

    step: int
    loss: float
    loss_scale: float | None
    overflowed: bool
    skipped: int
    samples_per_second: float


class TrainingLog:
    """Collects loss, loss scale, skipped steps and throughput of a training run.

        log = TrainingLog(optimizer)
        loss_value, *rest = exe.run(main, feed, [loss, *log.fetch_list])
        log.record(loss_value, rest, samples=len(batch))

    Args:
        optimizer: the result of `decorate`, after `minimize`; another optimizer or None for a run without loss scaling.
        callbacks: called with every new `TrainingStep`, in this order; their exceptions are not caught.
        start: the number of steps taken before, in the run that this one resumes.
        skipped: the number of steps that overflowed before.
        log_file: a file that gets a line of JSON for each step, behind what is there; a missing folder is created.
        progress: whether a line on the standard error shows the newest step.
        clock: returns the time in seconds.

    Attributes:
        steps: the steps recorded so far.
        statistics: those of the steps that `Executor.train(..., statistics_every=N)` looked at, as `StepStatistics`.
        callbacks: may be changed at any time.
        fetch_list: variables to fetch with the loss and to pass to `record`, in this order.

    Raises:
        OutputError: the folder of `log_file` cannot be made.
        RuntimeError: a decorated optimizer's `minimize` was not called yet.
    """

    def __init__(
        self,
        optimizer: Any = None,
        callbacks: Iterable[Callback] = (),
        *,
        start: int = 0,
        skipped: int = 0,
        log_file: str | os.PathLike[str] | None = None,
        progress: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.steps: list[TrainingStep] = []
        self.statistics: list[Any] = []
        self.callbacks = list(callbacks)
        self._start, self._skipped = start, skipped
        self._lines = None if log_file is None else lines_file(log_file)
        self._shown = progress
        self._clock = clock
        self._last_time = clock()
        self._useless, self._warned = 0, False  # steps in a row
        self._scale: Variable | None = None
        self._found_inf: str | None = None
        if hasattr(optimizer, "get_loss_scaling"):
            found_inf = getattr(optimizer, "found_inf", None)  # a value of the program; None if nothing is scaled
            scale = optimizer.get_loss_scaling()
            if found_inf is not None:
                self._scale, self._found_inf = scale, str(found_inf.name)

    def __repr__(self) -> str:
        return f"TrainingLog({len(self.steps)} steps, {self.skipped} skipped)"

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def fetch_list(self) -> list[Variable | str]:
        """Variables to fetch with the loss: the loss scale, and whether the step overflowed; empty without scaling."""
        if self._scale is None or self._found_inf is None:
            return []
        return [self._scale, self._found_inf]

    @property
    def skipped(self) -> int:
        """The number of steps that overflowed so far, including those before the run was resumed."""
        return self.steps[-1].skipped if self.steps else self._skipped

    def record(self, loss: Any, fetched: Sequence[Any] = (), *, samples: int = 1) -> TrainingStep:
        """Record the step that was just run, and call the callbacks with it.

        Args:
            loss: the fetched loss, one number.
            fetched: the fetched values of `fetch_list`.
            samples: the number of samples that the step was fed.

        Raises:
            InputError: `loss` is not one number, or `fetched` does not fit `fetch_list`.
            OutputError: the line cannot be written.
        """
        expected = len(self.fetch_list)
        if len(fetched) != expected:
            raise InputError(
                f"TrainingLog.record: fetched has {len(fetched)} values, expected {expected}: fetch fetch_list"
            )
        now = self._clock()
        seconds, self._last_time = now - self._last_time, now
        overflowed = bool(_number(fetched[1], "found_inf")) if expected else False
        record = TrainingStep(
            step=self._start + len(self.steps) + 1,
            loss=_number(loss, "the loss"),
            loss_scale=_number(fetched[0], "the loss scale") if expected else None,
            overflowed=overflowed,
            skipped=self.skipped + overflowed,
            samples_per_second=samples / seconds if seconds > 0 else float("inf"),
        )
        self.steps.append(record)
        if overflowed:
            logger.info("step %d was skipped: a gradient is not finite; loss scale %g", record.step, record.loss_scale)
        self._warn_if_stuck(record)
        if self._lines is not None:
            append_line(self._lines, dataclasses.asdict(record))
        if self._shown:
            show_line(f"step {record.step}  {in_words(record)}")
        for callback in self.callbacks:
            callback(record)
        return record

    def _warn_if_stuck(self, step: TrainingStep) -> None:
        """Warn once many steps in a row taught nothing, and say what to try."""
        finite = math.isfinite(step.loss)
        self._useless = self._useless + 1 if step.overflowed or not finite else 0
        comes_down = finite and step.loss_scale is not None and step.loss_scale > 1
        if self._useless < (_SCALED_IN_A_ROW if comes_down else _IN_A_ROW):
            self._warned = self._warned and self._useless > 0
            return
        if self._warned:
            return
        self._warned = True
        what = "a gradient" if finite else "the loss"
        scale = "" if step.loss_scale is None else f" at a loss scale of {step.loss_scale:g}"
        logger.warning(
            "steps %d to %d taught nothing: %s is not finite%s. %s",
            step.step - self._useless + 1, step.step, what, scale, _REMEDIES[what],
        )  # fmt: skip

    def as_rows(self) -> list[dict[str, Any]]:
        """Return one dictionary a step, with the attributes of `TrainingStep` as keys, for csv or JSON."""
        return [dataclasses.asdict(step) for step in self.steps]

    def plot(self, path: str | os.PathLike[str], title: str = "") -> None:
        """Draw the loss curve, with the loss scale below it and the skipped steps marked, to a file.

        Args:
            path: the file; its suffix decides the format, such as `.png` or `.svg`. A missing folder is created.
            title: the title of the plot.

        Raises:
            EnvironmentProblem: matplotlib is not installed.
            InputError: no step was recorded.
            OutputError: the file cannot be written.
        """
        if not self.steps:
            raise InputError("TrainingLog.plot: no step was recorded yet")
        draw_loss_curve(self.steps, pathlib.Path(path), title)


def lines_file(path: str | os.PathLike[str]) -> pathlib.Path:
    """Return a file to append lines to, and create its folder.

    Raises:
        OutputError: the folder cannot be made.
    """
    file = pathlib.Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{file.parent}: the folder cannot be made: {error}") from error
    return file


def append_line(path: pathlib.Path, row: Mapping[str, Any]) -> None:
    """Append a line of JSON to a file.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    except OSError as error:
        raise OutputError(f"{path}: the log cannot be written: {error}") from error


def show_line(text: str) -> None:
    """Write a line to the standard error over the one before."""
    sys.stderr.write(f"\r{text}\x1b[K")
    sys.stderr.flush()


def in_words(step: TrainingStep) -> str:
    """Return loss, scale and throughput of a step as text."""
    scale = "" if step.loss_scale is None else f"  scale {step.loss_scale:g}  skipped {step.skipped}"
    return f"loss {step.loss:.4g}{scale}  {step.samples_per_second:.0f} samples/s"


def _number(value: Any, what: str) -> float:
    array = np.asarray(value)
    if array.size != 1:
        raise InputError(
            f"TrainingLog.record: {what} has shape {list(array.shape)}, expected one number: take its mean"
        )
    return float(array.reshape(()))


def draw_loss_curve(steps: Sequence[TrainingStep], path: pathlib.Path, title: str = "") -> None:
    """Draw the plot of `TrainingLog.plot`."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # needs no display
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvironmentProblem("drawing a loss curve needs matplotlib: pip install 'amp-transpiler[plot]'") from error
    scaled = [step for step in steps if step.loss_scale is not None]
    figure = Figure(figsize=(8, 5 if scaled else 4), layout="constrained")
    FigureCanvasAgg(figure)
    if scaled:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        lower.step([s.step for s in scaled], [s.loss_scale for s in scaled], where="post", color="tab:gray")
        lower.set_yscale("log", base=2)
        lower.set(xlabel="step", ylabel="loss scale")
    else:
        upper = figure.subplots()
        upper.set_xlabel("step")
    upper.plot([s.step for s in steps], [s.loss for s in steps], color="tab:blue", label="loss")
    for index, step in enumerate(s for s in steps if s.overflowed):
        upper.axvline(step.step, color="tab:red", alpha=0.3, label="skipped step" if index == 0 else None)
    upper.set_ylabel("loss")
    upper.legend()
    if title:
        upper.set_title(title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:  # ValueError: a suffix that matplotlib knows no format for
        raise OutputError(f"{path}: the picture cannot be written: {error}") from error
