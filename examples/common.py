"""What the training examples share: their options, the training loop, the picture of the loss."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from amp_transpiler import paddle
from amp_transpiler.errors import AmpError
from amp_transpiler.paddle.optimizer.base import Optimizer
from amp_transpiler.paddle.static.amp.optimizer import OptimizerWithMixedPrecision
from amp_transpiler.runtime.places import default_place

__all__ = ["Options", "main", "new_programs", "options", "started", "train", "wrapped"]

Feed = Mapping[str, np.ndarray]
Trained = Optimizer | OptimizerWithMixedPrecision


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of an example.

    Attributes:
        level: `O0` for float32, `O1`, or `O2`.
        dtype: the low format.
        steps: how many to train.
        seed: of initial values and data.
        plot: where the picture of the loss goes; None for none.
    """

    level: str
    dtype: str
    steps: int
    seed: int
    plot: pathlib.Path | None


def options(description: str | None, steps: int, arguments: list[str] | None = None) -> Options:
    """Return the options of the command line.

    Args:
        description: the example's docstring.
        steps: how many to train unless told.
        arguments: instead of the command line's.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=["O0", "O1", "O2"], default="O2", help="O0 is float32 (default: O2)")
    parser.add_argument("--dtype", choices=["float16", "bfloat16"], default="float16", help="the low format")
    parser.add_argument("--steps", type=int, default=steps, help=f"training steps (default: {steps})")
    parser.add_argument("--seed", type=int, default=1, help="of initial values and data (default: 1)")
    parser.add_argument("--plot", type=pathlib.Path, help="draw the loss to this file, such as loss.png")
    return Options(**vars(parser.parse_args(arguments)))


def new_programs(chosen: Options) -> tuple[paddle.static.Program, paddle.static.Program]:
    """Return a main and a startup program with the seed."""
    programs = paddle.static.Program(), paddle.static.Program()
    for program in programs:
        program.random_seed = chosen.seed
    return programs


def wrapped(optimizer: Optimizer, chosen: Options) -> Trained:
    """Return the optimizer for the level and format."""
    if chosen.level == "O0":
        return optimizer
    return paddle.static.amp.decorate(optimizer, level=chosen.level, dtype=chosen.dtype)


def started(*parts: tuple[paddle.static.Program, Trained]) -> paddle.static.Executor:
    """Set initial values, round what is low from now on, and return the executor to train with.

    Args:
        parts: a startup program and the wrapped optimizer of its main program, after `minimize`.
    """
    place = default_place()
    exe = paddle.static.Executor(place)
    for startup, _ in parts:
        exe.run(startup)
    for _, optimizer in parts:
        if isinstance(optimizer, OptimizerWithMixedPrecision):
            optimizer.amp_init(place)
    return exe


def train(
    exe: paddle.static.Executor,
    program: paddle.static.Program,
    optimizer: Trained,
    loss: paddle.static.Variable,
    feeds: Iterator[Feed],
    chosen: Options,
) -> list[float]:
    """Train, print as it goes, and draw the loss.

    Args:
        exe: what `started` returned.
        program: the main program, after `minimize`.
        optimizer: what `wrapped` returned.
        loss: one number.
        feeds: the feed of each step.
        chosen: the options.

    Returns:
        the loss of every step.
    """
    log = paddle.TrainingLog(optimizer)
    every, began = max(1, chosen.steps // 10), time.perf_counter()
    for step in range(1, chosen.steps + 1):
        feed = next(feeds)
        value, *rest = exe.run(program, feed=dict(feed), fetch_list=[loss, *log.fetch_list])
        record = log.record(value, rest, samples=len(next(iter(feed.values()))))
        if step % every == 0 or step == 1:
            scale = "" if record.loss_scale is None else f"  loss scale {record.loss_scale:g}"
            print(f"step {step:4}  loss {record.loss:.4f}{scale}  skipped {record.skipped}")
    name = "float32" if chosen.level == "O0" else f"{chosen.level} {chosen.dtype}"
    print(f"{name}: {chosen.steps} steps in {time.perf_counter() - began:.1f} s")
    if chosen.plot is not None:
        log.plot(chosen.plot, name)
        print(f"the loss is drawn in {chosen.plot}")
    return [step.loss for step in log.steps]


def main(example: Callable[[], object]) -> int:
    """Run an example; an error of the library is one line."""
    try:
        example()
    except AmpError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
