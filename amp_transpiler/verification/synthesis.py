"""Made-up inputs for a model that comes without any.

`graph.input_roles` guesses what each input means, `graph.input_sizes` its size. Here the values are drawn, and the
first guess that the model accepts is taken.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.child_process.child import TIMED_OUT, RuntimeCrash
from amp_transpiler.errors import visible
from amp_transpiler.graph.input_roles import CannotSynthesise, ModelInput, image_layout
from amp_transpiler.graph.input_sizes import Guess, Shape, guesses, sequence_length, shapes
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.verification.made_up_signals import drawing, picture, sound

__all__ = ["MOST_FURTHER", "CannotSynthesise", "further_samples", "synthesise_inputs"]

_MOST_ELEMENTS = 1 << 25  # larger guesses are skipped: a model may square the length of a long sequence

_MOST_DIMENSIONS = 64  # numpy has no more
_MOST_CRASHES = 4  # of ONNX Runtime, before no other guess is tried

_SIGNALS = ("image", "sound", "numbers", "activation")
_SCALES = (0.1, 3.0)  # of further made-up samples: ranges of real data are not known
MOST_FURTHER = len(_SCALES)
"""How many further samples there are at most."""

_CONSTANTS = {
    "one": 1.0,
    "zero": 0.0,
    "state": 0.0,
    "training": 0.0,
    "half": 0.5,
    "rate": 16000.0,
    "lowest_frequency": 50.0,
    "highest_frequency": 2000.0,
    "timestep": 10.0,
}


def synthesise_inputs(
    model: ir.Model,
    run: Callable[[dict[str, np.ndarray]], object],
    seed: int = 0,
    *,
    drawn: bool = False,
    scale: float = 1.0,
) -> dict[str, np.ndarray]:
    """Return plausible inputs that `run` accepts.

    Args:
        model: the model to feed; only its inputs and their readers matter.
        run: tries inputs; any exception means that they do not fit, and the next guess is tried.
        seed: of the random numbers; equal seeds give equal inputs.
        drawn: images are strokes on a page, not like photographs.
        scale: float images, sounds and other signals are multiplied by it.

    Returns:
        Input name -> array. An input that is also an initializer keeps its default and is left out.

    Raises:
        CannotSynthesise: an input is not a tensor, or no guess was accepted; the message quotes the last error.
    """
    inputs = [ModelInput.of(value) for value in model.graph.inputs if not value.is_initializer()]
    tried: set[tuple[object, ...]] = set()
    last: Exception | None = None
    crashes: list[RuntimeCrash] = []
    for guess in guesses(inputs):
        shape_of = shapes(inputs, guess)
        if tried and sum(map(math.prod, shape_of.values())) > _MOST_ELEMENTS:
            continue
        attempt = (tuple(shape_of.values()), tuple(_id_bound(i, guess) for i in inputs if i.role == "ids"))
        if attempt in tried:
            continue
        tried.add(attempt)
        feeds = _feeds(inputs, shape_of, guess, seed, drawn=drawn, scale=scale)
        try:
            run(feeds)
        except Exception as error:  # noqa: BLE001  any failure of the model means that this guess does not fit
            last = error
            if isinstance(error, RuntimeCrash):
                crashes.append(error)
                if len(crashes) == _MOST_CRASHES or error.signal == TIMED_OUT:
                    break  # each costs a new process, or all of the time limit
            continue
        return feeds
    assert last is not None  # there is at least one guess
    reason = error_text(crashes[-1] if crashes else last, limit=200)
    raise CannotSynthesise(f"{len(tried)} guesses of sizes and values were refused, the last with: {reason}")


def further_samples(
    model: ir.Model,
    run: Callable[[dict[str, np.ndarray]], object],
    count: int = MOST_FURTHER,
    *,
    drawn: bool = False,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield plausible samples of other numbers and scales than that of `synthesise_inputs`.

    Args:
        model: as for `synthesise_inputs`.
        run: likewise. Samples that the model refuses are left out.
        count: how many, `MOST_FURTHER` at most; those of large numbers, which may overflow, first of all.
        drawn: likewise.
    """
    for seed, scale in list(enumerate(_SCALES, 1))[len(_SCALES) - count :]:
        with contextlib.suppress(CannotSynthesise):
            yield synthesise_inputs(model, run, seed, drawn=drawn, scale=scale)


def _feeds(
    inputs: Sequence[ModelInput],
    shape_of: dict[str, Shape],
    guess: Guess,
    seed: int,
    *,
    drawn: bool,
    scale: float,
) -> dict[str, np.ndarray]:
    length = sequence_length(inputs, shape_of, guess)
    feeds = {}
    for info in inputs:
        if len(shape_of[info.name]) > _MOST_DIMENSIONS or math.prod(shape_of[info.name]) > _MOST_ELEMENTS:
            raise CannotSynthesise(
                f"input '{visible(info.name, 60)}' of shape {visible(str(list(shape_of[info.name])), 60)} is too large "
                f"to be made up: at most {_MOST_ELEMENTS} elements are"
            )
        # Seeded by name, so that an input keeps its values when others are added or removed.
        rng = np.random.default_rng([seed, *info.name.encode()])
        values = _values(info, shape_of[info.name], guess, length, rng, drawn=drawn)
        feeds[info.name] = values * info.dtype.type(scale) if _is_signal(info) else values
    return feeds


def _is_signal(info: ModelInput) -> bool:
    return info.role in _SIGNALS and info.dtype.kind == "f"


def _values(
    info: ModelInput, shape: Shape, guess: Guess, length: int, rng: np.random.Generator, *, drawn: bool
) -> np.ndarray:
    if info.role == "text":
        return np.full(shape, "hello world", dtype=object)
    if info.role in _CONSTANTS:
        values = np.full(shape, _CONSTANTS[info.role])
    elif info.role == "length":
        values = np.full(shape, length)
    elif info.role == "position":
        values = np.broadcast_to(np.arange(shape[-1]), shape)
    elif info.role == "ids":
        values = _ids(info, shape, guess, rng)
    else:
        values = _signal(info, shape, rng, drawn=drawn)
    return np.asarray(values).astype(info.dtype)


def _ids(info: ModelInput, shape: Shape, guess: Guess, rng: np.random.Generator) -> np.ndarray:
    largest = int(ir.DataType.from_numpy(info.dtype).max)
    bound = min(_id_bound(info, guess), largest + 1)
    # Without zero where possible: models take it for padding, which they may ignore.
    return rng.integers(1 if bound > 2 else 0, bound, shape)


def _id_bound(info: ModelInput, guess: Guess) -> int:
    return info.table if info.table is not None else guess.ids


def _signal(info: ModelInput, shape: Shape, rng: np.random.Generator, *, drawn: bool) -> np.ndarray:
    """Return an image, a sound, or normally distributed numbers."""
    layout = image_layout(info.dims if info.dims is not None else shape)
    if info.role == "image" or (info.role == "bytes" and layout):
        pixels = (drawing if drawn else picture)(shape, rng, channels_last=layout == "NHWC")
        return pixels * 255.0 if info.role == "bytes" else pixels
    if info.role == "bytes":
        return rng.integers(0, 256, shape)
    if info.role == "sound":
        return sound(shape, rng)
    if info.dtype.kind == "c":
        return 0.5 * (rng.standard_normal(shape) + 1j * rng.standard_normal(shape))
    return 0.5 * rng.standard_normal(shape)
