"""Device memory that the sessions of executors share, and that goes back to the device when sessions are closed.

A session of its own memory keeps all that it once took: a hundred shapes of feeds would take a hundred times the
memory of one. Sessions that share an allocator reuse each other's, which is safe as long as all of them queue their
work in one stream.
"""

from __future__ import annotations

import functools
import logging
import threading

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.runtime import cuda, ort

__all__ = ["release_unused", "reserve", "sharing"]

_logger = logging.getLogger(__name__)

# Nothing of it runs on the device, so that it takes no memory there while the unused is given back.
_NOTHING = '<ir_version: 8, opset_import: ["": 13]> nothing (float[1] x) => (int64[1] y) { y = Shape(x) }'

# kSameAsRequested, by ONNX Runtime's number. A piece that is larger than a request by more than a megabyte is divided:
# by default up to 128 MB of it would be wasted.
_ARENA = {"arena_extend_strategy": 1, "max_dead_bytes_per_chunk": 1 << 20}
_REFUSALS: tuple[type[Exception], ...] = (*ort.ORT_ERRORS, RuntimeError)
_lock = threading.Lock()


def sharing(device_id: int) -> bool:
    """Whether sessions on a CUDA device can share an allocator, which is made at the first call."""
    with _lock:
        return _registered(device_id)


@functools.cache
def _registered(device_id: int) -> bool:
    if cuda.sessions_bring_an_allocator(device_id):
        _logger.info("sessions of this process bring an allocator of their own: no memory is shared between them")
        return False
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    place = onnxruntime.OrtMemoryInfo("Cuda", kind, device_id, onnxruntime.OrtMemType.DEFAULT)
    arena = onnxruntime.OrtArenaCfg(_ARENA)
    try:
        onnxruntime.create_and_register_allocator_v2(ort.CUDA_PROVIDER, place, {"device_id": str(device_id)}, arena)
    except _REFUSALS as error:
        _logger.warning("sessions on CUDA:%d share no memory: %s", device_id, ort.error_text(error))
        return False
    return True


def release_unused(device_id: int) -> None:
    """Give shared memory that no value lies in back to the device, which waits for it. Memory must be shared there."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", f"gpu:{device_id}")
    session = _nothing(device_id)
    binding = session.io_binding()
    binding.bind_output("y", "cpu")
    binding.bind_ortvalue_input("x", _one_number())
    session.run_with_iobinding(binding, options)


def reserve(device_id: int, size: int) -> None:
    """Take memory for a step in one piece, which is then free. Memory must be shared there.

    Taken as the step asks for it, it lies in as many pieces as there were requests, and a larger request fits in none
    of those that smaller ones left: up to twice as much is taken. A tenth more than is asked for is taken: in a piece
    without any room to spare, what is free is soon in several places, and a tensor that fits in none takes a new one.
    """
    size += size // 10
    try:
        _nothing(device_id).create_ortvalue_from_shape_and_type([size], np.uint8, "cuda", device_id)
    except _REFUSALS as error:  # the device is full: the step takes what there is
        _logger.info("%d MB in one piece cannot be had on CUDA:%d: %s", size >> 20, device_id, ort.error_text(error))


@functools.cache
def _one_number() -> onnxruntime.OrtValue:
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32))


@functools.cache
def _nothing(device_id: int) -> onnxruntime.InferenceSession:
    model = ir.to_proto(ir.from_onnx_text(_NOTHING)).SerializeToString()
    settings = ort.SessionSettings(optimize=False, threads=1, shared_memory=True)
    return ort.create_session(model, settings, cuda.providers(device_id))
