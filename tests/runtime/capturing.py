"""A CPU that takes what a CUDA graph of a step queues: addresses are fixed as on a device, and each run computes."""

import numpy as np

from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.values import to_ort


class Uploads:
    """What `amp_transpiler.runtime.uploads.Uploads` does, in main memory."""

    def __init__(self):
        self.slots = ({}, {})

    def copy(self, arrays, slot):
        for name, array in arrays.items():
            held = self.slots[slot].setdefault(name, np.empty_like(array))
            held[...] = array

    def bind(self, binding, arrays, slot):
        for name in arrays:
            binding.bind_ortvalue_input(name, to_ort(self.slots[slot][name]))

    def queued(self, slot):
        pass


class CapturingPlace(CPUPlace):
    def uploads(self):
        return Uploads()
