"""Options of ONNX Runtime's CUDA provider: one table of what is set, for which sessions, and why.

`Session(..., provider_options={...})` overrides a row or adds an option. What is not in the table stays as ONNX Runtime
has it. `fuse_conv_bias` must: in NCHW every float16 convolution with a bias fails, and float32 ones give wrong numbers
from the second run on (ONNX Runtime 1.31.1, H100).
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias, get_args

__all__ = ["CUDA_OPTIONS", "EXACT_FLOAT32", "ProviderOption", "Use", "cuda_options"]

Use: TypeAlias = Literal["fixed", "free", "step"]
"""A session that is only read: of fixed shapes, or with a free dimension. Or a step of a program, of fixed shapes."""

_ALL: tuple[Use, ...] = get_args(Use)


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderOption:
    """One row of the table.

    Attributes:
        name: ONNX Runtime's name of the option.
        value: its value.
        uses: the sessions that get it.
        why: the reason.
    """

    name: str
    value: str
    uses: tuple[Use, ...]
    why: str


CUDA_OPTIONS = (
    ProviderOption(
        "arena_extend_strategy",
        "kSameAsRequested",
        ("fixed", "step"),
        "sizes are the same in each run, so the arena takes what they need; powers of two take up to twice as much",
    ),
    ProviderOption(
        "arena_extend_strategy",
        "kNextPowerOfTwo",
        ("free",),
        "sizes differ from run to run, and large regions serve more of them",
    ),
    ProviderOption(
        "cudnn_conv_algo_search",
        "EXHAUSTIVE",
        _ALL,
        "with cuDNN 9 nothing is searched: the name selects a mode of cuDNN's heuristic. HEURISTIC fails on the weight "
        "gradient of a [512, 128, 7, 7] input on an H100, DEFAULT is the slow fallback",
    ),
    ProviderOption(
        "use_tf32",
        "1",
        _ALL,
        "float32 products and convolutions take TF32 (10 bits of significand) on devices that have it, which is "
        "ONNX Runtime's default and the form that a low program has to beat; `Session.tf32` says so",
    ),
)

EXACT_FLOAT32 = {"use_tf32": "0"}
"""For a reference of errors alone: float32 without TF32. It also bars some float16 convolutions."""


def cuda_options(use: Use) -> dict[str, str]:
    """Return the CUDA provider's options for a kind of session."""
    return {row.name: row.value for row in CUDA_OPTIONS if use in row.uses}
