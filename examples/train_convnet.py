#!/usr/bin/env python3
"""The experiment of AMD's blog "Automatic mixed precision in PyTorch using AMD GPUs", in fp32 and in mixed precision.

    python examples/train_convnet.py                     # on a GPU: 512 x 512, 256 channels; on a CPU: 64 x 64, 32
    python examples/train_convnet.py --dtype bfloat16 --out convnet.png
    python examples/train_convnet.py --amp paddle --level O2   # Paddle's rules and loss scaling instead of PyTorch's
    python examples/train_convnet.py --inference         # forward passes of the inference programs instead of training

A network of 1x1 convolutions, BatchNormalization and ReLU learns a quantised cosine over the coordinates of a picture:
MSE, Adam with rate 0.001, 512 steps. As in the blog, mixed precision is PyTorch's: the rules of `torch.autocast` and
the scale of `GradScaler`; and weights and biases start as PyTorch's do, uniform up to 1 / sqrt(inputs) on either side
of 0, the same both times. The script prints time, final loss and peak memory of each half, and the savings of mixed
precision. With --out it draws target, fp32 and AMP side by side (needs matplotlib: the extra `plot`).

Each training runs in its own process. Memory on CUDA: the increase of the memory in use on the device (ONNX Runtime's
arena does not give memory back). Memory on a CPU: the increase of the peak resident memory, compiling included. Two
more numbers are counted from the program by `amp_transpiler.runtime.liveness` and do not depend on the place: the bytes
that the forward pass keeps for the backward pass, and the most bytes that are alive at the same time.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import amp_transpiler as amp
from amp_transpiler import static
from amp_transpiler.errors import AmpError, EnvironmentProblem
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.nn.initializer import Uniform
from amp_transpiler.paddle.optimizer import Adam, Optimizer
from amp_transpiler.paddle.param_attr import ParamAttr
from amp_transpiler.paddle.static.amp import OptimizerWithMixedPrecision
from amp_transpiler.runtime.liveness import kept_bytes, live_bytes
from amp_transpiler.runtime.places import Place, default_place

HIDDEN_LAYERS, RATE, FREQUENCY, BINS = 2, 1e-3, (4, 2), 4
PICTURE = pathlib.Path("train_convnet.png")
EMULATED = (
    "This is a CPU: the low-precision program runs emulated, as a float32 program that rounds like a GPU.\n"
    "Its loss is worth reading; its time and memory say nothing about a GPU."
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """One experiment, as the command line gives it.

    Attributes:
        place: "cpu" or "cuda".
        size: pixels along each side.
        hidden: channels of the hidden layers.
        steps: training steps, or forward passes.
        amp: whose mixed precision the AMP half uses, "torch" or "paddle".
        level: Paddle's level for it; PyTorch has none.
        dtype: its format.
        inference: forward passes instead of training.
        seed: of the initial values.
    """

    place: str
    size: int
    hidden: int
    steps: int
    amp: str
    level: str
    dtype: str
    inference: bool
    seed: int

    def device(self) -> Place:
        return amp.CUDAPlace(0) if self.place == "cuda" else amp.CPUPlace()

    def mixed_precision(self) -> str:
        """Return the name of its mixed precision."""
        return "torch" if self.amp == "torch" else self.level

    def decorate(self, optimizer: Optimizer) -> OptimizerWithMixedPrecision:
        """Wrap an optimizer in its mixed precision."""
        if self.amp == "torch":
            return amp.decorate(optimizer, policy="torch", scaler="torch", dtype=self.dtype)
        return amp.decorate(optimizer, level=self.level, dtype=self.dtype)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The measurements of one half of the experiment.

    Attributes:
        first_seconds: of the first step, which compiles.
        seconds: of the other steps.
        peak: measured bytes; None if unknown.
        alive: the most bytes that the program keeps alive at the same time.
        kept: bytes that its forward pass keeps for the backward pass; 0 without one.
        loss: of the last step; None in inference.
    """

    first_seconds: float
    seconds: float
    peak: int | None
    alive: int
    kept: int
    loss: float | None


