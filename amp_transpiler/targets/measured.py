"""Whose arithmetic was measured: providers and releases of ONNX Runtime that a device has run with known inputs.

The emulation rounds as their kernels do where they were measured; of another release, device or backend it is an
estimate.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING

from amp_transpiler.targets.arithmetic import WEBGPU_TABLE, arithmetic_of
from amp_transpiler.targets.cpu import CPU
from amp_transpiler.targets.cuda import CUDA
from amp_transpiler.targets.devices import DEFAULT_DEVICE
from amp_transpiler.targets.schemas_only import SCHEMAS_ONLY
from amp_transpiler.targets.target import Target
from amp_transpiler.targets.webgpu import WEBGPU

if TYPE_CHECKING:
    from amp_transpiler.targets.arithmetic import DeviceArithmetic

__all__ = ["arithmetic_for", "unmeasured"]

_WEBGPU_DEVICE = "WebGPU"  # one device: its shaders are the provider's own
_ANY_DEVICE = "a device that adds up in float16"


def arithmetic_for(target: Target, device: str = DEFAULT_DEVICE.name) -> DeviceArithmetic | None:
    """Return whose arithmetic a target's verdicts rest on; None for a target without a measured provider.

    Args:
        target: the target.
        device: the GPU that the result is for, such as `H100`; a browser's is unknown.
    """
    providers = {part.provider for part in target.providers}
    if CUDA.provider in providers:
        return arithmetic_of(device, target.ort)
    if WEBGPU.provider in providers:
        return arithmetic_of(_WEBGPU_DEVICE, target.ort, WEBGPU_TABLE)
    return _with_low_sums(target.ort) if target.name in SCHEMAS_ONLY else None


def _with_low_sums(release: str) -> DeviceArithmetic:
    """Return the arithmetic of an unknown device at its worst: that of WebGPU's sums, and no other row of it.

    Every verdict is also that of the plain emulation, whose sums are float32, so the worse of both is told.
    """
    webgpu = arithmetic_of(_ANY_DEVICE, release, WEBGPU_TABLE)
    kernels = {key: tuple(row for row in rows if row.sums_in == "low") for key, rows in webgpu.rows.items()}
    return dataclasses.replace(webgpu, rows=MappingProxyType({key: rows for key, rows in kernels.items() if rows}))


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
        arithmetic = arithmetic_for(part, device)
        if arithmetic is None or target.ort != arithmetic.release:
            return f"the arithmetic of {part.provider} in ONNX Runtime {target.ort}"
        if not arithmetic.is_measured:
            return f"the arithmetic of {device}"
    return ""
