"""CUDA graphs: a run that was captured once is repeated as one launch, without the host's part of each kernel.

ONNX Runtime captures a session whose inputs and outputs stay at the same addresses. A graph belongs to the thread that
captured it, and repeats exactly what the captured run did: sizes, addresses, random numbers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.program.program import Program
from amp_transpiler.runtime import cuda_runtime, ort
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.values import to_ort

__all__ = ["NOT_CAPTURED", "Graph", "obstacle"]

_logger = logging.getLogger(__name__)

NOT_CAPTURED = "-1"  # ONNX Runtime's word for a run that is neither captured nor repeated

# Operators that a graph cannot repeat, and why. Names of standard operators and of ONNX Runtime's own.
_SIZES = "the size of its result depends on computed numbers"
_CONTROL = "the host decides what runs next"
_RANDOM = "a graph would repeat its random numbers"
_RECURRENT = "cuDNN copies sequence lengths from the host"
_OBSTACLES = {
    **dict.fromkeys(("Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"), _SIZES),
    **dict.fromkeys(("BeamSearch", "GreedySearch", "If", "Loop", "Sampling", "Scan", "SequenceMap"), _CONTROL),
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), _RANDOM
    ),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _RECURRENT),
}


def obstacle(program: Program) -> str:
    """Return why the runs of a program cannot be captured, or an empty string; where its nodes run is not looked at."""
    graph = program.model.graph
    for value in graph.inputs:
        if not isinstance(value.type, ir.TensorType) or value.dtype == ir.DataType.STRING:
            return f"input '{value.name}' is not a tensor of numbers"
        if value.is_initializer():
            return f"input '{value.name}' has a default, so that it may be fed or not"
        if value.shape is None or not all(isinstance(size, int) and size > 0 for size in value.shape):
            shape = "of unknown rank" if value.shape is None else str(value.shape)
            return f"input '{value.name}' has no fixed shape, it is {shape}"
    for value in graph.outputs:
        if not isinstance(value.type, ir.TensorType) or value.dtype == ir.DataType.STRING:
            return f"output '{value.name}' is not a tensor of numbers"
    for node in all_nodes(program.model):
        if node.op_type in _OBSTACLES:
            return f"{node.op_type} '{node.name or node.outputs[0].name}': {_OBSTACLES[node.op_type]}"
    return ""


class Graph:
    """The CUDA graph of a session: its runs begin and end in fixed memory of the device.

    Args:
        session: a session with `enable_cuda_graph`, which nothing else runs.
        place: where it runs.
        reopen: opens the same session without a graph.

    Attributes:
        refused: why the device would not capture the first run; empty if it did.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, place: Place, reopen: Callable[[], onnxruntime.InferenceSession]
    ) -> None:
        self.refused = ""
        self._session, self._place, self._reopen = session, place, reopen
        self._thread = 0  # the one whose runs are captured
        self._inputs: dict[str, onnxruntime.OrtValue] = {}
        self._outputs: dict[str, onnxruntime.OrtValue] = {}
        self._binding: onnxruntime.IOBinding | None = None
        self._loaded: object = None  # whose feeds the inputs hold
        self._second: onnxruntime.InferenceSession | None = None
        self._lock = threading.Lock()

    def plain(self) -> onnxruntime.InferenceSession:
        """Return a session that captures nothing, opened at the first call."""
        with self._lock:
            if self._second is None:
                if not self.refused:
                    _logger.info("a second thread cannot use the CUDA graph of the first: it gets a session of its own")
                self._second = self._reopen()
            return self._second

    def run(self, values: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray] | None:
        """Run once, and return outputs in main memory; None in a thread that cannot use the graph."""
        if not self._is_mine() or not self._is_captured(values):
            return None
        self._load(values)
        self._session.run_with_iobinding(self._binding)
        return [self._place.bring_back(self._outputs[name]) for name in names]

    def bind(self, values: Mapping[str, np.ndarray]) -> Callable[[], None] | None:
        """Return a function that runs once on these feeds, and waits; None in a thread that cannot use the graph."""
        if not self._is_mine() or not self._is_captured(values):
            return None

        def run() -> None:
            if self._loaded is not values:  # another run came between
                self._load(values)
            self._session.run_with_iobinding(self._binding)

        self._load(values)
        return run

    def _is_mine(self) -> bool:
        with self._lock:
            self._thread = self._thread or threading.get_ident()
            return self._thread == threading.get_ident()

    def _is_captured(self, values: Mapping[str, np.ndarray]) -> bool:
        """Whether runs are captured, which the first call does."""
        if self._binding is None and not self.refused:
            try:
                self._fix(values)
            except ort.ORT_ERRORS as error:
                self.refused = ort.error_text(error)
                _logger.warning("no CUDA graph: %s", self.refused)
        return not self.refused

    def _load(self, values: Mapping[str, np.ndarray]) -> None:
        """Copy arrays of all inputs to where runs read them."""
        for name, array in values.items():
            plain = np.asarray(array, order="C")
            cuda_runtime.copy_to_device(self._inputs[name].data_ptr(), plain.ctypes.data, plain.nbytes)
        self._loaded = values

    def _fix(self, values: Mapping[str, np.ndarray]) -> None:
        """Take memory for inputs and outputs. A run without capturing tells the outputs' sizes."""
        self._inputs = {name: self._place.hold(to_ort(array)) for name, array in values.items()}
        self._place.wait()
        names = [output.name for output in self._session.get_outputs()]
        options = onnxruntime.RunOptions()
        options.add_run_config_entry("gpu_graph_id", NOT_CAPTURED)
        first = self._bound()
        for name in names:
            self._place.bind_output(first, name)
        self._session.run_with_iobinding(first, options)
        self._outputs = dict(zip(names, first.get_outputs(), strict=True))
        self._binding = self._bound()
        for name, value in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)
        self._session.run_with_iobinding(self._binding)

    def _bound(self) -> onnxruntime.IOBinding:
        binding = self._session.io_binding()
        for name, value in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        return binding
