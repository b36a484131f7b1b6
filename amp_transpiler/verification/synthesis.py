"""Made-up inputs for a model that nobody gave inputs for.

Sizes come from a short list of guesses, the same symbol always getting the same size; values come from what an input
seems to mean, by its type, rank and name. The first guess that the model accepts is taken.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import AmpError
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.verification.signals import drawing, picture, sound
from amp_transpiler.verification.tables import table_size

__all__ = ["CannotSynthesise", "synthesise_inputs"]

Shape = tuple[int, ...]

_MOST_ELEMENTS = 1 << 25  # guesses beyond that are skipped: a long sequence squared, for example


class CannotSynthesise(AmpError):
    """No made-up inputs are accepted by the model; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Guess:
    """Sizes for whatever the model leaves open.

    Attributes:
        image: height and width.
        sequence: length of a sequence: tokens, frames or audio samples.
        batch: size of a batch.
        channels: of an image.
        ids: integers without a table of known size are below this.
        rank: of an input whose rank is unknown.
        drawn: pictures are strokes on a page, not like photographs.
    """

    image: tuple[int, int] = (224, 224)
    sequence: int = 32
    batch: int = 1
    channels: int = 3
    ids: int = 20
    rank: int = 2
    drawn: bool = False


def synthesise_inputs(
    model: ir.Model, run: Callable[[dict[str, np.ndarray]], object], seed: int = 0, *, drawn: bool = False
) -> dict[str, np.ndarray]:
    """Return plausible inputs that `run` accepts.

    Args:
        model: the model to feed; only its inputs and what reads them is looked at.
        run: tries inputs; whatever it raises means that they do not fit, and the next guess is tried.
        seed: of the random numbers; equal seeds give equal inputs.
        drawn: pictures are strokes on a page, not like photographs.

    Returns:
        Input name -> array. Inputs that are initializers, too, keep their default and are left out.

    Raises:
        CannotSynthesise: an input is no tensor, or no guess was accepted; the message quotes the last error.
    """
    inputs = [_Input.of(value) for value in model.graph.inputs if not value.is_initializer()]
    tried: set[tuple[object, ...]] = set()
    last: Exception | None = None
    for sizes in _guesses(inputs):
        guess = dataclasses.replace(sizes, drawn=drawn)
        shapes = _shapes(inputs, guess)
        elements = sum(math.prod(shape) for shape in shapes.values())
        if tried and elements > _MOST_ELEMENTS:
            continue
        attempt = (tuple(shapes.values()), tuple(_bound(i, guess) for i in inputs if i.role == "ids"))
        if attempt in tried:
            continue
        tried.add(attempt)
        length = _sequence_length(inputs, shapes, guess)
        feeds = {i.name: _values(i, shapes[i.name], guess, length, _generator(seed, i)) for i in inputs}
        try:
            run(feeds)
        except Exception as error:  # noqa: BLE001  any failure of the model means that this guess does not fit
            last = error
            continue
        return feeds
    assert last is not None  # there is at least one guess
    reason = error_text(last, limit=200)
    raise CannotSynthesise(f"{len(tried)} guesses of sizes and values were refused, the last with: {reason}")


def _generator(seed: int, info: _Input) -> np.random.Generator:
    """Return random numbers that hang on the input's name but not on what other inputs there are."""
    return np.random.default_rng([seed, *info.name.encode()])


# ---- what an input means ----

# The first row that matches gives the role: a pattern of the name, the kinds of element type, the ranks.
_FLOAT, _INT, _BOOL = "f", "iu", "b"
_ANY_RANK = range(99)
_ROLES: tuple[tuple[str, str, str, range], ...] = (
    ("training", r"train", _BOOL, _ANY_RANK),
    ("one", r"", _BOOL, _ANY_RANK),
    ("one", r"mask|valid", _FLOAT + _INT, _ANY_RANK),
    ("rate", r"^sr$|sampl\w*_?rate|(^|_)rate$", _FLOAT + _INT, range(2)),
    ("lowest_frequency", r"f_?min|min_?freq|low_?freq", _FLOAT, range(2)),
    ("highest_frequency", r"f_?max|max_?freq|high_?freq", _FLOAT, range(2)),
    ("half", r"thres|score|iou|conf|guidance|strength", _FLOAT, range(2)),
    ("one", r"scale|temperature|speed|ratio", _FLOAT, range(2)),
    ("timestep", r"time_?step|^t$|sigma", _FLOAT + _INT, range(2)),
    ("length", r"len(gth)?s?($|_)|seq_?lens?$|num_?(frames|tokens|samples)", _INT, range(3)),
    ("zero", r"type|segment", _INT, _ANY_RANK),
    ("position", r"position|pos_?ids?$|cache_position", _INT, range(1, 4)),
    ("activation", r"encoder|hidden_states|last_hidden|embed", _FLOAT, range(1, 99)),
    ("state", r"(^|[_.])(h|c|hn|cn)[_.]?[0-9]*($|[_.:])|state|cache|hidden|past|carry", _FLOAT, _ANY_RANK),
    ("half", r"", _FLOAT, range(1)),
    ("ids", r"", _INT, _ANY_RANK),
)
_AUDIO = re.compile(r"audio|wav|speech|sound|pcm|signal|samples|input_values", re.IGNORECASE)
_BATCH = re.compile(r"batch|^n$|^b$", re.IGNORECASE)
_PAST = re.compile(r"past|cache", re.IGNORECASE)
_HEIGHT = re.compile(r"height|^h$|rows", re.IGNORECASE)
_WIDTH = re.compile(r"width|^w$|col", re.IGNORECASE)
_CHANNELS = (1, 3, 4)
_SHORTEST_SOUND = 256


