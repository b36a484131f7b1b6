"""CUDA graphs of whole steps: two captures that take turns, one for each set of buffers of the state.

A step reads one set of buffers and writes another. As a graph repeats addresses, there are two graphs: one reads the
set A and writes B, the other reads B and writes A. Feeds have a buffer for each as well.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.program.program import Program
from amp_transpiler.runtime import ort
from amp_transpiler.runtime.cuda_graphs import NOT_CAPTURED, obstacle
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.uploads import Uploads
from amp_transpiler.runtime.values import detached

__all__ = ["ReadOnlyState", "StepGraph", "open_capturing", "run_options", "run_plain", "step_obstacle"]

_logger = logging.getLogger(__name__)

_SIDES, _MATRIX = 2, 2
_BY_VALUE = 32  # pointers that a kernel takes as arguments; more come in a table that the host uploads
_UPLOADS = "the host uploads a table for it in each run"


def step_obstacle(model: ir.Model) -> str:
    """Return why a step cannot be captured twice, or an empty string. Shapes are inferred, in place.

    Counted operator by operator on ONNX Runtime 1.31: some upload tables of addresses from memory of the host that the
    second capture overwrites, so that the first graph would read addresses of the second.
    """
    reason = obstacle(Program(model))
    if reason:
        return reason
    infer_shapes(model)
    for node in model.graph:
        if is_standard(node) and node.op_type in _TABLES and _TABLES[node.op_type](node):
            return f"{node.op_type} '{node.name}': the host uploads a table for it in each run"
    return ""


def _split_uploads(node: ir.Node) -> bool:
    return len(node.outputs) > _BY_VALUE or len({_sizes(value) or id(value) for value in node.outputs}) > 1


def _concat_uploads(node: ir.Node) -> bool:
    return len(node.inputs) > _BY_VALUE


def _matmul_uploads(node: ir.Node) -> bool:
    left, right = (_sizes(value) for value in node.inputs[:2])
    if left is None or right is None:  # it may
        return True
    # A matrix on the right is multiplied with all rows at once.
    return left[:-2] != right[:-2] and len(right) > _MATRIX and (left[:-2], right[:-2]) != ((), ())


_TABLES = {"Split": _split_uploads, "Concat": _concat_uploads, "MatMul": _matmul_uploads}


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return a value's sizes; None unless all are known."""
    if value is None or value.shape is None:
        return None
    sizes = [size for size in value.shape if isinstance(size, int)]
    return tuple(sizes) if len(sizes) == len(value.shape) else None


def open_capturing(
    message: bytes, model: ir.Model, settings: ort.SessionSettings, place: Place
) -> onnxruntime.InferenceSession | None:
    """Open a session of a step whose runs can be captured; None where that is impossible, and the log says why."""
    if not place.has_provider_options:
        why = f"{place} has none"
    elif not place.queues_steps():
        why = "sessions bring an allocator of their own"
    elif not (why := step_obstacle(model)):
        options = (*settings.provider_options, ("enable_cuda_graph", "1"))
        # What a graph reads and writes must never be given to another session.
        private_settings = dataclasses.replace(settings, provider_options=options, shared_memory=False)
        try:
            return place.open_session(message, private_settings)
        except ort.ORT_ERRORS as error:
            why = ort.error_text(error)
    _logger.warning("no CUDA graph of this step: %s", why)
    return None


class ReadOnlyState:
    """The state that a captured step reads and does not replace, where the graph reads it.

    Args:
        place: where it lies.

    Attributes:
        buffers: the values by name.
    """

    def __init__(self, place: Place) -> None:
        self.buffers: dict[str, onnxruntime.OrtValue] = {}
        self._place = place
        self._seen: dict[str, onnxruntime.OrtValue] = {}  # whose content the buffers have

    def load(self, name: str, value: onnxruntime.OrtValue) -> None:
        """Copy a value that somebody has set since to where the graph reads it; the first one stays where it is."""
        if name not in self.buffers:
            self.buffers[name] = self._seen[name] = value
        elif self._seen[name] is not value:
            self._place.copy_into(self.buffers[name], value)
            self._seen[name] = value


