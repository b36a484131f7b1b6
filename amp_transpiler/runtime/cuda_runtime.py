"""NVIDIA's CUDA runtime, called directly for what ONNX Runtime's Python bindings lack.

That is: streams and events, memory that the device copies from while the host goes on, and copies of element types
that numpy does not know. It is the library that ONNX Runtime's own provider has loaded.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
import threading
import weakref
from typing import Any

import onnxruntime

from amp_transpiler.errors import EnvironmentProblem

__all__ = [
    "Event",
    "PinnedBuffer",
    "Stream",
    "capability",
    "copy_to_device",
    "copy_to_host",
    "copy_within",
    "stream_of",
    "wait_for_steps",
]

_logger = logging.getLogger(__name__)

_TO_DEVICE, _TO_HOST, _WITHIN = 1, 2, 3  # cudaMemcpyKind
_CAPABILITY = (75, 76)  # cudaDevAttrComputeCapabilityMajor and Minor
_STREAM_NON_BLOCKING, _EVENT_WITHOUT_TIMING = 1, 2  # cudaStreamNonBlocking, cudaEventDisableTiming

_Pointer = ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cudaDeviceGetAttribute": (ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int),
    "cudaEventCreateWithFlags": (ctypes.POINTER(_Pointer), ctypes.c_uint),
    "cudaEventDestroy": (_Pointer,),
    "cudaEventRecord": (_Pointer, _Pointer),
    "cudaEventSynchronize": (_Pointer,),
    "cudaFreeHost": (_Pointer,),
    "cudaGetDevice": (ctypes.POINTER(ctypes.c_int),),
    "cudaHostAlloc": (ctypes.POINTER(_Pointer), ctypes.c_size_t, ctypes.c_uint),
    "cudaMemcpy": (_Pointer, _Pointer, ctypes.c_size_t, ctypes.c_int),
    "cudaMemcpyAsync": (_Pointer, _Pointer, ctypes.c_size_t, ctypes.c_int, _Pointer),
    "cudaSetDevice": (ctypes.c_int,),
    "cudaStreamCreateWithFlags": (ctypes.POINTER(_Pointer), ctypes.c_uint),
    "cudaStreamSynchronize": (_Pointer,),
    "cudaStreamWaitEvent": (_Pointer, _Pointer, ctypes.c_uint),
}


@functools.cache
def _library() -> ctypes.CDLL:
    major = str(onnxruntime.cuda_version).split(".", maxsplit=1)[0]
    name = f"cudart64_{major}.dll" if sys.platform == "win32" else f"libcudart.so.{major}"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise EnvironmentProblem(
            f"{name}, CUDA's runtime, cannot be loaded ({error}): `pip install 'amp_transpiler[cuda]'` brings it"
        ) from error
    library.cudaGetErrorString.restype = ctypes.c_char_p
    return library


def _call(name: str, *arguments: object) -> None:
    library = _library()
    function = getattr(library, name)
    function.argtypes = _SIGNATURES[name]
    status = function(*arguments)
    if status:
        raise EnvironmentProblem(
            f"{name} failed with CUDA error {status}: {library.cudaGetErrorString(status).decode()}"
        )


def _release_with(owner: object, name: str, address: int | None) -> None:
    """Give back what `owner` holds when it goes; at the end of the process the driver does that."""

    def release() -> None:
        function = getattr(_library(), name)
        function.argtypes = _SIGNATURES[name]
        function(address)  # there is nobody to tell of a failure

    weakref.finalize(owner, release).atexit = False


class Stream:
    """A queue of work on a device. Work of one stream runs in order; it lives as long as the process."""

    def __init__(self, device_id: int) -> None:
        before, stream = ctypes.c_int(), _Pointer()
        _call("cudaGetDevice", ctypes.byref(before))
        _call("cudaSetDevice", device_id)
        try:
            _call("cudaStreamCreateWithFlags", ctypes.byref(stream), _STREAM_NON_BLOCKING)
        finally:
            _call("cudaSetDevice", before.value)
        self.device_id = device_id
        self.address = int(stream.value or 0)

    def synchronize(self) -> None:
        """Wait until everything that was queued so far is done."""
        _call("cudaStreamSynchronize", self.address)

    def wait_for(self, event: Event) -> None:
        """Let what is queued from now on wait for `event`; the host goes on."""
        _call("cudaStreamWaitEvent", self.address, event.address, 0)


class Event:
    """A mark in a stream."""

    def __init__(self) -> None:
        event = _Pointer()
        _call("cudaEventCreateWithFlags", ctypes.byref(event), _EVENT_WITHOUT_TIMING)
        self.address = event.value
        _release_with(self, "cudaEventDestroy", event.value)

    def record(self, stream: Stream) -> None:
        """Set the mark behind what is queued in `stream` so far."""
        _call("cudaEventRecord", self.address, stream.address)

    def synchronize(self) -> None:
        """Let the host wait until the stream has passed the mark; at once if it was never set."""
        _call("cudaEventSynchronize", self.address)


class PinnedBuffer:
    """Main memory that stays where it is, so that a device copies from it while the host goes on."""

    def __init__(self, size: int) -> None:
        memory = _Pointer()
        _call("cudaHostAlloc", ctypes.byref(memory), max(size, 1), 0)
        self.address, self.size = int(memory.value or 0), size
        _release_with(self, "cudaFreeHost", memory.value)


_streams: dict[tuple[int, str], Stream] = {}
_lock = threading.Lock()


def stream_of(device_id: int, purpose: str) -> Stream:
    """Return the process's stream for a purpose on a device: `compute` or `upload`."""
    with _lock:
        key = (device_id, purpose)
        if key not in _streams:
            _streams[key] = Stream(device_id)
        return _streams[key]


@functools.cache
def capability(device_id: int) -> tuple[int, int] | None:
    """Return the compute capability of a device, such as (9, 0); None if no device answers."""
    version = []
    for attribute in _CAPABILITY:
        value = ctypes.c_int(0)
        try:
            _call("cudaDeviceGetAttribute", ctypes.byref(value), attribute, device_id)
        except EnvironmentProblem as error:
            _logger.debug("the compute capability of CUDA:%d is unknown: %s", device_id, error)
            return None
        version.append(value.value)
    return version[0], version[1]


def wait_for_steps(device_id: int) -> None:
    """Wait until all that was queued for computing on a device is done; at once if nothing ever was."""
    stream = _streams.get((device_id, "compute"))
    if stream is not None:
        stream.synchronize()


def copy_to_host(to: int, source: int, size: int) -> None:
    """Copy from a device's memory, and wait."""
    _call("cudaMemcpy", to, source, size, _TO_HOST)


def copy_to_device(to: int, source: int, size: int, stream: Stream | None = None) -> None:
    """Copy to a device's memory: wait for it without a stream, else queue it there."""
    if stream is None:
        _call("cudaMemcpy", to, source, size, _TO_DEVICE)
    else:
        _call("cudaMemcpyAsync", to, source, size, _TO_DEVICE, stream.address)


def copy_within(to: int, source: int, size: int, stream: Stream) -> None:
    """Queue a copy within a device's memory."""
    _call("cudaMemcpyAsync", to, source, size, _WITHIN, stream.address)
