"""Options of ONNX Runtime's CUDA provider: what is set, for which sessions, why, and where that was seen to be right.

A row without evidence from a device does not belong here: what is not in the table stays as ONNX Runtime has it.
`Session(..., provider_options={...})` overrides a row or adds an option. `REFUSED_OPTIONS` are those that compute
something wrong, or that another argument of `Session` asks for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias, get_args

from amp_transpiler.errors import OptionError

__all__ = [
    "CUDA_OPTIONS",
    "EXACT_FLOAT32",
    "H100",
    "LAYOUTS",
    "NHWC_SEEN",
    "REFUSED_OPTIONS",
    "Evidence",
    "Layout",
    "OptionsInUse",
    "ProviderOption",
    "RefusedOption",
    "Use",
    "cuda_options",
    "refuse_options",
]

Use: TypeAlias = Literal["fixed", "free", "step"]
"""A session that is only read: of fixed shapes, or with a free dimension. Or a step of a program, of fixed shapes."""

Layout: TypeAlias = Literal["nchw", "nhwc"]
"""The order of the dimensions that convolutions and poolings compute in: ONNX's, or channels last."""

_ALL: tuple[Use, ...] = get_args(Use)


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """An observation that speaks for a setting: the device on which it was seen to be right and to pay.

    Attributes:
        seen: what was observed, with numbers.
        device: the device's name.
        versions: of what ran.
        run: the file in `docs/benchmarks/gpu` that has the rows.
        command: what shows it again.
    """

    seen: str
    device: str
    versions: str
    run: str
    command: str

    def __str__(self) -> str:
        return f"{self.device}, {self.versions}: {self.seen}"


