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
    """Copies feeds to a device, and binds them.

    Args:
        device_id: the CUDA device.
    """

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._compute, self._upload = stream_of(device_id, "compute"), stream_of(device_id, "upload")
        self._slots = [_Slot(), _Slot()]

    def bind(self, binding: onnxruntime.IOBinding, arrays: Mapping[str, np.ndarray]) -> None:
        """Queue copies of contiguous arrays of numbers to the device, and bind them as inputs of a run."""
        slot = self._slots[0]
        slot.copied.synchronize()  # main memory may be written again
        self._upload.wait_for(slot.read)  # and the device's
        for name, array in arrays.items():
            buffer = self._room(slot, name, array.nbytes)
            ctypes.memmove(buffer.pinned.address, array.ctypes.data, array.nbytes)
            copy_to_device(buffer.device.data_ptr(), buffer.pinned.address, array.nbytes, self._upload)
            kind = ir.DataType.from_numpy(array.dtype).value
            binding.bind_input(name, "cuda", self._device_id, kind, array.shape, buffer.device.data_ptr())
        slot.copied.record(self._upload)
        self._compute.wait_for(slot.copied)

    def queued(self) -> None:
        """Tell that the run, which reads what was bound, is queued."""
        self._slots[0].read.record(self._compute)
        self._slots.reverse()

    def _room(self, slot: _Slot, name: str, size: int) -> _Buffer:
        found = slot.buffers.get(name)
        if found is None or found.pinned.size < size:
            room = onnxruntime.OrtValue.ortvalue_from_shape_and_type([max(size, 1)], np.uint8, "cuda", self._device_id)
            found = slot.buffers[name] = _Buffer(PinnedBuffer(size), room)
            # What lay there before may still be in use by a step that is queued.
            free = Event()
            free.record(self._compute)
            self._upload.wait_for(free)
        return found
