"""Runs of sessions of steps: feeds and state are bound, outputs stay on the device."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping

import numpy as np
import onnxruntime

from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.uploads import Uploads
from amp_transpiler.runtime.values import detached, to_ort

__all__ = ["Runs"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Ends:
    """The ends of a session.

    Attributes:
        outputs: the names of its outputs.
        on_device: the inputs that nodes on the device read.
    """

    outputs: tuple[str, ...]
    on_device: frozenset[str]


class Runs:
    """Runs sessions on a place. Where the place queues steps, a run returns when its work is queued.

    Args:
        place: where the sessions run.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._uploads: Uploads | None = None
        self._turn = 0  # the slot of the next feeds
        self._ends: weakref.WeakKeyDictionary[onnxruntime.InferenceSession, _Ends] = weakref.WeakKeyDictionary()
        self._options: onnxruntime.RunOptions | None = None

    def run(
        self,
        session: onnxruntime.InferenceSession,
        feeds: Mapping[str, np.ndarray],
        state: Mapping[str, onnxruntime.OrtValue],
    ) -> dict[str, onnxruntime.OrtValue]:
        """Run a session once, and return its outputs by name, on the device."""
        ends = self._ends.get(session) or self._ends.setdefault(session, _ends(session))
        if not ends.outputs:
            return {}
        if self._options is None:
            self._prepare()
        binding = session.io_binding()
        self._bind_feeds(binding, feeds, ends)
        for name, value in state.items():
            binding.bind_ortvalue_input(name, value)
        for name in ends.outputs:
            self._place.bind_output(binding, name)
        session.run_with_iobinding(binding, self._options)
        if self._uploads is not None:
            self._uploads.queued(self._turn)
            self._turn = 1 - self._turn
        return dict(zip(ends.outputs, map(detached, binding.get_outputs()), strict=True))

    def close(self) -> None:
        """Let the buffers of feeds go."""
        self._uploads = self._options = None

    def _prepare(self) -> None:
        self._options = onnxruntime.RunOptions()
        self._uploads = self._place.uploads()
        if self._uploads is not None:
            self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def _bind_feeds(self, binding: onnxruntime.IOBinding, feeds: Mapping[str, np.ndarray], ends: _Ends) -> None:
        queued = {}
        for name, array in feeds.items():
            if self._uploads is not None and name in ends.on_device and array.dtype.kind != "O":
                queued[name] = np.asarray(array, order="C")
            else:
                binding.bind_ortvalue_input(name, to_ort(array))
        if self._uploads is not None:
            self._uploads.copy(queued, self._turn)
            self._uploads.bind(binding, queued, self._turn)


def _ends(session: onnxruntime.InferenceSession) -> _Ends:
    inputs, places = session.get_inputs(), session.get_input_memory_infos()
    on_device = [info.name for info, place in zip(inputs, places, strict=True) if "cpu" not in place.name.lower()]
    return _Ends(tuple(output.name for output in session.get_outputs()), frozenset(on_device))
