"""Plausible inputs for a model that nobody described: shapes by plan, values by name, rank and element type."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

Shape = Sequence[int]

NUMPY_TYPES: dict[str, type[Any]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(int16)": np.int16,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
    "tensor(string)": object,
}


class ModelInput(Protocol):
    """An input as ONNX Runtime describes it (its NodeArg)."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> list[int | str | None]: ...


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sizes for the dimensions that a model leaves open."""

    h: int = 224
    w: int = 224
    seq: int = 32
    batch: int = 1
    channels: int = 3
    past: int = 1


@dataclasses.dataclass(frozen=True)
class InputRule:
    """How one input is filled: a fixed shape, a scale of the floats, the bound of the integers."""

    shape: tuple[int, ...] | None = None
    scale: float = 1.0
    integer_max: int = 20


@dataclasses.dataclass(frozen=True)
class ModelRule:
    """The known facts about one model's inputs: the plan that fits, pages of text, single inputs."""

    pattern: str
    plan: Plan = Plan()
    page_lines: int | None = None
    inputs: Mapping[str, InputRule | float] = dataclasses.field(default_factory=dict)


# Models whose inputs cannot be guessed; the first pattern that is found in the path counts.
_SILERO = {"input": InputRule(shape=(1, 576)), "state": InputRule(shape=(2, 1, 128))}
_ATOMS = {
    name: InputRule(integer_max=top) for name, top in (("atoms", 20), ("neighbors", 5), ("distances", 9), ("roles", 3))
}
RULES = (
    ModelRule(r"silero_vad(_half|_v5|_v6|_op18_ifless|_16k_op15|_openvino_16k)?\.onnx$", inputs=_SILERO),
    ModelRule(r"swift-f0/", Plan(seq=16000), inputs={"fmin": 46.875, "fmax": 2093.75}),
    ModelRule(r"PP-OCRv\d_det", Plan(h=320, w=320), page_lines=6),
    ModelRule(r"PP-OCRv\d_rec", Plan(h=48, w=320), page_lines=1),
    ModelRule(r"ppocr_mobile_v2\.0_cls", Plan(h=48, w=192), page_lines=1),
    ModelRule(r"rxnmap\.onnx$", Plan(h=1, w=1, seq=48), inputs=_ATOMS),
    ModelRule(r"nudenet/320n", Plan(h=320, w=320)),
)
# Tried in turn for every other model, and for the ones above when their own rule fails.
PLANS = (
    Plan(),
    Plan(h=320, w=320, seq=64),
    Plan(h=640, w=640, seq=16),
    Plan(h=48, w=320, seq=512),
    Plan(h=64, w=160, seq=512, channels=1),
    Plan(seq=1600),
    Plan(seq=16000),
    Plan(seq=1),
    Plan(seq=160000),
)


def rule_for(path: str) -> ModelRule | None:
    """Return what is known of the inputs of the model at `path`."""
    return next((rule for rule in RULES if re.search(rule.pattern, path.replace("\\", "/"))), None)


# ---- signals ----
def pictures(shape: Shape, rng: np.random.Generator, *, channels_first: bool) -> np.ndarray:
    """Return 1/f noise in 0..1, which is nearer to a photograph than white noise is."""
    n, c, h, w = shape if channels_first else (shape[0], shape[3], shape[1], shape[2])
    rows, columns = np.fft.fftfreq(h)[:, None], np.fft.rfftfreq(w)[None]
    amplitude = 1 / np.maximum(np.hypot(rows, columns), 1.0 / max(h, w))
    size = (n, c, h, amplitude.shape[1])
    phase = rng.standard_normal(size) + 1j * rng.standard_normal(size)
    phase[:, 1:] = 0.8 * phase[:, :1] + 0.6 * phase[:, 1:]  # channels correlate, as in a photograph
    image: np.ndarray = np.fft.irfft2(amplitude * phase, s=(h, w))
    centred = (image - image.mean((2, 3), keepdims=True)) / image.std((2, 3), keepdims=True)
    image = np.clip(0.5 + 0.2 * centred, 0, 1)
    return image if channels_first else image.transpose(0, 2, 3, 1)


DIGITS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "11110 00001 00001 01110 00001 00001 11110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


