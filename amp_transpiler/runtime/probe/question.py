"""A question to a device: a graph, its inputs, and what its kernels may compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.runtime.probe.arithmetic import Array

__all__ = ["SINGLE", "Candidate", "Question", "Questions"]

Candidate: TypeAlias = Callable[..., Array]
"""Called with the `Rounding` of the format and the inputs by name, as float64; returns what the kernel would."""

SINGLE = "one"
"""The candidate that rounds the exact result once: what an emulation of a low node assumes."""

IR_VERSION = 10
_TEXT_TYPES = {"float32": "float", "float64": "double"}


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question.

    Attributes:
        probe: the kind of question, such as `unary` or `reduction`.
        op: the operator, or the operators in their order.
        condition: what is special about the inputs.
        low: the format.
        body: the nodes in ONNX text, from the inputs to `y`.
        inputs: name -> values; float64 is fed in the format, any other type as it is.
        candidates: name -> what a kernel may compute.
        constants: inputs that are initializers of the graph.
        opset: of the graph.
        repeats: how often it runs: more than once where a kernel may answer differently.
    """

    probe: str
    op: str
    condition: str
    low: LowFormat
    body: str
    inputs: Mapping[str, Array]
    candidates: Mapping[str, Candidate]
    constants: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    opset: int = 21
    repeats: int = 1

    def __str__(self) -> str:
        return f"{self.op} {self.low.name}, {self.condition}"

    def feeds(self) -> dict[str, Array]:
        """Return the inputs as the graph takes them."""
        return {name: self._typed(values) for name, values in self.inputs.items()}

    def wide(self) -> dict[str, Array]:
        """Return what candidates read: inputs and constants after rounding, floats as float64."""
        typed = {name: self._typed(values) for name, values in {**self.inputs, **self.constants}.items()}
        return {
            name: values if values.dtype.kind == "i" else values.astype(np.float64) for name, values in typed.items()
        }

    def model(self) -> onnx.ModelProto:
        """Return the graph."""
        inputs = ", ".join(_declared(name, values) for name, values in self.feeds().items())
        head = f'<ir_version: {IR_VERSION}, opset_import: ["": {self.opset}]> probe'
        model = onnx.parser.parse_model(f"{head} ({inputs}) => ({_type_name(self.low.numpy)}[] y) {{ {self.body} }}")
        model.graph.output[0].type.tensor_type.ClearField("shape")  # ONNX text has no unknown rank
        for name, values in self.constants.items():
            model.graph.initializer.append(ir.serde.serialize_tensor(ir.Tensor(self._typed(values), name=name)))
        return model

    def _typed(self, values: Array) -> Array:
        values = np.asarray(values)
        return values.astype(np.float32).astype(self.low.numpy) if values.dtype == np.float64 else values


Questions: TypeAlias = Iterator[Question]


def _declared(name: str, values: Array) -> str:
    return f"{_type_name(values.dtype)}[{','.join(map(str, values.shape))}] {name}"


def _type_name(dtype: np.dtype) -> str:
    return _TEXT_TYPES.get(dtype.name, dtype.name)
