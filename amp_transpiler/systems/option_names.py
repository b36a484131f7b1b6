"""The values of options as type checkers know them, and the default of `dtype`. Cheap to import: `--help` reads it."""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

__all__ = ["DEFAULT_DTYPE", "DtypeName", "LevelName", "PolicyName", "PresetName", "TargetName"]

# The names in the tables, which also take levels in any case and numpy's dtypes.
LevelName: TypeAlias = Literal["auto", "O0", "OD", "O1", "O2"]
DtypeName: TypeAlias = Literal["float16", "bfloat16", "float32", "fp16", "bf16", "fp32"]
TargetName: TypeAlias = Literal[
    "cuda", "cpu", "any", "tensorrt", "tensorrt-rtx", "webgpu", "coreml", "directml", "openvino", "qnn"
]
PolicyName: TypeAlias = Literal["paddle", "torch", "raf", "mxnet"]
PresetName: TypeAlias = Literal["mp0", "mp1", "mp4", "default"]


class _Default(str):
    """A default value that can be distinguished from the same text of the caller, in other processes too."""

    __slots__ = ()

    def __reduce__(self) -> str:
        return "DEFAULT_DTYPE"  # pickled by its name


DEFAULT_DTYPE = cast(DtypeName, _Default("float16"))
"""float16; bfloat16 with SambaNova's presets and mixed operators."""
