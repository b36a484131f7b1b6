"""The meaning of a model's inputs (an image, token ids, a mask, ...), guessed from type, rank and name."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import AmpError
from amp_transpiler.graph.table_sizes import table_size

__all__ = ["CannotSynthesise", "Dims", "ModelInput", "image_layout"]

Dims = tuple[int | str | None, ...]  # a symbol where a dimension is open, None where it has no name either

_FLOAT, _INT, _BOOL = "f", "iu", "b"  # numpy's letters for kinds of element types
_ANY_RANK = range(99)
# The first row that matches decides: role, pattern of the name, kinds of element type, ranks.
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
_CHANNELS = (1, 3, 4)
_SHORTEST_SOUND = 256  # samples; a shorter row of floats is taken for features


class CannotSynthesise(AmpError):
    """No made-up inputs are accepted by the model; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelInput:
    """An input of the model.

    Attributes:
        name: its name.
        dtype: its element type.
        dims: its dimensions; None if the rank is unknown.
        role: its meaning, a word of `_ROLES`, or `image`, `sound`, `text`, `bytes` or `numbers`.
        table: for ids, the size of the table that they index, if known.
    """

    name: str
    dtype: np.dtype
    dims: Dims | None
    role: str
    table: int | None

    @classmethod
    def of(cls, value: ir.Value) -> ModelInput:
        """Read a graph input.

        Raises:
            CannotSynthesise: it is not a tensor.
        """
        name = str(value.name)
        if not isinstance(value.type, ir.TensorType):
            kind = "of a type without tensors" if value.type is None else str(value.type)
            raise CannotSynthesise(f"input '{name}' is not a tensor but {kind}; give inputs that have it")
        dims = None
        if value.shape is not None:
            dims = tuple((d if d >= 0 else None) if isinstance(d, int) else d.value for d in value.shape)
        dtype = value.type.dtype.numpy()
        role = _role(name, dtype, dims)
        return cls(name, dtype, dims, role, table_size(value) if role == "ids" else None)


def _role(name: str, dtype: np.dtype, dims: Dims | None) -> str:
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
    if image_layout(dims) is not None:
        return "image"
    return "sound" if _is_sound(name, dims) else "numbers"


def _kind(dtype: np.dtype) -> str:
    """Return numpy's letter for the kind of an element type; for the types of `ml_dtypes`, that of floats or integers.

    numpy itself has the letter V, for unknown bytes, for bfloat16.
    """
    if dtype.isbuiltin == 2:
        return "f" if "float" in dtype.name else "i"
    return dtype.kind


def _is_sound(name: str, dims: Dims) -> bool:
    length = dims[-1]
    if len(dims) > 2:
        return False
    if isinstance(length, int):
        return length >= _SHORTEST_SOUND
    return names_sound(name, dims)


def names_sound(name: str, dims: Dims = ()) -> bool:
    """Whether the name of an input, or of one of its dimensions, is one of sounds."""
    return bool(_AUDIO.search(" ".join([name, *(dim for dim in dims if isinstance(dim, str))])))


def image_layout(dims: Dims) -> str | None:
    """Return `NCHW` or `NHWC` if the dimensions may be those of a batch of images, else None."""
    if len(dims) != 4:
        return None
    if dims[1] in _CHANNELS and not (isinstance(dims[2], int) and dims[2] < 8):
        return "NCHW"
    if dims[3] in _CHANNELS:
        return "NHWC"
    return None if isinstance(dims[1], int) else "NCHW"
