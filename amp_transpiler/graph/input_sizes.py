"""Sizes for the open dimensions of a model's inputs: a short list of guesses, one size for each symbol."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from amp_transpiler.graph.input_roles import Dims, ModelInput, image_layout

__all__ = ["Guess", "Shape", "guesses", "sequence_length", "shapes"]

Shape = tuple[int, ...]

_BATCH = re.compile(r"batch|^n$|^b$", re.IGNORECASE)
_PAST = re.compile(r"past|cache", re.IGNORECASE)
_HEIGHT = re.compile(r"height|^h$|rows", re.IGNORECASE)
_WIDTH = re.compile(r"width|^w$|col", re.IGNORECASE)
_SEQUENCE = re.compile(r"seq|len|time|frames|samples", re.IGNORECASE)

# (height and width of an image, length of a sequence), the most likely first.
_SIZES = (
    ((224, 224), 32),
    ((320, 320), 64),
    ((640, 640), 16),
    ((48, 320), 576),
    ((224, 224), 512),
    ((224, 224), 1600),
    ((224, 224), 16000),
    ((64, 64), 128),
    ((32, 32), 1),
)
_ONE_SECOND = ((224, 224), 16000)  # of sound at 16 kHz


@dataclasses.dataclass(frozen=True, slots=True)
class Guess:
    """Sizes for all that the model leaves open.

    Attributes:
        image: height and width.
        sequence: length of a sequence: tokens, frames or audio samples.
        batch: size of a batch.
        channels: of an image.
        ids: integers without a table of known size are below this.
        rank: of an input whose rank is unknown.
        inner_n: `N` and `B` mean a batch in an inner dimension, too.
    """

    image: tuple[int, int] = (224, 224)
    sequence: int = 32
    batch: int = 1
    channels: int = 3
    ids: int = 20
    rank: int = 2
    inner_n: bool = True


def guesses(inputs: Sequence[ModelInput]) -> Iterator[Guess]:
    """Yield guesses, the most likely first. Sizes change fastest, then the bound of ids, then the rare cases."""
    sizes = list(_SIZES)
    if any(info.role == "sound" and info.dims and not isinstance(info.dims[-1], int) for info in inputs):
        sizes.insert(0, _ONE_SECOND)
    ranks = (2, 4, 3, 1, 0) if any(info.dims is None for info in inputs) else (2,)
    for rank in ranks:
        for image, sequence in sizes:
            yield Guess(image, sequence, rank=rank)
    for image, sequence in sizes[:4]:
        for ids in (5, 2, 1):
            yield Guess(image, sequence, ids=ids)
    for image, sequence in sizes[:5]:
        yield Guess(image, sequence, channels=1)
        yield Guess(image, sequence, batch=2)
    yield Guess(batch=2, ids=2)
    for image, sequence in sizes[:3]:
        yield Guess(image, sequence, inner_n=False)


def shapes(inputs: Sequence[ModelInput], guess: Guess, symbols: dict[str, int] | None = None) -> dict[str, Shape]:
    """Return the shape of every input by name. A symbol has the same size wherever it occurs.

    Args:
        inputs: the inputs.
        guess: sizes for what is open.
        symbols: sizes that are given, by symbol; those of other symbols are added to it.
    """
    symbols = {} if symbols is None else symbols
    shapes_by_name = {}
    for info in inputs:
        dims = info.dims if info.dims is not None else (None,) * guess.rank
        shapes_by_name[info.name] = tuple(_size(_Axis(info, dims, axis), guess, symbols) for axis in range(len(dims)))
    return shapes_by_name


@dataclasses.dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of an input with dimensions `dims`."""

    input: ModelInput
    dims: Dims
    index: int


def _size(axis: _Axis, guess: Guess, symbols: dict[str, int]) -> int:
    dim = axis.dims[axis.index]
    if isinstance(dim, int):
        return dim
    if dim is None:
        return _open_size(axis, guess)
    if "+" in dim and dim not in symbols:  # exporters write sums such as `past_sequence_length + sequence_length`
        parts = [part.strip() for part in dim.split("+")]
        return sum(int(part) if part.isdigit() else _symbol_size(part, axis, guess, symbols) for part in parts)
    return _symbol_size(dim, axis, guess, symbols)


def _symbol_size(symbol: str, axis: _Axis, guess: Guess, symbols: dict[str, int]) -> int:
    if symbol not in symbols:
        means_nothing = axis.index > 0 and len(symbol) == 1 and not guess.inner_n
        symbols[symbol] = (None if means_nothing else _named_size(symbol, guess)) or _open_size(axis, guess)
    return symbols[symbol]


def _named_size(symbol: str, guess: Guess) -> int | None:
    """Return the size that the name of a symbol suggests, or None."""
    if _BATCH.search(symbol):
        return guess.batch
    if _HEIGHT.search(symbol):
        return guess.image[0]
    if _WIDTH.search(symbol):
        return guess.image[1]
    if _PAST.search(symbol):
        return 1
    return guess.sequence if _SEQUENCE.search(symbol) else None


def _open_size(axis: _Axis, guess: Guess) -> int:
    """Return the size of a dimension whose name says nothing."""
    rank, index, role = len(axis.dims), axis.index, axis.input.role
    if index == 0 and rank > 1:
        return guess.batch
    if role == "state":  # of a recurrent network: layers, batch, width; of attention: batch, heads, past, width
        return 1 if rank > 3 else guess.batch
    if rank == 4 and role in ("image", "bytes", "numbers"):
        letter = (image_layout(axis.dims) or "NCHW")[index]
        return {"H": guess.image[0], "W": guess.image[1], "C": guess.channels}[letter]
    if rank == 5:  # a short video of small frames
        return 8 if index < 3 else min(guess.image[index - 3], 64)
    if rank == 1 and role in ("length", "rate", "timestep", "half", "one"):
        return guess.batch
    return guess.sequence


def sequence_length(inputs: Sequence[ModelInput], shapes_by_name: dict[str, Shape], guess: Guess) -> int:
    """Return the value for inputs that tell a length: the second dimension of the first input with a sequence."""
    for info in inputs:
        shape = shapes_by_name[info.name]
        if len(shape) in (2, 3) and info.role not in ("state", "length"):
            return shape[1]
    return guess.sequence
