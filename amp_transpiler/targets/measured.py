"""Whose arithmetic was measured: providers and releases of ONNX Runtime that a device has run with known inputs.

The emulation rounds as their kernels do where they were measured; of another release, device or backend it is an
estimate.
"""

from __future__ import annotations

from amp_transpiler.targets.arithmetic import arithmetic_of
from amp_transpiler.targets.cpu import CPU
from amp_transpiler.targets.cuda import CUDA
from amp_transpiler.targets.devices import DEFAULT_DEVICE
from amp_transpiler.targets.target import Target

__all__ = ["unmeasured"]


def unmeasured(target: Target, device: str = DEFAULT_DEVICE.name) -> str:
    """Return whose arithmetic no device has shown, in words; empty if all of a target's was.

    The CPU provider needs no measurement: every check runs it.

    Args:
        target: the target.
        device: the GPU that the result is for.
    """
    for part in target.providers:
        if part.provider is None:
            return f"the arithmetic of target {part.name}"
        if part.provider == CPU.provider:
            continue
        arithmetic = arithmetic_of(device, target.ort)
        if part.provider != CUDA.provider or target.ort != arithmetic.release:
            return f"the arithmetic of {part.provider} in ONNX Runtime {target.ort}"
        if not arithmetic.is_measured:
            return f"the arithmetic of {device}"
    return ""
