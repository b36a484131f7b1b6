#!/usr/bin/env python3
"""Train a small classifier of scikit-learn's handwritten digits, in float32 or in mixed precision.

    python examples/train.py                                        # LeNet, pure float16, Adam
    python examples/train.py --level fp32 --model mlp --optimizer sgd
    python examples/train.py --dtype bfloat16 --level O1 --plot loss.png
    python examples/train.py --epochs 3 --checkpoint digits.safetensors
    python examples/train.py --epochs 6 --checkpoint digits.safetensors --resume
    python examples/train.py --onnx model.onnx             # images [batch, 1, 8, 8] or [batch, 64] -> ten logits
    torchrun --nproc-per-node 2 examples/train.py --accumulate-steps 2 --shard-optimizer

It prints loss, loss scale, skipped steps and throughput. A checkpoint is written after every epoch, whole or not at
all; a resumed run continues as if it had not stopped. Started by torchrun, all processes share each batch and train as
one alone does (docs/distributed.md); a checkpoint fits any number of processes. Needs scikit-learn (the extra
`examples`), matplotlib (the extra `plot`) for --plot, and PyTorch (the extra `distributed`) for several processes. On a
CPU lower precision is emulated: the numbers are right, the speed is not a GPU's.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import amp_transpiler as amp
from amp_transpiler import distributed, optimizer as optimizers, static
from amp_transpiler.errors import AmpError, EnvironmentProblem, InputError, OptionError
from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.training_log import TrainingLog, TrainingStep
from amp_transpiler.program.program import Persistable
from amp_transpiler.runtime.places import CUDAPlace, Place, default_place

CLASSES, PIXELS, HELD_BACK = 10, 8, 360
PROGRESS = "training_progress"  # in the checkpoint: steps taken, steps skipped
Arrays = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Kind:
    """An optimizer and its default learning rate."""

    make: Callable[..., optimizers.Optimizer]
    rate: float


OPTIMIZERS = {
    "adam": Kind(optimizers.Adam, 1e-3),
    "adamw": Kind(optimizers.AdamW, 1e-3),
    "momentum": Kind(optimizers.Momentum, 1e-2),
    "sgd": Kind(optimizers.SGD, 1e-1),
}


# ---- data ----
@dataclasses.dataclass(frozen=True)
class Digits:
    """Images, float32 [n, 1, 8, 8] from 0 to 1, and labels, int64 [n, 1], for training and for testing."""

    train: Arrays
    test: Arrays

    def batches(self, size: int, seed: int, start: int) -> Iterator[Arrays]:
        """Yield batches for ever, from step `start` on. Each epoch has its own order and drops an incomplete batch."""
        images, labels = self.train
        step = start
        while True:
            epoch, index = divmod(step, self.steps(size))
            order = np.random.default_rng([seed, epoch]).permutation(len(images))
            chosen = order[index * size : (index + 1) * size]
            yield images[chosen], labels[chosen]
            step += 1

    def steps(self, size: int) -> int:
        """Return the number of steps in an epoch."""
        return len(self.train[0]) // size


def digits() -> Digits:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise EnvironmentProblem("the digits need scikit-learn: pip install 'amp-transpiler[examples]'") from error
    data = load_digits()
    images = (data.images / 16).astype(np.float32)[:, None]
    labels = data.target.astype(np.int64)[:, None]
    order = np.random.default_rng(0).permutation(len(images))
    trained, held = order[HELD_BACK:], order[:HELD_BACK]
    return Digits((images[trained], labels[trained]), (images[held], labels[held]))


# ---- the programs ----
@dataclasses.dataclass(frozen=True)
class Network:
    """A program under construction, with its inputs and outputs."""

    main: static.Program
    startup: static.Program
    image: static.Variable
    logits: static.Variable
    loss: static.Variable

    def feed(self, batch: Arrays) -> dict[str, np.ndarray]:
        shape = self.image.shape
        images = batch[0].reshape(len(batch[0]), *shape[1:])
        return {self.image.name: images, "label": batch[1]}


def lenet(image: static.Variable) -> static.Variable:
    x = functional.max_pool2d(functional.relu(static.nn.conv2d(image, 16, 3, padding=1)), kernel_size=2, stride=2)
    x = functional.max_pool2d(functional.relu(static.nn.conv2d(x, 32, 3, padding=1)), kernel_size=2, stride=2)
    return static.nn.fc(functional.relu(static.nn.fc(x, 64)), CLASSES)


def mlp(image: static.Variable) -> static.Variable:
    x = functional.relu(static.nn.fc(image, 64))
    return static.nn.fc(functional.relu(static.nn.fc(x, 64)), CLASSES)


MODELS = {"lenet": lenet, "mlp": mlp}


def build(model: str, onnx: pathlib.Path | None, seed: int) -> Network:
    """Build the network and its loss, and a counter of steps that is saved in checkpoints."""
    startup = static.Program()
    main = static.Program() if onnx is None else static.from_onnx(onnx, startup_program=startup)
    main.random_seed = startup.random_seed = seed
    with static.program_guard(main, startup):
        if onnx is None:
            image = static.data("image", [None, 1, PIXELS, PIXELS])
            logits = MODELS[model](image)
        else:
            image, logits = ends(main, onnx)
        label = static.data("label", [None, 1], "int64")
        loss = functional.cross_entropy(logits, label)
        create_persistable(Persistable(PROGRESS, "state"), (2,), 0, ir.DataType.INT64)
    return Network(main, startup, image, logits, loss)


def ends(main: static.Program, onnx: pathlib.Path) -> tuple[static.Variable, static.Variable]:
    """Return the one input and the first output of a loaded model.

    Raises:
        InputError: the model does not take the digits.
    """
    inputs = [str(value.name) for value in main.model.graph.inputs if value.name not in main.persistables]
    if len(inputs) != 1 or not main.outputs:
        raise InputError(f"{onnx}: a classifier of images has one input, this model has {len(inputs)}: {inputs}")
    image = main.var(inputs[0])
    if list(image.shape[1:]) not in ([1, PIXELS, PIXELS], [PIXELS * PIXELS]):
        raise InputError(f"{onnx}: its input is {list(image.shape)}, the digits are [batch, 1, 8, 8] or [batch, 64]")
    return image, main.var(main.outputs[0])


def minimize(network: Network, options: argparse.Namespace) -> Any:
    """Append the training step; return the optimizer, decorated unless the level is fp32."""
    kind = OPTIMIZERS[options.optimizer]
    optimizer = kind.make(learning_rate=kind.rate if options.lr is None else options.lr)
    if options.level != "fp32":
        optimizer = amp.decorate(optimizer, level=options.level, dtype=options.dtype)  # type: ignore[assignment]  # its wrapper
    with static.program_guard(network.main, network.startup):
        optimizer.minimize(network.loss, network.startup)
    return optimizer


# ---- training ----
def executor(options: argparse.Namespace, place: Place) -> static.Executor:
    """Return what runs the steps: with the other processes if torchrun has started several, else alone."""
    if not distributed.is_launched():
        return static.Executor(place)
    return distributed.DataParallelExecutor(
        place,
        accumulate_steps=options.accumulate_steps,
        sync_batch_norm=options.sync_batch_norm,
        shard_optimizer=options.shard_optimizer,
    )


class Run:
    """A training run: the programs, the executor, and the log."""

    def __init__(self, options: argparse.Namespace, place: Place, console: Console) -> None:
        self._options, self._console = options, console
        self.data = digits()
        if self.data.steps(options.batch_size) == 0:
            raise OptionError(f"--batch-size {options.batch_size}: there are {len(self.data.train[0])} images")
        self._ranks = distributed.get_world_size()
        if options.batch_size % (self._ranks * options.accumulate_steps):
            raise OptionError(
                f"--batch-size {options.batch_size}: {self._ranks} processes share each batch equally, in "
                f"{options.accumulate_steps} accumulation steps: give a multiple"
            )
        self.network = build(options.model, options.onnx, options.seed)
        self._test = self.network.main.clone(for_test=True)
        self._optimizer = minimize(self.network, options)
        self._exe = executor(options, place)
        self._exe.run(self.network.startup)
        if options.level != "fp32":
            self._optimizer.amp_init(place, test_program=self._test)
        self._scope = static.global_scope()
        if options.resume:
            self._together.load(self.network.main, options.checkpoint)
        steps, skipped = (int(number) for number in self._scope[PROGRESS])
        self.log = TrainingLog(self._optimizer, start=steps, skipped=skipped)
        self.taken = steps

    def train(self) -> None:
        """Run the remaining steps, with a progress bar, regular log lines, and a checkpoint every epoch."""
        options = self._options
        per_epoch = self.data.steps(options.batch_size)
        total = per_epoch * options.epochs
        if self.taken >= total:
            self._console.print(f"{self.taken} steps were taken already: --epochs {options.epochs} asks for no more")
            return
        batches = self.data.batches(options.batch_size, options.seed, self.taken)
        with self._progress() as progress:
            task = progress.add_task("training", total=total, completed=self.taken, state="")
            self.log.callbacks.append(lambda step: progress.update(task, completed=step.step, state=summary(step)))
            self.log.callbacks.append(self._say)
            for batch in batches:
                self._step(batch)
                if self.taken % per_epoch == 0 or self.taken == total:
                    self._checkpoint()
                if self.taken == total:
                    break

    def accuracy(self) -> float:
        """Return the accuracy of the test program on the digits held back."""
        feed = self.network.feed(self.data.test)
        del feed["label"]
        (logits,) = self._exe.run(self._test, feed, [self.network.logits.name])
        return float(np.mean(np.asarray(logits, np.float32).argmax(-1) == self.data.test[1][:, 0]))

    @property
    def _together(self) -> Any:
        """What reads and writes checkpoints: the executor of several processes, or `static`."""
        return self._exe if isinstance(self._exe, distributed.DataParallelExecutor) else static

    def _step(self, batch: Arrays) -> None:
        images, labels = (np.split(part, self._ranks)[distributed.get_rank()] for part in batch)
        fetched = [self.network.loss, *self.log.fetch_list]
        loss, *rest = self._exe.run(self.network.main, self.network.feed((images, labels)), fetched)
        value = float(np.asarray(loss, np.float32).reshape(()))
        if self._ranks > 1:
            value = distributed.mean(value)
        self.taken = self.log.record(value, rest, samples=len(batch[0])).step

    def _checkpoint(self) -> None:
        self._scope[PROGRESS] = np.array([self.taken, self.log.skipped], np.int64)
        if self._options.checkpoint is not None:
            self._together.save(self.network.main, self._options.checkpoint)

    def _say(self, step: TrainingStep) -> None:
        every = self._options.log_every
        if every and (step.step % every == 0 or step.overflowed):
            # The mean over the steps since the last line: all have the same number of samples.
            rate = statistics.harmonic_mean([s.samples_per_second for s in self.log.steps[-every:]])
            self._console.print(f"step {step.step:5d}  {summary(step)}  {rate:8.0f} samples/s", highlight=False)

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )


def summary(step: TrainingStep) -> str:
    """Return loss, scale and skipped steps as a short text."""
    scale = "" if step.loss_scale is None else f"  scale {step.loss_scale:g}  skipped {step.skipped}"
    return f"loss {step.loss:.4f}{scale}"


# ---- the command line ----
def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="lenet", help="default: lenet")
    parser.add_argument("--onnx", type=pathlib.Path, metavar="MODEL", help="train this ONNX model instead")
    parser.add_argument("--level", choices=("fp32", "O0", "O1", "O2"), default="O2", help="default: O2")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16", help="default: float16")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adam", help="default: adam")
    rates = ", ".join(f"{name} {kind.rate:g}" for name, kind in OPTIMIZERS.items())
    parser.add_argument("--lr", type=float, help=f"learning rate; default: {rates}")
    parser.add_argument("--epochs", type=positive, default=5, help="total, including those before --resume; default: 5")
    parser.add_argument("--batch-size", type=positive, default=64, help="default: 64")
    parser.add_argument("--seed", type=positive, default=1, help="of initial values and order; default: 1")
    parser.add_argument("--place", choices=("cpu", "cuda"), help="default: cuda where a device answers")
    parser.add_argument("--log-every", type=int, default=20, metavar="STEPS", help="0 for no lines; default: 20")
    parser.add_argument("--checkpoint", type=pathlib.Path, metavar="FILE", help="write the state here every epoch")
    parser.add_argument("--resume", action="store_true", help="continue from --checkpoint")
    parser.add_argument("--accumulate-steps", type=positive, default=1, metavar="N", help="micro-batches of a step")
    parser.add_argument("--sync-batch-norm", action="store_true", help="batch statistics of all processes together")
    parser.add_argument("--shard-optimizer", action="store_true", help="each process keeps a part of its state")
    parser.add_argument("--plot", type=pathlib.Path, metavar="PNG", help="draw the loss curve of this run")
    options = parser.parse_args(argv)
    if options.resume and options.checkpoint is None:
        parser.error("--resume needs --checkpoint FILE to continue from")
    shared = [options.accumulate_steps > 1, options.sync_batch_norm, options.shard_optimizer]
    if any(shared) and not distributed.is_launched():
        parser.error(
            "--accumulate-steps, --sync-batch-norm and --shard-optimizer are for processes that torchrun starts: "
            "torchrun --nproc-per-node N examples/train.py ..."
        )
    return options


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def chosen_place(name: str | None) -> Place:
    """Return where this process computes, after it has joined the others if torchrun has started several."""
    if distributed.is_launched():
        own_place = {None: None, "cpu": amp.CPUPlace(), "cuda": CUDAPlace(int(os.environ.get("LOCAL_RANK", "0")))}[name]
        return distributed.init_parallel_env(own_place).place
    wanted = {None: None, "cpu": amp.CPUPlace(), "cuda": CUDAPlace(0)}[name]
    return default_place() if wanted is None else wanted


def train(options: argparse.Namespace, console: Console) -> None:
    if options.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise EnvironmentProblem(f"--plot {options.plot} needs matplotlib: pip install 'amp-transpiler[plot]'")
    place = chosen_place(options.place)
    run = Run(options, place, console)
    precision = options.level if options.level in ("fp32", "O0") else f"{options.level} {options.dtype}"
    console.print(f"{options.onnx or options.model}, {precision}, {options.optimizer}, on {place}", highlight=False)
    if distributed.is_launched():
        ranks, steps = distributed.get_world_size(), options.accumulate_steps
        each = options.batch_size // ranks
        console.print(
            f"{ranks} ranks: global batch {options.batch_size} = {ranks} x {each}, accumulation steps: {steps}",
            highlight=False,
        )
    run.train()
    if distributed.get_rank():  # the first one tells
        return
    console.print(
        f"after {run.taken} steps, {run.log.skipped} of them skipped: {run.accuracy():.2%} of the digits held back",
        highlight=False,
    )
    if options.plot is not None and len(run.log):
        run.log.plot(options.plot, f"{options.onnx or options.model}, {precision}")
        console.print(f"loss curve: {options.plot}", highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    try:
        train(options, Console(quiet=os.environ.get("RANK", "0") != "0"))
    except AmpError as error:
        print(f"train: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
