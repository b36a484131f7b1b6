"""A CPU whose products are a little off, as those of another device are: it shows what such noise does to a program."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference
import onnxruntime

from amp_transpiler.ops.kinds import COMPUTE
from amp_transpiler.runtime import ort
from amp_transpiler.runtime.places import CPUPlace

__all__ = ["PHASE", "ShakenPlace"]

PHASE = "@phase@"
"""A float32 scalar that a session of a `ShakenPlace` reads beside its inputs: each number is other noise."""

_SIZE = 2.0**-11  # TF32 and float16 round by as much
_TURNS = 12345.0  # neighbouring results get noise that has nothing to do with each other
_STANDARD = ("", "ai.onnx")
_DEFAULTS = ort.SessionSettings()


@dataclasses.dataclass(frozen=True, slots=True)
class ShakenPlace(CPUPlace):
    """The processor, with noise on the results of products and convolutions."""

    def open_session(
        self, model: bytes | str | os.PathLike[str], settings: ort.SessionSettings = _DEFAULTS
    ) -> onnxruntime.InferenceSession:
        """Return a session of a serialised model that reads `PHASE`, too."""
        assert isinstance(model, bytes)  # steps are never files
        return CPUPlace.open_session(self, _shaken(model), settings)


def _shaken(message: bytes) -> bytes:
    proto = onnx.load_from_string(message)
    graph = proto.graph
    types = _types(onnx.shape_inference.infer_shapes(proto).graph)
    graph.input.append(onnx.helper.make_tensor_value_info(PHASE, onnx.TensorProto.FLOAT, []))
    for name, number in (("@turns@", _TURNS), ("@size@", _SIZE), ("@one@", 1.0)):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(number, np.float32), name))
    _shake(graph, types)
    return bytes(proto.SerializeToString())


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def _types(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the element types that are known, of bodies, too."""
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    for node in graph.node:
        for body in _bodies(node):
            types |= _types(body)
    return types


def _shake(graph: onnx.GraphProto, types: Mapping[str, int]) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for body in _bodies(node):
            _shake(body, types)
        nodes.append(node)
        if _is_product(node, types):
            nodes += _noise(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _is_product(node: onnx.NodeProto, types: Mapping[str, int]) -> bool:
    name = node.op_type if node.domain in _STANDARD else f"{node.domain}::{node.op_type}"
    if name not in COMPUTE or not node.output[0]:
        return False
    # ONNX does not know the type of a fused product.
    return types.get(node.output[0], onnx.TensorProto.FLOAT) in (onnx.TensorProto.FLOAT, onnx.TensorProto.UNDEFINED)


def _noise(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Let the result of a node be multiplied by `1 + size * sin(turns * result + phase)`."""
    result = node.output[0]
    exact, turned, angle, sine, noise, factor = (f"{result}@{number}" for number in range(6))
    node.output[0] = exact
    for op, inputs, output in (
        ("Mul", [exact, "@turns@"], turned),
        ("Add", [turned, PHASE], angle),
        ("Sin", [angle], sine),
        ("Mul", [sine, "@size@"], noise),
        ("Add", [noise, "@one@"], factor),
        ("Mul", [exact, factor], result),
    ):
        yield onnx.helper.make_node(op, inputs, [output])
