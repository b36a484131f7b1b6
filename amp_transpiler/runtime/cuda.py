"""CUDA on this machine: how many devices there are, and why ONNX Runtime cannot use one."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import io
import logging
import sys
import warnings
from collections.abc import Mapping

import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import EnvironmentProblem
from amp_transpiler.runtime.ort import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    ORT_ERRORS,
    Provider,
    SessionSettings,
    create_session,
)
from amp_transpiler.wheels import PUT_GPU_WHEEL, installed_wheels

__all__ = [
    "FIRST_DRIVERS",
    "DeviceFacts",
    "cuda_problem",
    "driver_cuda_version",
    "driver_device_count",
    "driver_device_facts",
    "driver_library",
    "providers",
    "sessions_bring_an_allocator",
]

_logger = logging.getLogger(__name__)

# A provider that cannot start raises Python's own errors too. One that is dropped in silence raises ours.
_PROVIDER_ERRORS: tuple[type[Exception], ...] = (*ORT_ERRORS, RuntimeError, ValueError, EnvironmentProblem)

FIRST_DRIVERS = {12: "525.60.13", 13: "580.65.06"}
"""CUDA version -> the first release of the driver that knows it (table 3 of the release notes of CUDA)."""

# The smallest model, to find out whether the CUDA provider loads at all.
_PROBE = '<ir_version: 8, opset_import: ["": 13]> probe (float[1] x) => (float[1] y) { y = Relu(x) }'


def providers(device_id: int, options: Mapping[str, str] | None = None) -> list[Provider]:
    """Return the providers of a session on a CUDA device; nodes without a CUDA kernel run on the CPU."""
    return [(CUDA_PROVIDER, {"device_id": str(device_id), **(options or {})}), CPU_PROVIDER]


def driver_library() -> ctypes.CDLL | None:
    """Return the NVIDIA driver's library; None without a driver."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


@functools.cache
def driver_device_count() -> int:
    """Return how many CUDA devices the NVIDIA driver shows this process; 0 without driver or device.

    It asks the driver itself: ONNX Runtime prints red lines when its CUDA provider finds no device.
    """
    driver, count = driver_library(), ctypes.c_int(0)
    if driver is None or driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device by the driver: its name, and its compute capability, such as (8, 0)."""

    name: str
    capability: tuple[int, int]


_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def driver_device_facts(device_id: int = 0) -> DeviceFacts:
    """Return a device's name and compute capability.

    Raises:
        EnvironmentProblem: the driver sees no such device.
    """
    driver = driver_library()
    if driver is None or not 0 <= device_id < driver_device_count():
        raise EnvironmentProblem(f"there is no CUDA device {device_id}: the driver sees {driver_device_count()}")
    handle, number, name = ctypes.c_int(0), ctypes.c_int(0), ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(handle), device_id)
    driver.cuDeviceGetName(name, len(name), handle)
    capability = []
    for attribute in (_MAJOR, _MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, handle)
        capability.append(number.value)
    return DeviceFacts(name.value.decode(errors="replace"), (capability[0], capability[1]))


@functools.cache
def driver_cuda_version() -> tuple[int, int] | None:
    """Return the newest CUDA version that the NVIDIA driver knows, such as (13, 0); None without a driver."""
    driver, version = driver_library(), ctypes.c_int(0)
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


def _driver_problem() -> str | None:
    """Return that the driver is too old for the CUDA version that ONNX Runtime was built with, or None.

    The CUDA runtime would call that error 35, and ONNX Runtime a library that cannot be loaded.
    """
    built = str(onnxruntime.cuda_version or "0").split(".", maxsplit=1)[0]
    version = driver_cuda_version()
    if version is None or version[0] >= int(built):
        return None
    release = FIRST_DRIVERS.get(int(built))
    newer = f" to {release} or newer" if release else ""
    return (
        f"the NVIDIA driver knows CUDA {version[0]}.{version[1]}, and the installed onnxruntime-gpu is built for CUDA "
        f"{onnxruntime.cuda_version} (CUDA error 35): update the driver{newer}, or install an onnxruntime-gpu that is "
        f"built for CUDA {version[0]}"
    )


@functools.cache
def cuda_problem(device_id: int = 0) -> str | None:
    """Return why ONNX Runtime cannot run on CUDA device `device_id`, with the remedy, or None if it can."""
    count = driver_device_count()
    if count == 0:
        return "no NVIDIA device answers on this machine (no driver, or no visible device); use CPUPlace()"
    if device_id >= count:
        return f"there is no CUDA device {device_id}: {count} visible, the first is 0"
    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        wheels, remedy = " and ".join(wheel.name for wheel in installed_wheels()) or "onnxruntime", PUT_GPU_WHEEL
        return f"the installed {wheels} has no CUDA provider: run `{remedy}`"
    if (problem := _driver_problem()) is not None:
        return problem
    _preload_cuda_libraries()
    missing = None if _cudnn_loads() else "cuDNN"
    if not _provider_loads(device_id):
        missing = "CUDA" if missing is None else "CUDA and cuDNN"
    if missing is not None:
        return (
            f"an NVIDIA device answers, but ONNX Runtime cannot load the {missing} libraries: "
            "`pip install 'amp_transpiler[cuda]'` brings them"
        )
    return None


@functools.cache
def _preload_cuda_libraries() -> None:
    """Load the CUDA and cuDNN libraries that pip installed, so that the provider finds them."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():  # it prints each library that it cannot find
        warnings.simplefilter("ignore")
        onnxruntime.preload_dlls()
    if printed.getvalue():
        _logger.debug("onnxruntime.preload_dlls: %s", printed.getvalue().strip())


def _cudnn_loads() -> bool:
    """Whether cuDNN can be loaded. The provider itself only looks for it when a node first needs it."""
    try:
        ctypes.CDLL("cudnn64_9.dll" if sys.platform == "win32" else "libcudnn.so.9")
    except OSError:
        return False
    return True


def _provider_loads(device_id: int) -> bool:
    return _probed_options(device_id) is not None


def sessions_bring_an_allocator(device_id: int) -> bool:
    """Whether each session of this process takes device memory from functions that somebody else has set.

    A tool that counts memory does so, or a framework that owns the device.
    """
    return (_probed_options(device_id) or {}).get("gpu_external_alloc", "0") != "0"


@functools.cache
def _probed_options(device_id: int) -> Mapping[str, str] | None:
    """Return the CUDA provider's options in a session of the smallest model; None if it does not load."""
    model = ir.to_proto(ir.from_onnx_text(_PROBE)).SerializeToString()
    try:
        session = create_session(model, SessionSettings(optimize=False, threads=1), providers(device_id))
    except _PROVIDER_ERRORS as error:
        _logger.debug("the CUDA provider refuses device %d: %s", device_id, error)
        return None
    return dict(session.get_provider_options()[CUDA_PROVIDER])