class StepGraph:
    """Runs a step: twice as it is, which makes two sets of buffers, then as two graphs that take turns.

    Args:
        session: what `open_capturing` returned.
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
        self._buffers: list[dict[str, onnxruntime.OrtValue]] = []  # graph i writes set i, and reads the other
        self._bindings: dict[int, onnxruntime.IOBinding] = {}
        self._read_only = ReadOnlyState(place)

    def run(
        self, feeds: Mapping[str, np.ndarray], state: Mapping[str, onnxruntime.OrtValue]
    ) -> dict[str, onnxruntime.OrtValue]:
        """Queue a run, and return its outputs. The run after the next may overwrite them: copy what is to last."""
        self._uploads = self._uploads or self._place.uploads()
        assert self._uploads is not None  # or the session would not be open
        feeds = {name: np.asarray(array, order="C") for name, array in feeds.items()}
        if self.refused or len(self._buffers) < _SIDES:
            return self._run_plain(self._uploads, feeds, state)
        side = self._side(state)
        try:
            self._load(side, state)
            binding = self._bindings.get(side) or self._bind(self._uploads, side, feeds)
            self._uploads.copy(feeds, side)
            self.session.run_with_iobinding(binding, run_options(str(side + 1)))
        except ort.ORT_ERRORS as error:
            self.refused = ort.error_text(error)
            _logger.warning("no CUDA graph of this step: %s", self.refused)
            return self._run_plain(self._uploads, feeds, state)
        self._uploads.queued(side)
        return dict(self._buffers[side])

    def copy(self, value: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
        """Return a copy of an output that no later run overwrites."""
        return self._place.copied(value)

    def _run_plain(
        self, uploads: Uploads, feeds: Mapping[str, np.ndarray], state: Mapping[str, onnxruntime.OrtValue]
    ) -> dict[str, onnxruntime.OrtValue]:
        side = len(self._buffers) % _SIDES
        uploads.copy(feeds, side)
        outputs = run_plain(self.session, self._place, uploads, side, feeds, state)
        if len(self._buffers) < _SIDES:
            self._buffers.append(outputs)
        return dict(outputs)

    def _read(self, side: int) -> dict[str, onnxruntime.OrtValue]:
        """Return the buffers of updated state that a graph reads."""
        return {name: self._buffers[1 - side][output] for name, output in self._updates.items()}

    def _side(self, state: Mapping[str, onnxruntime.OrtValue]) -> int:
        """Return the graph that reads most of the state where it is."""
        there = [sum(state.get(name) is value for name, value in self._read(side).items()) for side in range(_SIDES)]
        return int(there[1] > there[0])

    def _load(self, side: int, state: Mapping[str, onnxruntime.OrtValue]) -> None:
        """Copy state that lies elsewhere, because somebody has set it, to where the graph reads it."""
        read = self._read(side)
        for name, value in state.items():
            if name in read:
                if value is not read[name]:
                    self._place.copy_into(read[name], value)
            else:
                self._read_only.load(name, value)

    def _bind(self, uploads: Uploads, side: int, feeds: Mapping[str, np.ndarray]) -> onnxruntime.IOBinding:
        uploads.copy(feeds, side)  # makes room, whose addresses then stay
        binding = self.session.io_binding()
        uploads.bind(binding, feeds, side)
        inputs = {value.name for value in self.session.get_inputs()}
        for name, value in {**self._read_only.buffers, **self._read(side)}.items():
            if name in inputs:
                binding.bind_ortvalue_input(name, value)
        for name, value in self._buffers[side].items():
            binding.bind_ortvalue_output(name, value)
        self._bindings[side] = binding  # last, so that an interrupt leaves none that is bound in part
        return binding


def run_plain(
    session: onnxruntime.InferenceSession,
    place: Place,
    uploads: Uploads,
    slot: int,
    feeds: Mapping[str, np.ndarray],
    state: Mapping[str, onnxruntime.OrtValue],
) -> dict[str, onnxruntime.OrtValue]:
    """Queue a run that is not captured, and return its outputs, whose memory is new.

    Args:
        session: what `open_capturing` returned.
        place: where it runs.
        uploads: has copied the feeds.
        slot: where they lie.
        feeds: input name -> what was copied.
        state: the other inputs by name.
    """
    binding = session.io_binding()
    uploads.bind(binding, feeds, slot)
    for name, value in state.items():
        binding.bind_ortvalue_input(name, value)
    names = [output.name for output in session.get_outputs()]
    for name in names:
        place.bind_output(binding, name)
    session.run_with_iobinding(binding, run_options(NOT_CAPTURED))
    uploads.queued(slot)
    return dict(zip(names, map(detached, binding.get_outputs()), strict=True))


@functools.cache
def run_options(graph: str) -> onnxruntime.RunOptions:
    """Return the options of a run that is captured or repeated under a name, or is `NOT_CAPTURED`."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", graph)
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options
