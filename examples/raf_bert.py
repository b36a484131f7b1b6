#!/usr/bin/env python3
"""The experiment of RAF's "Automatic Mixed Precision (AMP)": training steps of a one-layer BERT, fp32 and autocast.

    python examples/raf_bert.py                               # as in the document; on CUDA where a device answers
    python examples/raf_bert.py --dtype bfloat16
    python examples/raf_bert.py --tiny                        # sizes that take seconds anywhere
    python examples/raf_bert.py --count                       # only counts what is alive, at Paddle's levels too

As in the document: bert-base-uncased as transformers builds it, with its masked-language-model head (dense, gelu,
LayerNorm, and a decoder that shares the word embeddings) and one layer: 31547706 parameters, the document's 120.34 MB.
Batch 8, sequence 128, random tokens below 10000 and a random label for every position; the mean negative log likelihood
of the labels; SGD with rate 0.1. No attention mask and no dropout: RAF traces the model in
evaluation form. Everything, optimizer included, is one program, and `amp.autocast` makes the other one from it. 5
warm-up steps, then 10 timed ones.

Different: the gradient of the loss is 1, where the document feeds a random number. The velocity that RAF's
`append_loss_n_optimizer` keeps (momentum 0.01, which the document does not mention) is added by --momentum 0.01.

"ms": the mean of a step, the executor's work included. "MBs", of 2**20 bytes: parameters and everything else that a
step needs, measured. Each half runs in its own process. On CUDA it is the increase of the device's memory in use since
before the parameters were created; ONNX Runtime's arena grows in large pieces and does not give memory back, so
differences are coarse. On a CPU it is the increase of the peak resident memory, compiling included. RAF's document
estimates from the program how much is alive at the same time. "alive" is this number: parameters, and all results from
their node to their last reader (`amp_transpiler.runtime.liveness`). It does not depend on the place.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

import amp_transpiler as amp
from amp_transpiler import static
from amp_transpiler.errors import AmpError
from amp_transpiler.runtime.liveness import live_bytes
from amp_transpiler.runtime.places import Place, default_place, to_host
from bert_program import BertConfig, TrainingStep, training_step

HIGHEST_TOKEN = 10000  # the document draws tokens below it, whatever the vocabulary
HALVES = {"fp32": "FP32", "amp": "AMP"}
BASE = {"batch": 8, "sequence": 128, "layers": 1, "hidden": 768, "heads": 12, "intermediate": 3072, "vocabulary": 30522}
TINY = {"batch": 2, "sequence": 16, "layers": 1, "hidden": 32, "heads": 2, "intermediate": 64, "vocabulary": 128}
EMULATED = (
    "This is a CPU: the AMP program runs emulated, as a float32 program that rounds like a GPU.\n"
    "Its loss is worth reading; its time and measured memory say nothing about a GPU."
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """One experiment, as the command line gives it.

    Attributes:
        place: "cpu" or "cuda".
        dtype: "float16" or "bfloat16".
        batch: sequences a step.
        sequence: tokens of each.
        layers: of the encoder.
        hidden: features of a token.
        heads: of each attention.
        intermediate: features between the linear layers behind an attention.
        vocabulary: how many tokens there are.
        rate: learning rate.
        momentum: 0 for none.
        warmup: steps before those that are timed.
        number: steps that are timed.
        seed: of initial values, tokens and labels.
    """

    place: str
    dtype: str
    batch: int
    sequence: int
    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    rate: float
    momentum: float
    warmup: int
    number: int
    seed: int

    def device(self) -> Place:
        return amp.CUDAPlace(0) if self.place == "cuda" else amp.CPUPlace()

    def bert(self) -> BertConfig:
        return BertConfig(
            vocabulary=self.vocabulary,
            hidden=self.hidden,
            layers=self.layers,
            heads=self.heads,
            intermediate=self.intermediate,
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The measurements of one half.

    Attributes:
        milliseconds: of a step.
        peak: measured bytes; None if unknown.
        alive: the most bytes that the program keeps alive at the same time.
        loss: of the last step.
    """

    milliseconds: float
    peak: int | None
    alive: int
    loss: float


# ---- one half of the experiment, in a process of its own ----
def work(settings: Settings, half: str) -> Outcome:
    """Train the fp32 or the AMP program and measure."""
    place = settings.device()
    step = training_step(
        settings.bert(),
        settings.batch,
        settings.sequence,
        rate=settings.rate,
        momentum=settings.momentum,
        seed=settings.seed,
    )
    program = step.main if half == "fp32" else amp.autocast(step.main, dtype=settings.dtype)
    before = place.memory_in_use()
    milliseconds, loss = profile(program, step, random_feed(settings), settings)
    after = place.peak_memory()
    peak = None if before is None or after is None else max(0, after - before)
    return Outcome(milliseconds, peak, most_alive(program, step.loss.name), loss)


def profile(
    program: static.Program, step: TrainingStep, feed: Mapping[str, np.ndarray], settings: Settings
) -> tuple[float, float]:
    """Take the steps; return milliseconds of one, the warm-up left out, and the last loss."""
    executor = static.Executor(settings.device())
    executor.run(step.startup)
    for _ in range(settings.warmup):
        executor.run(program, feed, [step.loss.name], return_numpy=False)
    start = time.perf_counter()
    for _ in range(settings.number):  # a run returns when the device has done it
        (loss,) = executor.run(program, feed, [step.loss.name], return_numpy=False)
    seconds = time.perf_counter() - start
    return seconds / settings.number * 1e3, float(to_host(loss).reshape(()))


