"""A writer of small ONNX models, and the record of a training step. It shares no code with the package under test."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Batch", "Feed", "ForeignStep", "Role", "StateRow", "Writer", "anonymous"]

Feed = dict[str, np.ndarray]
Batch = Callable[[np.random.Generator], Feed]
Role = Literal["parameter", "moment", "statistic", "counter"]


@dataclasses.dataclass(frozen=True, slots=True)
class StateRow:
    """An input of a step, the output that replaces it, its role, and its value before the first step."""

    input: str
    output: str
    role: Role
    start: np.ndarray


@dataclasses.dataclass(frozen=True, slots=True)
class ForeignStep:
    """A training step as an ONNX model, with all that it takes to run it.

    Attributes:
        model: the step.
        states: what it carries from step to step.
        batch: draws the inputs that are no state.
        loss: the output that falls.
    """

    model: onnx.ModelProto
    states: tuple[StateRow, ...]
    batch: Batch
    loss: str

    @property
    def start(self) -> Feed:
        """The state before the first step."""
        return {row.input: row.start for row in self.states}

    @property
    def bindings(self) -> dict[str, str]:
        """Input -> the output that replaces it."""
        return {row.input: row.output for row in self.states}

    @property
    def parameters(self) -> tuple[str, ...]:
        """Inputs that are trained."""
        return tuple(row.input for row in self.states if row.role == "parameter")

    def data(self, count: int, seed: int = 0) -> list[Feed]:
        """Draw batches, without the state."""
        generator = np.random.default_rng(seed)
        return [self.batch(generator) for _ in range(count)]


class Writer:
    """Appends nodes to a graph: `w("MatMul", x, y)` returns the name of the result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.states: list[StateRow] = []
        self._constants: dict[tuple[Any, ...], str] = {}
        self._renamed: dict[str, str] = {}
        self._count = 0

    def name(self, hint: str) -> str:
        """Return a name that is still free."""
        self._count += 1
        return f"{hint}_{self._count}"

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.several(op, 1, *inputs, **attributes)[0]

    def several(self, op: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """Append a node with `count` outputs, and return their names."""
        outputs = [self.name(op.lower()) for _ in range(count)]
        self.nodes.append(helper.make_node(op, inputs, outputs, self.name(op), **attributes))
        return outputs

    def constant(self, value: ArrayLike, dtype: Any = np.float32) -> str:
        """Return the initializer that holds `value`; equal ones are one."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.name("c")
            self.weights.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def axes(self, *axes: int) -> str:
        """Return the initializer that holds these integers."""
        return self.constant(axes, np.int64)

    def input(self, name: str, shape: tuple[int | str, ...], dtype: int = TensorProto.FLOAT) -> str:
        """Append an input."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, of: str, shape: tuple[int | str, ...] | None, dtype: int = TensorProto.FLOAT) -> str:
        """Append an output that is the value `of`, which a node makes: it gets the output's name."""
        assert of not in self._renamed
        self._renamed[of] = name
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def state(self, name: str, start: ArrayLike) -> str:
        """Append an input that a step replaces; `replace` says by what."""
        array = np.asarray(start)
        return self.input(name, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))

    def replace(self, name: str, by: str, start: ArrayLike, role: Role) -> None:
        """Append the output that replaces the state `name`."""
        array = np.asarray(start)
        output = self.output(f"{name}_new", by, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))
        self.states.append(StateRow(name, output, role, array))

    def model(self, *, opset: int = 18, functions: tuple[onnx.FunctionProto, ...] = ()) -> onnx.ModelProto:
        """Return the model, checked in full."""
        for node in self.nodes:  # now, since until here nodes were added that read the values by their old names
            node.input[:] = [self._renamed.get(value, value) for value in node.input]
            node.output[:] = [self._renamed.get(value, value) for value in node.output]
        graph = helper.make_graph(self.nodes, "step", self.inputs, self.outputs, self.weights)
        proto = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, functions=list(functions)
        )
        onnx.checker.check_model(proto, full_check=True)
        return proto

    def step(self, batch: Batch, loss: str, *, opset: int = 18) -> ForeignStep:
        """Return the step that was written."""
        self.output("loss", loss, ())
        return ForeignStep(self.model(opset=opset), tuple(self.states), batch, "loss")


def anonymous(step: ForeignStep, seed: int = 0) -> ForeignStep:
    """Return the same step with names that tell nothing, its inputs and outputs in another order."""
    model = onnx.ModelProto()
    model.CopyFrom(step.model)
    graph, generator = model.graph, np.random.default_rng(seed)
    listed = [*graph.input, *graph.output, *graph.initializer]
    known = dict.fromkeys([*(v.name for v in listed), *(o for n in graph.node for o in n.output)])
    numbers = generator.permutation(len(known))
    names = {name: f"t{number}" for name, number in zip(known, numbers, strict=True)}
    for value in listed:
        value.name = names[value.name]
    for index, node in enumerate(graph.node):
        node.name = f"n{index}"
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for values in (graph.input, graph.output):
        shuffled = [values[int(i)] for i in generator.permutation(len(values))]
        copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in shuffled]
        del values[:]
        values.extend(copies)

    def batch(random: np.random.Generator, inner: Batch = step.batch, names: Mapping[str, str] = names) -> Feed:
        return {names[name]: value for name, value in inner(random).items()}

    states = tuple(StateRow(names[s.input], names[s.output], s.role, s.start) for s in step.states)
    return ForeignStep(model, states, batch, names[step.loss])
