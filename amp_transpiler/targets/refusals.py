"""Registered kernels that a provider does not accept, or that do not work, and why.

Most rows were observed: a session on the CUDA provider, with stand-ins for the driver, put the node on the CPU or
refused the model. Those without releases were seen in 1.31; the others are faults of fusions that later releases do
not have. The rows about ScatterND, ScatterElements and Resize are about running: on the CPU the failure was observed,
on CUDA it follows from the kernels that are compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from amp_transpiler.targets.kernel_table import is_within

if TYPE_CHECKING:
    from amp_transpiler.targets.operator import Operator

__all__ = ["REFUSALS", "Refusal"]

Applies = Callable[["Operator"], bool]

_LOW = ("float16", "bfloat16")
_PEEPHOLES = 7  # the index of LSTM's input P


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A registered kernel that a provider does not accept.

    Attributes:
        target: `cuda` or `cpu`.
        op_type: the operator, of ONNX's own domain.
        applies: whether an operator of this type is refused.
        reason: what happens instead.
        first: the first release of ONNX Runtime that does so; None: every one before `last`.
        last: the last release that does; None: the newest ones do.
    """

    target: str
    op_type: str
    applies: Applies
    reason: str
    first: str | None = None
    last: str | None = None

    def holds(self, operator: Operator, release: str) -> bool:
        """Whether `release` refuses the operator."""
        return is_within(release, self.first, self.last) and self.applies(operator)


def _other_than(*activations: str, **required: int) -> Applies:
    """A recurrent layer that cuDNN does not have: other activations or flags, clipping, peepholes."""

    def applies(operator: Operator) -> bool:
        if any(operator.attribute(name) is not None for name in ("activation_alpha", "activation_beta", "clip")):
            return True
        if operator.inputs[_PEEPHOLES : _PEEPHOLES + 1] not in ((), (None,)):
            return True
        chosen = [str(name).lower() for name in _items(operator.attribute("activations"))]
        expected = list(activations) * 2  # a bidirectional layer lists them twice
        return chosen != expected[: len(chosen)] or any(
            operator.attribute(name, 0) != value for name, value in required.items()
        )

    return applies


def _items(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else ()


def _asymmetric_padding(operator: Operator) -> bool:
    pads = _items(operator.attribute("pads"))
    half = len(pads) // 2
    return pads[:half] != pads[half:] or str(operator.attribute("auto_pad", "")).startswith("SAME")


def _reduces(*modes: str, dtype: str) -> Applies:
    return lambda operator: operator.attribute("reduction", "none") in modes and operator.bound_types.get("T") == dtype


def _is_of(dtype: str) -> Applies:
    return lambda operator: f"tensor({dtype})" in (*operator.inputs, *operator.outputs)


def _is_set(name: str) -> Applies:
    return lambda operator: operator.attribute(name, 0) != 0


def _region_of_interest_is_low(operator: Operator) -> bool:
    return operator.bound_types.get("T2") in _LOW


_ROWS = (
    *(
        Refusal(
            target,
            op_type,
            _is_of("float16"),
            "the optimizer fails on quantization with float16 scales: it reads them as float32",
            first="1.19",
            last="1.20",
        )
        for target in ("cuda", "cpu")
        for op_type in ("QuantizeLinear", "DequantizeLinear")
    ),
    Refusal(
        "cuda",
        "LayerNormalization",
        _is_of("bfloat16"),
        "it is fused with the Add before it into a SkipLayerNormalization, which does not exist in bfloat16",
        last="1.23",
    ),
    Refusal(
        "cuda",
        "Sigmoid",
        _is_of("bfloat16"),
        "with the Mul behind it, it is fused into a QuickGelu, which has no bfloat16 kernel",
        last="1.22",
    ),
    Refusal(
        "cuda",
        "BatchNormalization",
        _is_set("training_mode"),
        "ONNX Runtime's CUDA provider refuses a session with BatchNormalization in training mode",
    ),
    Refusal(
        "cuda",
        "GRU",
        _other_than("sigmoid", "tanh", linear_before_reset=1),
        "cuDNN's GRU needs linear_before_reset=1, default activations and no clip; others run on the CPU",
    ),
    Refusal(
        "cuda",
        "LSTM",
        _other_than("sigmoid", "tanh", "tanh", input_forget=0),
        "cuDNN's LSTM needs default activations, no clip, no peepholes and input_forget=0; others run on the CPU",
    ),
    Refusal(
        "cuda",
        "RNN",
        _other_than("tanh"),
        "cuDNN's RNN is used with tanh and without clip only; others run on the CPU",
    ),
    Refusal(
        "cuda",
        "ConvTranspose",
        _asymmetric_padding,
        "the CUDA provider leaves ConvTranspose with asymmetric or SAME_* padding to the CPU",
    ),
    Refusal(
        "cuda",
        "ArgMax",
        _is_set("select_last_index"),
        "the CUDA provider leaves ArgMax with select_last_index=1 to the CPU",
    ),
    Refusal(
        "cuda",
        "ArgMin",
        _is_set("select_last_index"),
        "the CUDA provider leaves ArgMin with select_last_index=1 to the CPU",
    ),
    Refusal(
        "cuda",
        "Resize",
        _region_of_interest_is_low,
        "the kernel reads Resize's region of interest as float32 whatever its type says",
    ),
    Refusal(
        "cuda",
        "ScatterND",
        _reduces("mul", "max", "min", dtype="float16"),
        "only reduction none and add of ScatterND are known to work in float16 on CUDA",
    ),
    Refusal(
        "cuda",
        "ScatterND",
        _reduces("add", "mul", "max", "min", dtype="bfloat16"),
        "no reduction of ScatterND is compiled for bfloat16 on CUDA",
    ),
    Refusal(
        "cpu",
        "ScatterND",
        _reduces("add", "mul", "max", "min", dtype="float16"),
        "the CPU provider's ScatterND fails at run time when it reduces float16",
    ),
    Refusal(
        "cpu",
        "ScatterElements",
        _reduces("add", "mul", dtype="float16"),
        "the CPU provider's ScatterElements fails at run time when it adds or multiplies float16",
    ),
)


def _by_operator() -> Mapping[tuple[str, str], tuple[Refusal, ...]]:
    refusals: dict[tuple[str, str], tuple[Refusal, ...]] = {}
    for row in _ROWS:
        key = (row.target, row.op_type)
        refusals[key] = (*refusals.get(key, ()), row)
    return refusals


REFUSALS = _by_operator()
"""Target and operator -> its rows."""