# ---- the problem ----
def grid(size: int) -> np.ndarray:
    """Return the coordinates of the pixels, from 0 to 1: float32 [1, 2, size, size]."""
    axis = np.linspace(0, 1, size, dtype=np.float32)
    return np.stack(np.meshgrid(axis, axis))[None]


def quantised_cosine(coordinates: np.ndarray) -> np.ndarray:
    """Return the target, two cosines in four steps from 0 to 1: float32 [1, 1, size, size]."""
    x, y = coordinates[0].astype(np.float64)
    waves = np.cos(x * FREQUENCY[0] * 2 * np.pi) + np.cos(y * FREQUENCY[1] * 2 * np.pi)
    steps = np.digitize(waves, np.linspace(waves.min(), waves.max(), BINS + 1)[:BINS])
    target: np.ndarray = ((steps - steps.min()) / (steps.max() - steps.min())).astype(np.float32)
    return target[None, None]


def network(size: int, hidden: int) -> tuple[static.Variable, static.Variable, static.Variable]:
    """Build the network in the current program; return its input, its prediction and the loss."""
    coordinates = static.data("coordinates", [1, 2, size, size])
    target = static.data("target", [1, 1, size, size])
    x = coordinates
    for _ in range(1 + HIDDEN_LAYERS):
        x = static.nn.batch_norm(convolution(x, hidden), act="relu")
    prediction = convolution(x, 1)
    return coordinates, prediction, functional.mse_loss(prediction, target)


def convolution(x: static.Variable, channels: int) -> static.Variable:
    """Append a 1x1 convolution whose weights and bias start as those of `torch.nn.Conv2d`."""
    limit = 1 / math.sqrt(x.shape[1])
    weight, bias = (ParamAttr(initializer=Uniform(-limit, limit)) for _ in range(2))
    return static.nn.conv2d(x, channels, 1, param_attr=weight, bias_attr=bias)


# ---- one half of the experiment, in a process of its own ----
def work(settings: Settings, low: bool, folder: pathlib.Path) -> None:
    """Run the fp32 or the AMP half; leave `outcome.json` and `prediction.npy` in `folder`."""
    place = settings.device()
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = settings.seed
    with static.program_guard(main, startup):
        coordinates, prediction, loss = network(settings.size, settings.hidden)
        test = main.clone(for_test=True)
        if not settings.inference or low:
            optimizer = Adam(RATE)
            if low:
                decorated = settings.decorate(optimizer)
                decorated.minimize(loss)
            else:
                optimizer.minimize(loss)
    before = place.memory_in_use()
    exe = static.Executor(place)
    exe.run(startup)
    if low:
        decorated.amp_init(place, test_program=test, use_fp16_test=True)
    if settings.inference:
        program, fetched = exported(exe, test, coordinates.name, prediction.name, folder)
    else:
        program, fetched = main, [prediction.name, loss.name]
    run = one_step(exe, program, fetched, settings)
    first_seconds, seconds, results = timed(run, settings.steps)
    peak = peak_since(place, before)
    arrays = [np.asarray(value.numpy() if hasattr(value, "numpy") else value) for value in results]
    np.save(folder / "prediction.npy", arrays[0].astype(np.float32))
    final = float(arrays[1].reshape(())) if len(arrays) > 1 else None
    outcome = Outcome(first_seconds, seconds, peak, live_bytes(program, fetched), kept_bytes(program, fetched), final)
    (folder / "outcome.json").write_text(json.dumps(dataclasses.asdict(outcome)))