def page(shape: Shape, lines: int = 1) -> np.ndarray:
    """Return dark digits on a light page, -1..1: something for a text recognizer to find."""
    _, _, h, w = shape
    sheet = np.full((h, w), 0.95)
    zoom = max(1, int(h / lines * 0.6) // 7)
    for line in range(lines):
        y, x = int((line + 0.5) * h / lines) - 7 * zoom // 2, 2 * zoom
        digit = 3 + line
        while x + 6 * zoom < w:
            glyph = np.array([[int(bit) for bit in row] for row in DIGITS[digit % 10].split()])
            sheet[y : y + 7 * zoom, x : x + 5 * zoom] -= 0.85 * np.kron(glyph, np.ones((zoom, zoom)))
            x, digit = x + 6 * zoom, digit * 3 + 1
    return np.broadcast_to((sheet - 0.5) / 0.5, tuple(shape)).copy()


def sounds(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Return a voice-like sound at 16 kHz: harmonics of a swaying pitch, and a little noise."""
    seconds = np.arange(shape[-1]) / 16000.0
    pitch = 140 + 30 * np.sin(2 * np.pi * 1.5 * seconds)
    phase = 2 * np.pi * np.cumsum(pitch) / 16000.0
    voice = np.sum([np.sin(k * phase) / k for k in range(1, 20)], axis=0)
    voice = voice * (0.55 + 0.45 * np.sin(2 * np.pi * 4 * seconds))
    return np.broadcast_to(0.15 * voice + 0.01 * rng.standard_normal(shape), tuple(shape)).copy()


# ---- one input ----
def _floats(name: str, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    channels_first = len(shape) == 4 and shape[1] in (1, 3, 4)
    channels_last = len(shape) == 4 and shape[-1] in (1, 3, 4)
    if (channels_first or channels_last) and min(sorted(shape)[2:]) >= 16:
        return pictures(shape, rng, channels_first=channels_first)
    if len(shape) in (1, 2) and shape[-1] >= 256 and (len(shape) == 1 or shape[0] <= 8):
        return sounds(shape, rng)
    if re.search(r"(^|_)(h|c|hn|cn|h0|c0|state|cache|hidden)", name):
        return np.zeros(shape)
    return rng.standard_normal(shape) * 0.5


def values(  # noqa: PLR0911  one return a kind of input
    name: str, element: str, shape: Shape, rng: np.random.Generator, rule: InputRule, sequence: int
) -> np.ndarray:
    """Return values for one input, by its element type (`tensor(float)`) and what its name hints at."""
    dtype = NUMPY_TYPES.get(element)
    if dtype is None:
        raise TypeError(element)
    low = name.lower()
    if dtype is object:
        return np.full(shape, "hello world", dtype=object)
    if dtype is np.bool_:
        return np.ones(shape, bool)
    if np.issubdtype(dtype, np.floating):
        return np.asarray(_floats(low, shape, rng) * rule.scale, dtype=dtype)
    if "len" in low:
        return np.full(shape, sequence, dtype)
    if low in ("sr", "sample_rate", "sampling_rate"):
        return np.full(shape, 16000, dtype)
    if "mask" in low or "valid" in low:
        return np.ones(shape, dtype)
    if "type" in low:
        return np.zeros(shape, dtype)
    if "position" in low and len(shape):
        return np.broadcast_to(np.arange(shape[-1], dtype=dtype), tuple(shape)).copy()
    top = 255 if dtype is np.uint8 else rule.integer_max
    return np.asarray(rng.integers(1, top, shape), dtype=dtype)


# ---- all inputs ----
def _open_size(axis: int, symbol: str, shape: list[int | str | None], plan: Plan) -> int:
    if (axis == 0 and len(shape) > 1) or "batch" in symbol:
        return plan.batch
    if len(shape) == 4:
        channels_last = isinstance(shape[3], int) and shape[3] in (1, 3, 4)
        if axis == 1 and not channels_last:
            return plan.channels
        return plan.h if axis == (1 if channels_last else 2) else plan.w
    return plan.past if "past" in symbol or "cache" in symbol else plan.seq


def shapes(inputs: Sequence[ModelInput], plan: Plan) -> list[list[int]]:
    """Return a shape for every input under `plan`; equal symbols get equal sizes."""
    sizes: dict[object, int] = {}
    result = []
    for argument in inputs:
        shape = []
        for axis, size in enumerate(argument.shape):
            if isinstance(size, int) and size > 0:
                shape.append(size)
                continue
            named = isinstance(size, str) and not size.startswith("unk")
            key: object = size if named else (argument.name, axis)
            if key not in sizes:
                sizes[key] = _open_size(axis, str(size).lower(), argument.shape, plan)
            shape.append(sizes[key])
        result.append(shape)
    return result


def feeds(inputs: Sequence[ModelInput], plan: Plan, rule: ModelRule | None = None) -> dict[str, np.ndarray]:
    """Return one set of inputs, the same at every call."""
    rng = np.random.default_rng(0)
    result: dict[str, np.ndarray] = {}
    for argument, shape in zip(inputs, shapes(inputs, plan), strict=True):
        special = rule.inputs.get(argument.name) if rule else None
        if rule and rule.page_lines and special is None and len(shape) == 4:
            result[argument.name] = page(shape, rule.page_lines).astype(NUMPY_TYPES[argument.type])
        elif isinstance(special, float):
            result[argument.name] = np.asarray(special, dtype=NUMPY_TYPES[argument.type])
        else:
            special = special or InputRule()
            result[argument.name] = values(argument.name, argument.type, special.shape or shape, rng, special, plan.seq)
    return result
