"""A CPU that takes what a CUDA graph of a step queues, and a network to run on it.

Addresses are fixed as on a device, and each run computes.
"""

import numpy as np

import amp_transpiler as amp
from amp_transpiler import static
from amp_transpiler.paddle.nn import functional
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.values import to_ort


class Uploads:
    """Copies feeds as `amp_transpiler.runtime.uploads.Uploads` does, in main memory."""

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


def normalized_network(optimizer_of):
    """Return a training program with a normalisation of batches, its startup program and its loss."""
    main, startup = static.Program(), static.Program()
    with amp.utils.unique_name.guard(), static.program_guard(main, startup):
        main.random_seed = startup.random_seed = 1
        x, y = static.data("x", [8, 3]), static.data("y", [8, 1])
        hidden = functional.relu(static.nn.batch_norm(static.nn.fc(x, 4)))
        loss = functional.mse_loss(static.nn.fc(hidden, 1), y)
        optimizer_of().minimize(loss, startup)
    return main, startup, loss