@dataclasses.dataclass(frozen=True, slots=True)
class _Input:
    """An input of the model.

    Attributes:
        name: its name.
        dtype: its element type.
        dims: its dimensions, a symbol or None where open; None as a whole if the rank is unknown.
        role: what it means, a word of `_ROLES`, or `image`, `sound`, `text`, `bytes` or `numbers`.
        table: for ids, the size of the table that they index, if known.
    """

    name: str
    dtype: np.dtype
    dims: tuple[int | str | None, ...] | None
    role: str
    table: int | None

    @classmethod
    def of(cls, value: ir.Value) -> _Input:
        name = str(value.name)
        if not isinstance(value.type, ir.TensorType):
            kind = "of a type without tensors" if value.type is None else str(value.type)
            raise CannotSynthesise(f"input '{name}' is no tensor but {kind}; give inputs that have it")
        dims = None
        if value.shape is not None:
            dims = tuple((d if d >= 0 else None) if isinstance(d, int) else d.value for d in value.shape)
        dtype = value.type.dtype.numpy()
        role = _role(name, dtype, dims)
        return cls(name, dtype, dims, role, table_size(value) if role == "ids" else None)


def _kind(dtype: np.dtype) -> str:
    """Return numpy's letter for the kind of an element type, with bfloat16 and its like among the floats."""
    if dtype.isbuiltin == 2:
        return "f" if "float" in dtype.name else "i"
    return dtype.kind


def _role(name: str, dtype: np.dtype, dims: tuple[int | str | None, ...] | None) -> str:
    kind, rank = _kind(dtype), len(dims) if dims is not None else 2
    if kind == "O":
        return "text"
    if dtype == np.uint8:
        return "bytes"
    if kind == "c":
        return "numbers"
    for role, pattern, kinds, ranks in _ROLES:
        if kind in kinds and rank in ranks and re.search(pattern, name, re.IGNORECASE):
            return role
    if dims is None:
        return "numbers"
    if _image_layout(dims) is not None:
        return "image"
    length = dims[-1]
    symbols = " ".join([name, *(dim for dim in dims if isinstance(dim, str))])
    if len(dims) <= 2 and (length >= _SHORTEST_SOUND if isinstance(length, int) else bool(_AUDIO.search(symbols))):
        return "sound"
    return "numbers"


def _image_layout(dims: tuple[int | str | None, ...]) -> str | None:
    """Return `NCHW` or `NHWC` if the dimensions may be those of a batch of pictures."""
    if len(dims) != 4:
        return None
    if dims[1] in _CHANNELS and not (isinstance(dims[2], int) and dims[2] < 8):
        return "NCHW"
    if dims[3] in _CHANNELS:
        return "NHWC"
    return None if isinstance(dims[1], int) else "NCHW"


# ---- sizes ----


def _guesses(inputs: list[_Input]) -> Iterator[_Guess]:
    """Yield guesses, the likeliest first. Sizes change fastest, then the bound of ids, then the odd cases."""
    sizes = [
        ((224, 224), 32),
        ((320, 320), 64),
        ((640, 640), 16),
        ((48, 320), 576),
        ((224, 224), 512),
        ((224, 224), 1600),
        ((224, 224), 16000),
        ((64, 64), 128),
        ((32, 32), 1),
    ]
    if any(info.role == "sound" and info.dims and not isinstance(info.dims[-1], int) for info in inputs):
        sizes = [((224, 224), 16000), *sizes]
    ranks = (2, 4, 3, 1, 0) if any(info.dims is None for info in inputs) else (2,)
    for rank in ranks:
        for image, sequence in sizes:
            yield _Guess(image, sequence, rank=rank)
    for image, sequence in sizes[:4]:
        for ids in (5, 2, 1):
            yield _Guess(image, sequence, ids=ids)
    for image, sequence in sizes[:5]:
        yield _Guess(image, sequence, channels=1)
        yield _Guess(image, sequence, batch=2)
    yield _Guess(batch=2, ids=2)


def _shapes(inputs: list[_Input], guess: _Guess) -> dict[str, Shape]:
    symbols: dict[str, int] = {}
    shapes = {}
    for info in inputs:
        dims = info.dims if info.dims is not None else (None,) * guess.rank
        shapes[info.name] = tuple(_size(info, dims, axis, guess, symbols) for axis in range(len(dims)))
    return shapes


