"""Tells what programs can run on: `paddle.device`."""

from __future__ import annotations

import onnxruntime

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.device import cuda
from amp_transpiler.runtime.ort import CUDA_PROVIDER
from amp_transpiler.runtime.places import CUDAPlace, default_place

__all__ = [
    "cuda",
    "get_all_device_type",
    "get_device",
    "is_compiled_with_cuda",
    "is_compiled_with_rocm",
    "is_compiled_with_xpu",
    "set_device",
]


def is_compiled_with_cuda() -> bool:
    """Return whether the installed ONNX Runtime has its CUDA provider; `cuda.device_count` counts the devices."""
    return CUDA_PROVIDER in onnxruntime.get_available_providers()


def is_compiled_with_xpu() -> bool:
    """Return False: programs run on CUDA and on the CPU."""
    return False


def is_compiled_with_rocm() -> bool:
    """Return False: programs run on CUDA and on the CPU."""
    return False


def get_all_device_type() -> list[str]:
    """Return the kinds of device that programs can run on: `cpu`, and `gpu` with the CUDA provider."""
    return ["cpu", "gpu"] if is_compiled_with_cuda() else ["cpu"]


def get_device() -> str:
    """Return the default device of programs: that of AMP_TRANSPILER_PLACE, else `gpu:0` if CUDA works, else `cpu`."""
    place = default_place()
    return f"gpu:{place.device_id}" if isinstance(place, CUDAPlace) else "cpu"


def set_device(device: str) -> None:
    """Do nothing: a static program runs where its Executor's place says.

    Raises:
        OptionError: there is no device of that name here.
    """
    kind, _, number = device.partition(":")
    count = {"cpu": 1, "gpu": cuda.device_count()}.get(kind, 0)
    if not (number or "0").isdigit() or int(number or 0) >= count:
        raise OptionError(f"set_device: there is no device {device!r} here: expected 'cpu' or 'gpu:0', 'gpu:1', ...")
