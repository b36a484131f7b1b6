"""The kinds of faults: a row each."""

from __future__ import annotations

import dataclasses

from planted_faults import low_only, overflows, vanishing
from planted_faults.foreign import CLIPPING
from planted_faults.plot import Builder, Damage

__all__ = ["KINDS", "Kind"]

_FLOAT16, _BOTH = ("float16",), ("float16", "bfloat16")
_ALL = ("onnxconverter_common", "onnxruntime", "plain", "amp_transpiler")
_PLAIN = ("plain",)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        build: plants it into the float32 model.
        dtypes: the formats in which it bites.
        tools: those that can have made a foreign low model that has it.
        damage: what is done to the foreign low model beside.
        foreign: a conversion with this package does not have it, so every case is foreign.
        on_device: it shows on a device only.
    """

    build: Builder
    dtypes: tuple[str, ...] = _FLOAT16
    tools: tuple[str, ...] = _ALL
    damage: Damage = low_only.nothing
    foreign: bool = False
    on_device: bool = False

    @property
    def damages(self) -> bool:
        """Whether the low model is right until the damage is done, or on the CPU."""
        return self.on_device or self.damage is not low_only.nothing


KINDS: dict[str, Kind] = {
    "residual_overflow": Kind(overflows.residual_overflow),
    "absorbed_infinity": Kind(overflows.absorbed_infinity),
    "variance_underflow": Kind(vanishing.variance_underflow),
    "epsilon_lost": Kind(vanishing.epsilon_lost, tools=_PLAIN, foreign=True),  # the others keep or clip it
    "wrong_cast": Kind(low_only.lookup, _BOTH, damage=low_only.cast_ids, foreign=True),
    "low_sum": Kind(overflows.low_sum),
    "constant_beyond_range": Kind(overflows.constant_beyond_range, tools=(*CLIPPING, "onnxruntime")),
    "masked_row": Kind(overflows.masked_row, _BOTH, tools=_PLAIN),
    "quiet_input": Kind(vanishing.quiet_input, tools=("plain", "amp_transpiler")),
    "device_fault": Kind(low_only.device_fault, _BOTH, tools=_PLAIN, foreign=True, on_device=True),
    "amplification": Kind(vanishing.amplification, _BOTH),
    "wrong_value": Kind(low_only.parameter, _BOTH, damage=low_only.change_value, foreign=True),
}
"""Name -> what builds it."""