def _size(info: _Input, dims: tuple[int | str | None, ...], axis: int, guess: _Guess, symbols: dict[str, int]) -> int:
    dim = dims[axis]
    if isinstance(dim, int):
        return dim
    if dim is None:
        return _open_size(info, dims, axis, guess)
    if "+" in dim:  # exporters write sums such as `past_sequence_length + sequence_length`
        parts = [part.strip() for part in dim.split("+")]
        return sum(int(p) if p.isdigit() else _symbol_size(p, info, dims, axis, guess, symbols) for p in parts)
    return _symbol_size(dim, info, dims, axis, guess, symbols)


def _symbol_size(
    symbol: str, info: _Input, dims: tuple[int | str | None, ...], axis: int, guess: _Guess, symbols: dict[str, int]
) -> int:
    if symbol not in symbols:
        symbols[symbol] = _named_size(symbol, guess) or _open_size(info, dims, axis, guess)
    return symbols[symbol]


def _named_size(symbol: str, guess: _Guess) -> int | None:
    """Return the size that a symbol's name asks for, if it says anything."""
    if _BATCH.search(symbol):
        return guess.batch
    if _HEIGHT.search(symbol):
        return guess.image[0]
    if _WIDTH.search(symbol):
        return guess.image[1]
    if _PAST.search(symbol):
        return 1
    return guess.sequence if re.search(r"seq|len|time|frames|samples", symbol, re.IGNORECASE) else None


def _open_size(info: _Input, dims: tuple[int | str | None, ...], axis: int, guess: _Guess) -> int:
    """Return the size of a dimension that has no telling name."""
    rank = len(dims)
    if axis == 0 and rank > 1:
        return guess.batch
    if info.role == "state":  # layers, batch, width; or batch, heads, past, width
        return 1 if rank > 3 else guess.batch
    if rank == 4 and info.role in ("image", "bytes", "numbers"):
        layout = _image_layout(dims) or "NCHW"
        letter = layout[axis]
        return {"H": guess.image[0], "W": guess.image[1], "C": guess.channels}[letter]
    if rank == 5:  # a short film of small pictures
        return 8 if axis < 3 else min(guess.image[axis - 3], 64)
    if rank == 1 and info.role in ("length", "rate", "timestep", "half", "one"):
        return guess.batch
    return guess.sequence


def _sequence_length(inputs: list[_Input], shapes: dict[str, Shape], guess: _Guess) -> int:
    """Return what an input that tells a length should say: the second dimension of the first that has a sequence."""
    for info in inputs:
        shape = shapes[info.name]
        if len(shape) in (2, 3) and info.role not in ("state", "length"):
            return shape[1]
    return guess.sequence


# ---- values ----


def _values(info: _Input, shape: Shape, guess: _Guess, length: int, rng: np.random.Generator) -> np.ndarray:
    if info.role == "text":
        return np.full(shape, "hello world", dtype=object)
    values = _numbers(info, shape, guess, length, rng)
    return np.asarray(values).astype(info.dtype)


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


def _numbers(info: _Input, shape: Shape, guess: _Guess, length: int, rng: np.random.Generator) -> np.ndarray:
    """Return the values as numbers of some wide type."""
    if info.role in _CONSTANTS:
        return np.full(shape, _CONSTANTS[info.role])
    if info.role == "length":
        return np.full(shape, length)
    if info.role == "position":
        return np.broadcast_to(np.arange(shape[-1]), shape)
    if info.role == "ids":
        bound = min(_bound(info, guess), _largest(info.dtype) + 1)
        # Zero is left out where it can be: it is what padding looks like, and padding may be ignored.
        return rng.integers(1 if bound > 2 else 0, bound, shape)
    return _signal(info, shape, rng, drawn=guess.drawn)


def _signal(info: _Input, shape: Shape, rng: np.random.Generator, *, drawn: bool) -> np.ndarray:
    """Return what a camera, a microphone or nothing in particular gives."""
    dims = info.dims if info.dims is not None else shape
    if info.role == "image" or (info.role == "bytes" and _image_layout(dims)):
        pixels = (drawing if drawn else picture)(shape, rng, channels_last=_image_layout(dims) == "NHWC")
        return pixels * 255.0 if info.role == "bytes" else pixels
    if info.role == "bytes":
        return rng.integers(0, 256, shape)
    if info.role == "sound":
        return sound(shape, rng)
    if info.dtype.kind == "c":
        return 0.5 * (rng.standard_normal(shape) + 1j * rng.standard_normal(shape))
    return 0.5 * rng.standard_normal(shape)


def _bound(info: _Input, guess: _Guess) -> int:
    return info.table if info.table is not None else guess.ids


def _largest(dtype: np.dtype) -> int:
    return int(ir.DataType.from_numpy(dtype).max)
