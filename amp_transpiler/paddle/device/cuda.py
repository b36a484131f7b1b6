"""CUDA devices: `paddle.device.cuda`."""

from __future__ import annotations

from amp_transpiler.runtime.cuda import driver_device_count

__all__ = ["device_count"]


def device_count() -> int:
    """Return the number of CUDA devices that the driver sees; 0 without a driver."""
    return driver_device_count()
