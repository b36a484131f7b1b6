"""Records a device's emulated arithmetic: how far outputs are from float32 in several draws of noise."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping

__all__ = ["DeviceDraws"]

_ILL_CONDITIONED = 3.0  # the largest error over the median
_WORTH_SAYING = 1e-3


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceDraws:
    """The errors of a result whose kernels are emulated as a device computes.

    Attributes:
        device: the device that the result is for, such as `H100`.
        runtime: the release of ONNX Runtime that it is for, such as `1.31`.
        measured_on: the device and the release whose kernels were measured.
        draws: how many draws of noise ran; the first has none.
        errors: output -> its relative error in every turn over the samples; infinite for values that are not finite.
        plain: output -> its relative error where each low result is rounded once, and float32 is exact.
        tf32: output -> its relative error with float32 products in TF32, where that is beyond the limits and the source
            itself is about as far off, so that the limits are held against exact float32; else empty.
        source_tf32: output -> the relative error of the source itself with its products in TF32.
        unmeasured: operators, with their format, whose kernels nobody has measured.
        amplifier: the node behind which draws are further apart than before, for an ill-conditioned model; else empty.
        amplifier_op: its operator.
        adds_in_low: whether the device adds up in 16 bits inside its kernels; else it takes float32 products in TF32.
    """

    device: str
    runtime: str
    measured_on: str
    draws: int
    errors: Mapping[str, tuple[float, ...]]
    plain: Mapping[str, float]
    unmeasured: tuple[str, ...] = ()
    tf32: Mapping[str, float] = dataclasses.field(default_factory=dict)
    source_tf32: Mapping[str, float] = dataclasses.field(default_factory=dict)
    amplifier: str = ""
    amplifier_op: str = ""
    adds_in_low: bool = False

    def spread(self, output: str) -> tuple[float, float, float]:
        """Return the least, the median and the largest relative error of an output in the draws."""
        errors = self.errors[output]
        return min(errors), statistics.median(errors), max(errors)

    def is_ill_conditioned(self, output: str) -> bool:
        """Whether the largest error of an output is beyond three times the median."""
        _, middle, largest = self.spread(output)
        return largest > _WORTH_SAYING and (math.isinf(largest) or largest > _ILL_CONDITIONED * middle)
