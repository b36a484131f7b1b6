"""Whose arithmetic was measured: providers and releases of ONNX Runtime that a device has run with known inputs.

The emulation rounds as their kernels do where they were measured; of another release, or of a backend that was never
run, it is an estimate.
"""

from __future__ import annotations

import dataclasses

from amp_transpiler.targets.cpu import CPU
from amp_transpiler.targets.cuda import CUDA
from amp_transpiler.targets.target import Target

__all__ = ["MEASURED", "MeasuredArithmetic", "unmeasured"]


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredArithmetic:
    """A provider that ran on a device.

    Attributes:
        provider: ONNX Runtime's name for it.
        release: of ONNX Runtime, such as `1.31`.
        device: the device.
        run: the file in `docs/benchmarks/gpu` that has the rows.
    """

    provider: str
    release: str
    device: str
    run: str


MEASURED = (MeasuredArithmetic(str(CUDA.provider), "1.31", "NVIDIA H100 80GB HBM3", "2026-11-26-h100.jsonl"),)


def unmeasured(target: Target) -> str:
    """Return whose arithmetic no device has shown, in words; empty if all of a target's was.

    The CPU provider needs no row: every check runs it.
    """
    known = {(row.provider, row.release) for row in MEASURED}
    for part in target.providers:
        if part.provider is None:
            return f"the arithmetic of target {part.name}"
        if part.provider != CPU.provider and (part.provider, target.ort) not in known:
            return f"the arithmetic of {part.provider} in ONNX Runtime {target.ort}"
    return ""
