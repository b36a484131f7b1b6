"""Lists the fusions, one row each. `fusion/` does them. It is cheap to import: options read it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Literal, TypeAlias

from amp_transpiler.errors import OptionError

__all__ = [
    "FUSIONS",
    "NEEDS_KEY",
    "NO_FUSION",
    "STANDARD_FUSIONS",
    "Fusion",
    "FusionKind",
    "checked_fusions",
    "default_fusions",
    "fusions_of",
    "may_fuse",
    "only_in_onnxruntime",
]

FusionKind: TypeAlias = Literal["contrib", "standard"]

NO_FUSION = "none"
STANDARD_FUSIONS = "standard"  # into ONNX's own operators, which other tools than ONNX Runtime have, too
_CONTRIB = "com.microsoft::"
_BOTH = ("float16", "bfloat16")
NEEDS_KEY = "amp_transpiler.needs_onnxruntime"  # metadata of a fused model: operators that only ONNX Runtime has


@dataclasses.dataclass(frozen=True, slots=True)
class Fusion:
    """Describes one fusion.

    Attributes:
        name: by which users switch it off: that of the operator which it writes.
        operators: which it may write, with their domain, as `operators.txt` has them. It is done only where the target
            has each of them in the low format, without a fault.
        kind: `standard` for ONNX's own operators, `contrib` for those of ONNX Runtime.
        opset: the first version of ONNX's own operators in which it can be done.
        why: what is gained.
        anchors: operators of which a model has one where anything can be fused; a quick question before others.
        by_default: the formats in which it is done unasked: a device has run its kernels there, so that their
            arithmetic is measured and they have a price.
        withheld: why not in the others.
        first_release: the first ONNX Runtime whose kernels do what it counts on, for targets `cuda` and `cpu` alone;
            empty for any that has them.
        raises_opset: an older model is brought to `opset` for it, where the target has prices.
    """

    name: str
    operators: tuple[str, ...]
    kind: FusionKind
    opset: int
    why: str
    anchors: frozenset[str]
    by_default: tuple[str, ...] = _BOTH
    withheld: str = ""
    first_release: str = ""
    raises_opset: bool = False


FUSIONS: tuple[Fusion, ...] = (
    Fusion(
        "Attention",
        ("com.microsoft::Attention", "com.microsoft::MultiHeadAttention"),
        "contrib",
        13,
        "one kernel for scores, mask, softmax and sum; the softmax is float32 inside; one product for q, k and v",
        frozenset(("Softmax", "Attention")),
        by_default=(),
        withheld="no device has run either in 16 bits: their rounding is unmeasured, and they have no price",
    ),
    Fusion(
        "ai.onnx::Attention",
        ("Attention",),
        "standard",
        23,
        "one kernel for scores, mask, softmax and sum; the softmax is float32 inside; rows without any score become 0",
        frozenset(("Softmax", "Attention")),
        first_release="1.31",  # whose kernels ran on a device, and give 0 where no score of a row counts
        raises_opset=True,
    ),
    Fusion(
        "FusedMatMul",
        ("com.microsoft::FusedMatMul",),
        "contrib",
        13,
        "attention's products read rows as they lie, without Transposes, biases and guards of scores around them",
        frozenset(("Softmax",)),
    ),
    Fusion(
        "LayerNormalization",
        ("LayerNormalization",),
        "standard",
        17,
        "one kernel for nine nodes, in float32 inside; TensorRT and WebGPU need the operator",
        frozenset(("Sqrt",)),
    ),
    Fusion(
        "RMSNormalization",
        ("RMSNormalization",),
        "standard",
        23,
        "one kernel for six nodes, in float32 inside",
        frozenset(("Sqrt",)),
    ),
    Fusion(
        "SimplifiedLayerNormalization",
        ("SimplifiedLayerNormalization",),
        "contrib",
        13,
        "the same where the model's opset has no RMSNormalization",
        frozenset(("Sqrt",)),
        by_default=(),
        withheld="onnx.checker refuses it in ONNX's domain, where ONNX Runtime has it; ONNX Runtime fuses it itself",
    ),
    Fusion(
        "Gelu",
        ("Gelu",),
        "standard",
        20,
        "one kernel for five nodes or eight",
        frozenset(("Erf", "Tanh")),
    ),
    Fusion(
        "com.microsoft::Gelu",
        ("com.microsoft::Gelu",),
        "contrib",
        13,
        "the same where the model's opset has no Gelu, by the error function",
        frozenset(("Erf",)),
    ),
    Fusion(
        "FastGelu",
        ("com.microsoft::FastGelu",),
        "contrib",
        13,
        "GELU by the hyperbolic tangent: ONNX Runtime fuses it only in float32; takes in the bias before it",
        frozenset(("Tanh", "Gelu", "FastGelu")),
    ),
    Fusion(
        "SkipLayerNormalization",
        ("com.microsoft::SkipLayerNormalization",),
        "contrib",
        13,
        "the residual sum and the bias before it in the normalisation's kernel, also where the sum is read again",
        frozenset(("LayerNormalization", "Sqrt")),
    ),
    Fusion(
        "SkipSimplifiedLayerNormalization",
        ("com.microsoft::SkipSimplifiedLayerNormalization",),
        "contrib",
        13,
        "the same for root mean square normalisation",
        frozenset(("RMSNormalization", "SimplifiedLayerNormalization", "Sqrt")),
    ),
    Fusion(
        "BiasGelu",
        ("com.microsoft::BiasGelu",),
        "contrib",
        13,
        "the bias of a product in the kernel of GELU, where a Gemm would write it in a kernel of its own",
        frozenset(("Gelu", "Erf")),
        by_default=("float16",),
        withheld="no device was asked for it in bfloat16",
    ),
)


def only_in_onnxruntime(operators: Iterable[str]) -> tuple[str, ...]:
    """Return those of some fused operators that are ONNX Runtime's own, in the order of their names."""
    contrib = {operator for fusion in FUSIONS if fusion.kind == "contrib" for operator in fusion.operators}
    return tuple(sorted(name for name in operators if name in contrib or name.startswith(_CONTRIB)))