def most_alive(program: static.Program, loss: str) -> int:
    """Return the most bytes alive at the same time in a step, as it would run on CUDA.

    Raises:
        InputError: a result has no known shape.
    """
    return live_bytes(program, [loss])


def random_feed(settings: Settings) -> dict[str, np.ndarray]:
    """Return random tokens, and a random label for each."""
    random = np.random.default_rng(settings.seed)
    shape = (settings.batch, settings.sequence)
    return {
        "input_ids": random.integers(0, min(HIGHEST_TOKEN, settings.vocabulary), shape, np.int64),
        "labels": random.integers(0, settings.vocabulary, shape, np.int64),
    }


def counted(settings: Settings) -> dict[str, int]:
    """Return the most bytes alive at the same time: in float32, with autocast, and at two of Paddle's levels."""

    def step(level: str | None = None) -> TrainingStep:
        return training_step(
            settings.bert(),
            settings.batch,
            settings.sequence,
            momentum=settings.momentum,
            wrap=None if level is None else lambda inner: amp.decorate(inner, level=level, dtype=settings.dtype),
        )

    plain = step()
    low = amp.autocast(plain.main, dtype=settings.dtype)
    alive_bytes = {"FP32": most_alive(plain.main, plain.loss.name), "AMP": most_alive(low, plain.loss.name)}
    for level in ("O1", "O2"):
        at_level = step(level)
        alive_bytes[level] = most_alive(at_level.main, at_level.loss.name)
    return alive_bytes


# ---- both halves, and what to say of them ----
def in_child(settings: Settings, half: str, folder: pathlib.Path) -> Outcome:
    """Run one half in a process of its own.

    Raises:
        RuntimeError: it failed; its own message stands on stderr.
    """
    asked, answer = folder / "settings.json", folder / f"{half}.json"
    asked.write_text(json.dumps(dataclasses.asdict(settings)))
    child = subprocess.run([sys.executable, __file__, "--worker", half, asked, answer], check=False)
    if child.returncode:
        raise RuntimeError(f"the {half} half failed with exit status {child.returncode}; its message stands above")
    return Outcome(**json.loads(answer.read_text()))


def compare(settings: Settings) -> None:
    """Run one half after the other; print the document's four lines, the place, and what the losses were."""
    losses, alive = [], []
    with tempfile.TemporaryDirectory(prefix="raf-bert-") as folder:
        for half, label in HALVES.items():
            outcome = in_child(settings, half, pathlib.Path(folder))
            megabytes = "not known" if outcome.peak is None else outcome.peak / 2**20
            print(f"{label} (ms): {outcome.milliseconds}\n{label} (MBs): {megabytes}", flush=True)
            losses.append(f"{label} {outcome.loss:.6g}")
            alive.append(f"{label} {outcome.alive / 2**20:.2f} MBs")
    print(f"Place: {settings.device()}")
    print(f"Loss of step {settings.warmup + settings.number}: {', '.join(losses)} ({settings.dtype})")
    print(f"Alive at the same time, as RAF estimates it: {', '.join(alive)}")
    if settings.place == "cpu":
        print(EMULATED)


def count(settings: Settings) -> None:
    """Print what is alive at the same time in every precision."""
    alive_bytes = counted(settings)
    for label, alive in alive_bytes.items():
        print(f"{label}: {alive / 2**20:.0f} MB, {100 * alive / alive_bytes['FP32']:.0f} %")


# ---- the command line ----
def arguments(argv: Sequence[str] | None) -> Settings:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16", help="default: float16")
    parser.add_argument("--place", choices=("cpu", "cuda"), help="default: cuda where a device answers")
    parser.add_argument("--tiny", action="store_true", help="other defaults for the sizes that follow")
    for name, size in BASE.items():
        parser.add_argument(f"--{name}", type=at_least(1), help=f"default: {size}, tiny: {TINY[name]}")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate; default: 0.1")
    parser.add_argument("--momentum", type=float, default=0.0, help="default: 0, plain SGD")
    parser.add_argument("--warmup", type=at_least(0), default=5, help="steps that are not timed; default: 5")
    parser.add_argument("--number", type=at_least(1), default=10, help="steps that are timed; default: 10")
    parser.add_argument("--seed", type=int, default=1, help="of initial values and data; default: 1")
    parser.add_argument("--count", action="store_true", help="only count what is alive, for every precision")
    values = vars(parser.parse_args(argv))
    values.pop("count")
    preset = TINY if values.pop("tiny") else BASE
    values |= {name: preset[name] for name in preset if values[name] is None}
    values["place"] = values["place"] or default_place().device
    settings = Settings(**values)
    if fault := settings.bert().fault(settings.sequence):
        parser.error(fault)
    return settings


def at_least(least: int) -> Callable[[str], int]:
    """Return what reads an integer of `least` or more."""

    def integer(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more, got {number}")
        return number

    return integer


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] == ["--worker"]:
            half, asked, answer = argv[1], pathlib.Path(argv[2]), pathlib.Path(argv[3])
            outcome = work(Settings(**json.loads(asked.read_text())), half)
            answer.write_text(json.dumps(dataclasses.asdict(outcome)))
        elif "--count" in argv:
            count(arguments([argument for argument in argv if argument != "--count"]))
        else:
            compare(arguments(argv))
    except (AmpError, RuntimeError, OSError) as error:
        print(f"raf_bert: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
