"""Builds TensorRT engines with TensorRT-RTX's own parser and strongly typed builder, which need no GPU.

They come as Python wheels (the extra `tensorrt`). They are foreign code: only the child process imports them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

__all__ = ["EngineBuild", "Profile", "Span", "build_engine", "builder_name", "has_builder", "is_float"]

Span: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The least, the usual and the largest numbers, element by element."""

_MODULE = "tensorrt_rtx_bindings"  # that of the wheel; the package `tensorrt_rtx` hands it on
_FLOATS = {"HALF": "float16", "BF16": "bfloat16", "FLOAT": "float32", "FP8": "float8"}
_NO_PLUGIN = "Plugin not found"  # what the parser says of an operator that it does not know
_OF_NODE = re.compile(r"\[ONNX Layer: ([^\]]+)\]")  # metadata that the parser gives to layers
_LONGEST = 400  # characters of a reason


def is_float(precision: str) -> bool:
    """Whether a name among those of `EngineBuild.precisions` is that of a float type."""
    return precision in _FLOATS.values()


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """The sizes for which an engine is built.

    Attributes:
        shapes: input -> its shapes.
        values: input that may hold sizes -> its numbers.
    """

    shapes: Mapping[str, Span]
    values: Mapping[str, Span] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class EngineBuild:
    """What TensorRT's parser and builder made of a file.

    Attributes:
        builder: its name and version, such as `TensorRT-RTX 1.7.1.116`.
        layers: layers of the network that the parser made.
        precisions: element type -> how many results of layers have it.
        seconds: how long it took.
        bytes: size of the engine; None: there is none.
        node: the node that is refused, where that is known.
        operator: its operator.
        fault: why the file is refused; empty if an engine was built.
    """

    builder: str
    layers: int = 0
    precisions: Mapping[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    bytes: int | None = None
    node: str = ""
    operator: str = ""
    fault: str = ""

    @property
    def low_share(self) -> float | None:
        """The share of the results of layers in 16 bits or less, among those that are floats; None: there is none."""
        floats = {name: count for name, count in self.precisions.items() if is_float(name)}
        total = sum(floats.values())
        return None if total == 0 else 1.0 - floats.get("float32", 0) / total


def has_builder() -> bool:
    """Whether a builder is installed. Nothing is imported."""
    return importlib.util.find_spec(_MODULE) is not None


def _builder() -> Any:
    """Import the builder.

    Raises:
        ImportError: there is none, or its libraries do not load.
    """
    import tensorrt_rtx_bindings  # here: only the child process loads its libraries

    return tensorrt_rtx_bindings


def builder_name() -> str:
    """Return the builder's name and version; it is imported.

    Raises:
        ImportError: there is none, or its libraries do not load.
    """
    return f"TensorRT-RTX {_builder().__version__}"


def build_engine(path: str, profile: Profile) -> EngineBuild:
    """Parse a file as a strongly typed network and build an engine of it, which is thrown away.

    Args:
        path: the ONNX file.
        profile: sizes of its inputs.

    Raises:
        ImportError: there is no builder, or its libraries do not load.
    """
    return _Build(_builder(), path).of(profile)


class _Build:
    """One build."""

    def __init__(self, trt: Any, path: str) -> None:
        self._trt, self._path = trt, path
        self._said: list[str] = []
        self._logger = _logger(trt, self._said.append)
        self._started = time.perf_counter()
        self._name = builder_name()

    def of(self, profile: Profile) -> EngineBuild:
        trt = self._trt
        builder = trt.Builder(self._logger)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, self._logger)
        if not parser.parse_from_file(self._path):
            return self._refused(parser)
        precisions = _precisions(network)
        config = builder.create_builder_config()
        fault = self._add_profile(builder, network, config, profile)
        engine = None if fault else builder.build_serialized_network(network, config)
        if engine is None:
            reason = fault or self._first_said()
            node = _mentioned(network, reason)
            return EngineBuild(self._name, network.num_layers, precisions, self._seconds(), node=node, fault=reason)
        return EngineBuild(self._name, network.num_layers, precisions, self._seconds(), engine.nbytes)

    def _add_profile(self, builder: Any, network: Any, config: Any, profile: Profile) -> str:
        """Give the sizes of open dimensions; return what is wrong with them, which is empty for nothing."""
        inputs = [network.get_input(index) for index in range(network.num_inputs)]
        open_ones = [tensor for tensor in inputs if any(size < 0 for size in tensor.shape)]
        sizes = [tensor for tensor in inputs if tensor.is_shape_tensor]
        if not open_ones and not sizes:
            return ""
        sizes_for = builder.create_optimization_profile()
        for tensor in open_ones:
            if tensor.name not in profile.shapes:
                return f"the sizes of input '{tensor.name}' are not known"
            sizes_for.set_shape(tensor.name, *profile.shapes[tensor.name])
        for tensor in sizes:
            if tensor.name not in profile.values:
                return f"input '{tensor.name}' holds sizes, and its numbers are not known"
            sizes_for.set_shape_input(tensor.name, *profile.values[tensor.name])
        config.add_optimization_profile(sizes_for)
        return ""

    def _refused(self, parser: Any) -> EngineBuild:
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        if not errors:
            return EngineBuild(self._name, seconds=self._seconds(), fault=self._first_said())
        error = errors[0]
        node, operator = str(error.node_name() or ""), str(error.node_operator() or "")
        reason = f"it has no operator {operator}" if _NO_PLUGIN in error.desc() else _reason(error.desc())
        return EngineBuild(self._name, seconds=self._seconds(), node=node, operator=operator, fault=reason)

    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    def _first_said(self) -> str:
        """Return the first error that the library logged: later ones follow from it."""
        return _reason(self._said[0]) if self._said else "it gives no reason"


def _reason(text: str) -> str:
    """Return what a message says first, in one line, without places in the library's source."""
    line = re.sub(r"^Invalid Node - \S+ ", "", " ".join(text.split())).partition(" [checkMacros.cpp")[0]
    line = re.sub(r"^(?:\S+::\S+: )?Error Code \d+: ", "", line)
    return re.sub(r"\.? In \w+ at /_src/\S+:\d+", "", line)[:_LONGEST]


def _precisions(network: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        for place in range(layer.num_outputs):
            tensor = layer.get_output(place)
            if tensor is not None:
                name = _FLOATS.get(tensor.dtype.name, tensor.dtype.name.lower())
                counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def _mentioned(network: Any, reason: str) -> str:
    """Return the node that a message is about: that of the layer with the longest name in it."""
    layers = (network.get_layer(index) for index in range(network.num_layers))
    layer = max((layer for layer in layers if layer.name in reason), key=lambda layer: len(layer.name), default=None)
    if layer is None:
        return ""
    node = _OF_NODE.search(layer.metadata or "")
    return node[1] if node else str(layer.name)


def _logger(trt: Any, say: Callable[[str], None]) -> Any:
    """Return a logger for the library that keeps its errors."""

    class Logger(trt.ILogger):  # type: ignore[misc]  # its base is known only when the library is
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                say(message)

    return Logger()
