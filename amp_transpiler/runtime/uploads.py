"""Feeds on their way to a CUDA device while the step before still runs.

Feeds are copied to main memory that does not move, from there by a stream of its own to one of two sets of buffers on
the device; the step waits for them in its own stream, and the host for nothing but its own copy.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.runtime.cuda_runtime import Event, PinnedBuffer, copy_to_device, stream_of

__all__ = ["Uploads"]


@dataclasses.dataclass(slots=True)
class _Buffer:
    """Room for one feed: in main memory, and on the device."""

    pinned: PinnedBuffer
    device: onnxruntime.OrtValue


class _Slot:
    """The buffers of every second step."""

    def __init__(self) -> None:
        self.buffers: dict[str, _Buffer] = {}
        self.copied, self.read = Event(), Event()


class Uploads:
    """Copies feeds to a device, and binds them: those of one step in one slot, of the next in the other.

    Args:
        device_id: the CUDA device.
    """

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._compute, self._upload = stream_of(device_id, "compute"), stream_of(device_id, "upload")
        self._slots = (_Slot(), _Slot())

    def copy(self, arrays: Mapping[str, np.ndarray], slot: int) -> None:
        """Queue copies of contiguous arrays of numbers to the buffers of a slot, 0 or 1."""
        chosen = self._slots[slot]
        chosen.copied.synchronize()  # main memory may be written again
        self._upload.wait_for(chosen.read)  # and the device's
        for name, array in arrays.items():
            buffer = self._room(chosen, name, array.nbytes)
            ctypes.memmove(buffer.pinned.address, array.ctypes.data, array.nbytes)
            copy_to_device(buffer.device.data_ptr(), buffer.pinned.address, array.nbytes, self._upload)
        chosen.copied.record(self._upload)
        self._compute.wait_for(chosen.copied)

    def bind(self, binding: onnxruntime.IOBinding, arrays: Mapping[str, np.ndarray], slot: int) -> None:
        """Bind the copies of arrays in a slot as inputs of a run."""
        for name, array in arrays.items():
            kind, address = ir.DataType.from_numpy(array.dtype).value, self._slots[slot].buffers[name].device.data_ptr()
            binding.bind_input(name, "cuda", self._device_id, kind, array.shape, address)

    def queued(self, slot: int) -> None:
        """Tell that a run, which reads what is in a slot, is queued."""
        self._slots[slot].read.record(self._compute)

    def _room(self, slot: _Slot, name: str, size: int) -> _Buffer:
        buffer = slot.buffers.get(name)
        if buffer is None or buffer.pinned.size < size:
            room = onnxruntime.OrtValue.ortvalue_from_shape_and_type([max(size, 1)], np.uint8, "cuda", self._device_id)
            buffer = slot.buffers[name] = _Buffer(PinnedBuffer(size), room)
            # What lay there before may still be in use by a step that is queued.
            free = Event()
            free.record(self._compute)
            self._upload.wait_for(free)
        return buffer