def fusions_of(choice: str) -> tuple[Fusion, ...]:
    """Return the fusions that an option names, in their order.

    Args:
        choice: `none`, `standard` or `contrib`, the last two perhaps with names to leave out: `contrib,-BiasGelu`.

    Raises:
        OptionError: a word is none of these.
    """
    kind, *without = (word.strip() for word in choice.split(","))
    if kind not in (NO_FUSION, "standard", "contrib"):
        raise OptionError(f"fuse: {kind!r} is none of contrib, standard and none")
    dropped = {_dropped(word) for word in without}
    if kind == NO_FUSION:
        if dropped:
            raise OptionError("fuse: where nothing is fused, no fusion can be left out")
        return ()
    kinds = ("standard",) if kind == STANDARD_FUSIONS else ("standard", "contrib")
    return tuple(fusion for fusion in FUSIONS if fusion.kind in kinds and fusion.name not in dropped)


def may_fuse(choice: str, opset: int, operators: Collection[str]) -> bool:
    """Whether a model may have what an option fuses.

    Args:
        choice: the option, as in `fusions_of`.
        opset: the version of ONNX's own operators in the model.
        operators: the types of its nodes.
    """
    fusions = (fusion for fusion in fusions_of(choice) if fusion.opset <= opset or fusion.raises_opset)
    return any(not fusion.anchors.isdisjoint(operators) for fusion in fusions)


def default_fusions(low: str) -> str:
    """Return the option of those who leave it out: what has no reason against it in a format.

    Args:
        low: the format, such as `float16`.
    """
    return ",".join(["contrib", *(f"-{fusion.name}" for fusion in FUSIONS if low not in fusion.by_default)])


def _dropped(word: str) -> str:
    names = [fusion.name for fusion in FUSIONS]
    if not word.startswith("-") or word[1:] not in names:
        raise OptionError(
            f"fuse: {word!r} leaves out no fusion; expected a minus sign and one of {', '.join(names)}, "
            "such as contrib,-BiasGelu"
        )
    return word[1:]


def checked_fusions(choice: str) -> str:
    """Return the value of the option as it is written in recipes.

    Raises:
        OptionError: it is no choice of fusions.
    """
    fusions_of(choice)
    return ",".join(word.strip() for word in choice.split(","))
