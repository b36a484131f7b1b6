"""From a program under construction to a complete ONNX model with the chosen outputs and nothing else."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.names import values_by_name
from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.graph.walk import is_used

if TYPE_CHECKING:
    from amp_transpiler.program.packed_state import Stack

__all__ = ["Assembled", "assemble", "prune", "with_algorithms", "with_values", "written_model"]


class _Program(Protocol):
    """The part of a `Program` that is read here. `Program.to_onnx` uses this module, so it cannot import `Program`."""

    model: ir.Model

    @property
    def persistables(self) -> Container[str]: ...

    @property
    def updates(self) -> Mapping[str, str]: ...

    def value(self, name: str) -> ir.Value: ...


class _Complete(_Program, Protocol):
    """The part of a `Program` that says what its outputs are."""

    @property
    def is_training(self) -> bool: ...

    @property
    def is_built(self) -> bool: ...

    @property
    def outputs(self) -> Sequence[str]: ...

    @property
    def training_info(self) -> Sequence[onnx.TrainingInfoProto]: ...

    @property
    def merged(self) -> object | None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Assembled:
    """A complete model made from a program.

    Attributes:
        model: the model; independent of the program.
        feeds: names of the inputs that the caller gives.
        state: names of the persistable values that it reads.
        updates: persistable name -> output that replaces it.
        fetches: fetched name -> output that carries it.
        stacks: persistable values that it reads and replaces as rows of a matrix, whose name stands in `state` and
            `updates` for theirs.
    """

    model: ir.Model
    feeds: tuple[str, ...]
    state: tuple[str, ...]
    updates: Mapping[str, str]
    fetches: Mapping[str, str]
    stacks: tuple[Stack, ...] = ()


def assemble(program: _Program, fetch: Sequence[str], *, updates: bool = True, known: Container[str] = ()) -> Assembled:
    """Return the model that computes the fetched values and, with `updates`, every update of a persistable value.

    Updates of the persistable values in `known` are left out.

    A fetched persistable value is the value after the run.

    Raises:
        InputError: a fetched name does not exist.
    """
    replaced = program.updates if updates else {}
    sources = {name: replaced.get(name, name) for name in fetch}
    for name in (*sources.values(), *replaced.values()):
        program.value(name)  # raises if there is none
    outputs = _Outputs(program.model.clone())
    fetches = {name: outputs.add(source) for name, source in sources.items()}
    updated = {name: outputs.add(source) for name, source in replaced.items() if name not in known}
    prune(outputs.model)
    inputs = [str(value.name) for value in outputs.model.graph.inputs]
    return Assembled(
        outputs.model,
        tuple(name for name in inputs if name not in program.persistables),
        tuple(name for name in inputs if name in program.persistables),
        updated,
        fetches,
    )


def written_model(program: _Complete) -> ir.Model:
    """Return the model that stands for a program outside: its own, or a copy with `program.outputs` as its outputs.

    In a training program the updates are outputs too.

    Raises:
        InputError: `program.outputs` names no value of it, or nothing is an output of a program that was built.
    """
    outputs = program.outputs
    if program.is_training and (outputs or program.updates):
        return assemble(program, outputs).model
    if not outputs or list(outputs) == [value.name for value in program.model.graph.outputs]:
        if (program.is_built or program.is_training) and not program.model.graph.outputs:
            raise InputError(
                f"{program!r} has no outputs, so nothing of it would be computed: set program.outputs to the names of "
                "its results, such as [loss.name]"
            )
        return program.model
    for name in outputs:
        program.value(name)  # raises if there is none
    chosen = _Outputs(program.model.clone())
    for name in outputs:
        chosen.add(name)
    if not program.training_info:  # an algorithm reads the graph too
        prune(chosen.model)
    return chosen.model


def with_algorithms(proto: onnx.ModelProto, program: _Complete) -> onnx.ModelProto:
    """Give a message that was made of a program's graph the program's training algorithms too. Return the message."""
    if program.merged is None:  # else they are part of the graph
        proto.training_info.extend(program.training_info)
    return proto


class _Outputs:
    """The outputs of a model, chosen one by one."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        model.graph.outputs.clear()
        self._values = values_by_name(model.graph)
        self._identities: dict[str, str] = {}

    @functools.cached_property
    def _builder(self) -> GraphBuilder:
        return GraphBuilder(self.model, metadata={ROLE_KEY: "optimize"})

    def add(self, name: str) -> str:
        """Make the value an output, once, and return the output's name."""
        value = self._values[name]
        if value.producer() is not None:
            if not value.is_graph_output():
                self.model.graph.outputs.append(value)
            return name
        if name not in self._identities:  # ONNX wants a node to compute each output: not an input, not a constant
            copy = self._builder.op("Identity", [value], name=self._builder.names.fresh(f"{name}__out"))
            self._identities[name] = str(copy.name)
            self.model.graph.outputs.append(copy)
        return self._identities[name]


def prune(model: ir.Model) -> None:
    """Remove nodes, inputs and constants that no output needs."""
    graph = model.graph
    common.RemoveUnusedNodesPass()(model)
    graph.inputs[:] = [value for value in graph.inputs if is_used(value)]
    for name, value in list(graph.initializers.items()):
        if not is_used(value):
            del graph.initializers[name]


def with_values(model: ir.Model, program: _Program, scope: Mapping[str, np.ndarray]) -> None:
    """Make every persistable input of `model` an initializer that holds its value in `scope`.

    Raises:
        InputError: the scope has no value for one of them.
    """
    graph = model.graph
    for value in list(graph.inputs):
        name = str(value.name)
        if name not in program.persistables:
            continue
        if name not in scope:
            raise InputError(
                f"the scope has no value for '{name}': run the startup program first, or load a checkpoint"
            )
        graph.inputs.remove(value)
        dtype = value.dtype or ir.DataType.FLOAT
        value.const_value = ir.Tensor(np.asarray(scope[name]).astype(dtype.numpy()), dtype=dtype, name=name)
        graph.register_initializer(value)
