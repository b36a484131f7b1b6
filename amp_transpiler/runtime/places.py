"""Places: the devices a program can run on."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import logging
import sys
from typing import TypeAlias

from amp_transpiler.errors import OptionError

__all__ = ["CPUPlace", "CUDAPlace", "Place", "default_place", "driver_device_count"]

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class CPUPlace:
    """The processor, through ONNX Runtime's CPU provider."""

    def __str__(self) -> str:
        return "CPU"


@dataclasses.dataclass(frozen=True, slots=True)
class CUDAPlace:
    """An NVIDIA device, through ONNX Runtime's CUDA provider.

    Attributes:
        device_id: index among the visible devices (`CUDA_VISIBLE_DEVICES` counts).

    Raises:
        OptionError: `device_id` is negative.
    """

    device_id: int = 0

    def __post_init__(self) -> None:
        if self.device_id < 0:
            raise OptionError(f"CUDAPlace: device_id must be 0 or more, got {self.device_id}")

    def __str__(self) -> str:
        return f"CUDA:{self.device_id}"


Place: TypeAlias = CPUPlace | CUDAPlace


@functools.cache
def driver_device_count() -> int:
    """Return how many CUDA devices the NVIDIA driver shows this process; 0 without driver or device.

    It asks the driver itself, because asking ONNX Runtime for its CUDA provider where there is none prints red lines.
    """
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


@functools.cache
def default_place() -> Place:
    """Return `CUDAPlace(0)` where a device answers, else `CPUPlace()`; the log says which, once.

    A device that ONNX Runtime cannot use (its CUDA libraries are missing, the wheel has no CUDA provider) is no
    default: a warning names the package to install and the CPU is used. Asking for `CUDAPlace` then raises.
    """
    if driver_device_count() == 0:
        _logger.info("running on the CPU: no NVIDIA device answers")
        return CPUPlace()
    # Only now, so that a machine without a device never pays for loading ONNX Runtime's CUDA side.
    from amp_transpiler.runtime.ort import cuda_problem

    problem = cuda_problem(0)
    if problem is not None:
        _logger.warning("running on the CPU: %s", problem)
        return CPUPlace()
    place = CUDAPlace(0)
    _logger.info("running on %s", place)
    return place
