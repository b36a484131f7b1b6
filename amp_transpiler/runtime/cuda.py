"""CUDA on this machine: how many devices there are, and why ONNX Runtime cannot use one."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import logging
import sys
import warnings

import onnx_ir as ir
import onnxruntime

from amp_transpiler.runtime.ort import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    ORT_ERRORS,
    Provider,
    SessionSettings,
    create_session,
)

__all__ = ["cuda_problem", "driver_device_count", "providers"]

_logger = logging.getLogger(__name__)

# A provider that cannot start raises Python's own errors too.
_PROVIDER_ERRORS: tuple[type[Exception], ...] = (*ORT_ERRORS, RuntimeError, ValueError)

# The smallest model, to find out whether the CUDA provider loads at all.
_PROBE = '<ir_version: 8, opset_import: ["": 13]> probe (float[1] x) => (float[1] y) { y = Relu(x) }'


def providers(device_id: int) -> list[Provider]:
    """Return the providers of a session on a CUDA device; nodes without a CUDA kernel run on the CPU."""
    return [(CUDA_PROVIDER, {"device_id": str(device_id)}), CPU_PROVIDER]


@functools.cache
def driver_device_count() -> int:
    """Return how many CUDA devices the NVIDIA driver shows this process; 0 without driver or device.

    It asks the driver itself: ONNX Runtime prints red lines when its CUDA provider finds no device.
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
def cuda_problem(device_id: int = 0) -> str | None:
    """Return why ONNX Runtime cannot run on CUDA device `device_id`, with the remedy, or None if it can."""
    count = driver_device_count()
    if count == 0:
        return "no NVIDIA device answers on this machine (no driver, or no visible device); use CPUPlace()"
    if device_id >= count:
        return f"there is no CUDA device {device_id}: {count} visible, the first is 0"
    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        return (
            "the installed onnxruntime has no CUDA provider: run `pip uninstall -y onnxruntime`, "
            "then `pip install onnxruntime-gpu`"
        )
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
    model = ir.to_proto(ir.from_onnx_text(_PROBE)).SerializeToString()
    try:
        session = create_session(model, SessionSettings(optimize=False, threads=1), providers(device_id))
    except _PROVIDER_ERRORS as error:
        _logger.debug("the CUDA provider refuses device %d: %s", device_id, error)
        return False
    return CUDA_PROVIDER in session.get_providers()
