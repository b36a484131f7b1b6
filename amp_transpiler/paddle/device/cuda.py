"""Counts and describes CUDA devices: `paddle.device.cuda`."""

from __future__ import annotations

from amp_transpiler.runtime.cuda import driver_device_count, driver_device_facts
from amp_transpiler.runtime.places import CUDAPlace

__all__ = ["device_count", "get_device_capability", "get_device_name"]


def device_count() -> int:
    """Return the number of CUDA devices that the driver sees; 0 without a driver."""
    return driver_device_count()


def get_device_capability(device: CUDAPlace | int | str | None = None) -> tuple[int, int]:
    """Return a device's compute capability, such as (8, 0).

    Args:
        device: a place, a number, or a name such as `gpu:1`; the first device unless given.

    Raises:
        EnvironmentProblem: the driver sees no such device.
    """
    return driver_device_facts(_number(device)).capability


def get_device_name(device: CUDAPlace | int | str | None = None) -> str:
    """Return a device's name, as the driver tells it.

    Args:
        device: a place, a number, or a name such as `gpu:1`; the first device unless given.

    Raises:
        EnvironmentProblem: the driver sees no such device.
    """
    return driver_device_facts(_number(device)).name


def _number(device: CUDAPlace | int | str | None) -> int:
    if isinstance(device, CUDAPlace):
        return device.device_id
    if isinstance(device, str):
        return int(device.partition(":")[2] or 0)
    return device or 0