def one_step(
    exe: static.Executor, program: static.Program, fetch: Sequence[str], settings: Settings
) -> Callable[[bool], list[Any]]:
    """Return a function that runs the program once; what it fetches stays on the device unless asked for."""
    coordinates = grid(settings.size)
    feed = {"coordinates": coordinates}
    if not settings.inference:
        feed["target"] = quantised_cosine(coordinates)
    return lambda wanted: exe.run(program, feed, fetch, return_numpy=wanted)


def exported(
    exe: static.Executor, test: static.Program, feed: str, fetch: str, folder: pathlib.Path
) -> tuple[static.Program, list[str]]:
    """Write the test program as an ONNX model; return what was written, and the names of its outputs."""
    static.save_inference_model(folder / "model", test.var(feed), test.var(fetch), exe, program=test)
    loaded, _, fetched = static.load_inference_model(folder / "model", exe)
    return loaded, [variable.name for variable in fetched]


def timed(run: Callable[[bool], list[Any]], steps: int) -> tuple[float, float, list[Any]]:
    """Take the steps; return seconds of the first, which compiles, and of the others, and the last one's results."""
    start = time.perf_counter()
    results = run(True)
    middle = time.perf_counter()
    for index in range(1, steps):
        results = run(index == steps - 1)  # reading the last result waits for the device
    return middle - start, time.perf_counter() - middle, results


def peak_since(place: Place, before: int | None) -> int | None:
    after = place.peak_memory()
    return None if before is None or after is None else max(0, after - before)


# ---- both halves, and what to say of them ----
def in_child(settings: Settings, half: str, folder: pathlib.Path) -> Outcome:
    """Run one half in a process of its own.

    Raises:
        RuntimeError: it failed; its own message stands on stderr.
    """
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(dataclasses.asdict(settings)))
    child = subprocess.run([sys.executable, __file__, "--worker", half, str(folder)], check=False)
    if child.returncode:
        raise RuntimeError(f"the {half} half failed with exit status {child.returncode}; its message stands above")
    return Outcome(**json.loads((folder / "outcome.json").read_text()))


def describe(label: str, outcome: Outcome, settings: Settings) -> str:
    what = "passes" if settings.inference else "steps"
    first = f"the first one before them, with compiling, {outcome.first_seconds:.2f} s"
    lines = [f"{label}:", f"  Time of {settings.steps - 1} {what}: {outcome.seconds:.4f} s ({first})"]
    if outcome.loss is not None:
        lines.append(f"  Final loss: {outcome.loss:.4g}")
    lines.append(f"  Peak {memory_name(settings)}: {'not known' if outcome.peak is None else megabytes(outcome.peak)}")
    kept_bytes = f"{megabytes(outcome.kept)} kept for the backward pass, " if outcome.kept else ""
    lines.append(f"  Counted from the program: {kept_bytes}{megabytes(outcome.alive)} alive at most")
    return "\n".join(lines)


def memory_name(settings: Settings) -> str:
    return "device memory" if settings.place == "cuda" else "resident memory of the process"


def megabytes(count: int) -> str:
    return f"{count / 2**20:.1f} MB"


def saved(before: float | None, after: float | None) -> str:
    return f"{(1 - after / before) * 100:.2f}%" if before and after is not None else "not known"


