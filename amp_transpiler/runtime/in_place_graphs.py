"""The CUDA graph of a step that writes its new state where the old state lies: one set of buffers, one capture."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import onnxruntime

from amp_transpiler.runtime import ort
from amp_transpiler.runtime.places import Place, to_host
from amp_transpiler.runtime.step_graphs import ReadOnlyState, run_options, run_plain
from amp_transpiler.runtime.uploads import Uploads
from amp_transpiler.runtime.values import element_type, to_ort

__all__ = ["InPlaceGraph"]

_logger = logging.getLogger(__name__)

_GRAPH, _SLOT = "1", 0


class InPlaceGraph:
    """Runs a step whose state has one set of buffers, which are its own.

    ONNX Runtime computes a step more than once when it captures it, each time from the state that the time before has
    written. So the state is kept in main memory meanwhile, and is put back before the captured step is run.

    Args:
        session: what `open_capturing` returned, for a step that `in_place_obstacle` has nothing against.
        place: where it runs.
        updates: persistable name -> output that replaces it.

    Attributes:
        session: the session.
        refused: why the device would not capture; empty unless that happened.
    """

    def __init__(self, session: onnxruntime.InferenceSession, place: Place, updates: Mapping[str, str]) -> None:
        self.refused = ""
        self.session, self._place, self._updates = session, place, updates
        self._uploads: Uploads | None = None
        self._state: dict[str, onnxruntime.OrtValue] = {}
        self._read_only = ReadOnlyState(place)
        self._outputs: dict[str, onnxruntime.OrtValue] = {}
        self._binding: onnxruntime.IOBinding | None = None

    def take_in(self, state: Mapping[str, onnxruntime.OrtValue]) -> dict[str, onnxruntime.OrtValue]:
        """Return the state with the graph's own buffers, which then hold it, for what the step replaces.

        The caller keeps these in place of what it has, before it runs the step: so that the state that it has is that
        which the step overwrites.
        """
        if self.refused:
            return dict(state)
        for name in self._updates:
            if name not in self._state:
                self._state[name] = self._place.copied(state[name])
            elif state[name] is not self._state[name]:
                self._place.copy_into(self._state[name], state[name])
        return {**state, **self._state}

    def run(
        self, feeds: Mapping[str, np.ndarray], state: Mapping[str, onnxruntime.OrtValue]
    ) -> dict[str, onnxruntime.OrtValue]:
        """Queue a run, and return its outputs. The next run overwrites them: copy what is to last.

        State that `take_in` has not returned is left as it is.
        """
        self._uploads = self._uploads or self._place.uploads()
        assert self._uploads is not None  # or the session would not be open
        feeds = {name: np.asarray(array, order="C") for name, array in feeds.items()}
        self._uploads.copy(feeds, _SLOT)
        if self.refused or any(state[name] is not self._state.get(name) for name in self._updates):
            return run_plain(self.session, self._place, self._uploads, _SLOT, feeds, state)
        for name in state.keys() - self._updates.keys():
            self._read_only.load(name, state[name])
        if self._binding is None and not self._capture(self._uploads, feeds):
            return run_plain(self.session, self._place, self._uploads, _SLOT, feeds, state)
        self.session.run_with_iobinding(self._binding, run_options(_GRAPH))
        self._uploads.queued(_SLOT)
        return dict(self._outputs)

    def copy(self, value: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
        """Return a copy of an output that no later run overwrites."""
        return self._place.copied(value)

    def _capture(self, uploads: Uploads, feeds: Mapping[str, np.ndarray]) -> bool:
        """Capture the step, and put the state back; return whether the device did it."""
        before = {name: np.array(to_host(value)) for name, value in self._state.items()}
        try:
            binding = self._bound(uploads, feeds)
            self.session.run_with_iobinding(binding, run_options(_GRAPH))
        except ort.ORT_ERRORS as error:
            self.refused = ort.error_text(error)
            _logger.warning("no CUDA graph of this step: %s", self.refused)
            return False
        finally:  # an interrupt, too, leaves the state as it was
            for name, array in before.items():
                self._place.copy_into(self._state[name], self._place.hold(to_ort(array)))
            self._place.wait()  # the copies in main memory may go
        self._binding = binding
        return True

    def _bound(self, uploads: Uploads, feeds: Mapping[str, np.ndarray]) -> onnxruntime.IOBinding:
        binding = self.session.io_binding()
        uploads.bind(binding, feeds, _SLOT)
        for value in self.session.get_inputs():
            if value.name not in feeds:
                binding.bind_ortvalue_input(
                    value.name, self._state.get(value.name) or self._read_only.buffers[value.name]
                )
        replaced = {output: self._state[name] for name, output in self._updates.items()}
        for output in self.session.get_outputs():
            value = replaced.get(output.name) or self._room(output)
            self._outputs[output.name] = value
            binding.bind_ortvalue_output(output.name, value)
        return binding

    def _room(self, output: onnxruntime.NodeArg) -> onnxruntime.OrtValue:
        dtype = element_type(output.type)
        assert dtype is not None  # `in_place_obstacle` refuses others
        return self._place.hold(to_ort(np.zeros(output.shape, dtype.numpy())))