H100 = functools.partial(
    Evidence,
    device="NVIDIA H100 80GB HBM3",
    versions="ONNX Runtime 1.31.1, cuDNN 9.19",
    run="2026-11-26-h100-2.jsonl",
    command="python lab/bench_gpu.py --only options",
)
"""Evidence of the runs on an H100."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderOption:
    """One row of the table.

    Attributes:
        name: ONNX Runtime's name of the option.
        value: its value.
        uses: the sessions that get it.
        why: the reason.
        evidence: where it was seen to be right, and to pay.
    """

    name: str
    value: str
    uses: tuple[Use, ...]
    why: str
    evidence: Evidence


CUDA_OPTIONS = (
    ProviderOption(
        "arena_extend_strategy",
        "kSameAsRequested",
        ("fixed", "step"),
        "sizes are the same in each run, so the arena takes what they need; powers of two take up to twice as much",
        H100(
            "the same outputs in four runs of four networks in both formats; 470 MB instead of 644 for BERT at batch 8 "
            "and 210 instead of 256 for ResNet-50, in float16; no slower but for ResNet-50 in float32 without a graph"
        ),
    ),
    ProviderOption(
        "cudnn_conv_algo_search",
        "EXHAUSTIVE",
        _ALL,
        "with cuDNN 9 nothing is searched: the name selects a mode of cuDNN's heuristic. It is ONNX Runtime's default, "
        "and stated because HEURISTIC fails and DEFAULT is the slow fallback",
        H100(
            "ResNet-18 trains at O2, which fails with HEURISTIC (the weight gradient of [512, 128, 7, 7]); in "
            "inference both are right, and take the same time"
        ),
    ),
    ProviderOption(
        "use_tf32",
        "1",
        _ALL,
        "float32 products and convolutions take TF32 (10 bits of significand) on devices that have it, which is "
        "ONNX Runtime's default and the form that a low program has to beat; `Session.tf32` says so",
        H100(
            "BERT at batch 8 is 0.05 % off in relative norm, and takes 2.3 ms instead of 6.3",
            run="2026-11-26-h100.jsonl",
            command="python lab/bench_gpu.py --only inference:bert",
        ),
    ),
)

EXACT_FLOAT32 = {"use_tf32": "0"}
"""For a reference of errors only: float32 without TF32. It also bars some float16 convolutions."""

LAYOUTS: Mapping[Layout, Mapping[str, str]] = {"nchw": {}, "nhwc": {"prefer_nhwc": "1"}}
"""Layout -> the options that ask for it."""

NHWC_SEEN = H100(
    "right in four runs of ResNet-50, ViT-base and a network of 1x1 convolutions in both formats; 1.07 ms instead of "
    "1.28 for ResNet-50 in float16, as slow or slower in the others"
)
"""What layout "nhwc" did on a device: it is right there, and pays for some models only."""


@dataclasses.dataclass(frozen=True, slots=True)
class RefusedOption:
    """An option that a caller cannot give.

    Attributes:
        name: ONNX Runtime's name of the option.
        why: what it does, or who sets it.
        remedy: what to do instead.
        uses: the sessions that cannot have it.
        evidence: where that was seen; None where another argument sets it.
    """

    name: str
    why: str
    remedy: str
    uses: tuple[Use, ...] = _ALL
    evidence: Evidence | None = None

    def is_asked(self, options: Mapping[str, str]) -> bool:
        """Whether options switch it on."""
        return options.get(self.name, "0").lower() not in {"0", "false"}


REFUSED_OPTIONS = (
    RefusedOption(
        "fuse_conv_bias",
        "float16 convolutions with a bias fail with it, and float32 ones are wrong from the second run on",
        "leave it out",
        evidence=H100(
            "ResNet-50 in float32 was 6e16 off, a network of 1x1 convolutions 566 %; in float16 no convolution ran",
            run="2026-11-26-h100.jsonl",
            command="python lab/bench_gpu.py --only inference:resnet50,pointwise",
        ),
    ),
    RefusedOption(
        "prefer_nhwc",
        "convolutions with computed weights fail with it, and transposed ones move to the CPU",
        "leave it out in training",
        uses=("step",),
    ),
    RefusedOption(
        "prefer_nhwc",
        "its results are to be compared with those of the default layout",
        "give layout='nhwc', which does that",
        uses=("fixed", "free"),
    ),
)


def refuse_options(options: Mapping[str, str], uses: tuple[Use, ...]) -> None:
    """Refuse options that compute something wrong, or that another argument sets.

    Args:
        options: what a caller gives.
        uses: what the session may be used for.

    Raises:
        OptionError: one of them is refused for one of the uses.
    """
    for row in REFUSED_OPTIONS:
        if row.is_asked(options) and set(uses) & set(row.uses):
            raise OptionError(f"provider_options: {row.name}={options[row.name]} is refused: {row.why}; {row.remedy}")


def cuda_options(use: Use) -> dict[str, str]:
    """Return the CUDA provider's options for a kind of session."""
    return {row.name: row.value for row in CUDA_OPTIONS if use in row.uses}


class OptionsInUse(dict[str, str]):
    """The options that a session's provider runs with, by name. `print` shows those that are set, and why.

    Args:
        options: all options, as ONNX Runtime tells them.
        given: those that the caller gave.
        use: the kind of session; None where no table applies.
        layout: the layout that was asked for.

    Attributes:
        why: option that is set -> the reason. All others have ONNX Runtime's defaults.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        given: Mapping[str, str] | None = None,
        use: Use | None = None,
        layout: Layout = "nchw",
    ) -> None:
        super().__init__(options)
        self.why = dict(_reasons(given or {}, use, layout)) if options else {}

    def __str__(self) -> str:
        rows = [f"{name}={self.get(name, '')}: {reason}" for name, reason in self.why.items()]
        return "\n".join([*rows, "all others: ONNX Runtime's defaults"]) if self else "no options"


def _reasons(caller_options: Mapping[str, str], use: Use | None, layout: Layout) -> Iterator[tuple[str, str]]:
    for row in CUDA_OPTIONS:
        if use in row.uses and row.name not in caller_options:
            yield row.name, f"{row.why} ({row.evidence})"
    for name in LAYOUTS[layout]:
        yield name, f"layout={layout!r} was asked for ({NHWC_SEEN})"
    for name in caller_options:
        yield name, "given by the caller"