def draw(target: np.ndarray, predictions: dict[str, np.ndarray], path: pathlib.Path) -> None:
    """Draw target and predictions side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * (1 + len(predictions)), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    pictures = {"Target": target, **predictions}
    for axes, (title, picture) in zip(figure.subplots(1, len(pictures)), pictures.items(), strict=True):
        axes.imshow(picture.squeeze(), vmin=0, vmax=1)
        axes.set_title(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def compare(settings: Settings, picture: pathlib.Path | None) -> None:
    """Run both halves one after the other, print what they took, and draw what they learnt."""
    names = {"fp32": "fp32", "amp": f"AMP ({settings.mixed_precision()}, {settings.dtype})"}
    kind = "inference" if settings.inference else "training"
    print(f"{settings.size} x {settings.size} pixels, {settings.hidden} channels, on {settings.device()}")
    if settings.place == "cpu":
        print(EMULATED)
    coordinates = grid(settings.size)
    print(f"Input shape: {list(coordinates.shape)}\nTarget shape: {list(quantised_cosine(coordinates).shape)}")
    outcomes, predictions = {}, {}
    with tempfile.TemporaryDirectory(prefix="train-convnet-") as name:
        for half, label in names.items():
            folder = pathlib.Path(name) / half
            outcomes[half] = in_child(settings, half, folder)
            predictions[label] = np.load(folder / "prediction.npy")
            print(f"\n{describe(f'{label} {kind}', outcomes[half], settings)}", flush=True)
    plain, low = outcomes["fp32"], outcomes["amp"]
    print(f"\nTime saved: {saved(plain.seconds, low.seconds)}")
    print(f"Memory saved: {saved(plain.peak, low.peak)}")
    if not settings.inference:
        print(f"Saved of what is kept for the backward pass: {saved(plain.kept, low.kept)}")
    print(f"Saved of what is alive at most: {saved(plain.alive, low.alive)}")
    if picture is not None:
        draw(quantised_cosine(grid(settings.size)), predictions, picture)
        print(f"Target and predictions: {picture}")


# ---- the command line ----
def arguments(argv: Sequence[str] | None) -> tuple[Settings, pathlib.Path | None]:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", choices=("cpu", "cuda"), help="default: cuda where a device answers")
    parser.add_argument("--size", type=positive, help="pixels along each side; default: 64 on a CPU, 512 on CUDA")
    parser.add_argument("--hidden", type=positive, help="channels; default: 32 on a CPU, 256 on CUDA")
    parser.add_argument("--steps", type=positive, default=512, help="default: 512; at least 2")
    parser.add_argument(
        "--amp",
        choices=("torch", "paddle"),
        default="torch",
        help="whose mixed precision; default: torch, as in the blog",
    )
    parser.add_argument("--level", choices=("O1", "O2"), help="Paddle's level; default: O1; PyTorch has no levels")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16", help="default: float16")
    parser.add_argument("--seed", type=int, default=1, help="of the initial values; default: 1")
    parser.add_argument("--inference", action="store_true", help="forward passes in inference form; no picture")
    parser.add_argument("--out", type=pathlib.Path, metavar="PNG", help=f"the picture; default: {PICTURE}")
    parsed = parser.parse_args(argv)
    if parsed.amp == "torch" and parsed.level is not None:
        parser.error("--level is Paddle's: give --amp paddle with it")
    place = parsed.place or default_place().device
    small = place == "cpu"
    settings = Settings(
        place=place,
        size=max(2, parsed.size or (64 if small else 512)),
        hidden=parsed.hidden or (32 if small else 256),
        steps=max(2, parsed.steps),
        amp=parsed.amp,
        level=parsed.level or "O1",
        dtype=parsed.dtype,
        inference=parsed.inference,
        seed=parsed.seed,
    )
    return settings, picture_path(parsed.out, settings.inference)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def picture_path(asked: pathlib.Path | None, inference: bool) -> pathlib.Path | None:
    """Return where to draw; None, said aloud, where that is not possible and was not asked for."""
    if inference:
        return None
    if importlib.util.find_spec("matplotlib") is None:
        missing = "matplotlib is not installed: pip install 'amp-transpiler[plot]'"
        if asked is not None:
            raise EnvironmentProblem(f"--out {asked}: {missing}")
        print(f"no picture will be drawn: {missing}")
        return None
    return asked or PICTURE


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] == ["--worker"]:
            folder = pathlib.Path(argv[2])
            work(Settings(**json.loads((folder / "settings.json").read_text())), argv[1] == "amp", folder)
        else:
            compare(*arguments(argv))
    except (AmpError, RuntimeError, OSError) as error:
        print(f"train_convnet: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
