"""From a program under construction to a complete ONNX model: chosen outputs, nothing that they do not need."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from amp_transpiler.errors import InputError
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.walk import scopes

__all__ = ["Assembled", "assemble", "with_values"]


@dataclasses.dataclass(frozen=True, slots=True)
class Assembled:
    """A complete model made from a program.

    Attributes:
        model: the model; independent of the program.
        feeds: names of the inputs that the caller gives.
        state: names of the persistable values that it reads.
        updates: persistable name -> output that replaces it.
        fetches: fetched name -> output that carries it.
    """

    model: ir.Model
    feeds: tuple[str, ...]
    state: tuple[str, ...]
    updates: Mapping[str, str]
    fetches: Mapping[str, str]


def assemble(program: Program, fetch: Sequence[str], *, updates: bool = True) -> Assembled:
    """Return the model that computes what is fetched and, with `updates`, every update of a persistable value.

    A persistable value that is fetched comes as it is after the run.

    Raises:
        InputError: something fetched does not exist.
    """
    copy = program.clone()
    graph = copy.model.graph
    graph.outputs.clear()
    names: dict[str, str] = {}

    def put_out(name: str) -> str:
        value = copy.value(name)
        if value.producer() is None:  # an input or a constant: ONNX wants outputs to be computed
            if name not in names:
                made = copy.builder("optimize").op("Identity", [value], name=copy.builder().names.fresh(f"{name}__out"))
                names[name] = str(made.name)
                graph.outputs.append(made)
            return names[name]
        if not value.is_graph_output():
            graph.outputs.append(value)
        return name

    fetches = {name: put_out(copy.updates.get(name, name) if updates else name) for name in fetch}
    replaced = {name: put_out(value) for name, value in copy.updates.items()} if updates else {}
    _prune(copy.model)
    inputs = [str(value.name) for value in graph.inputs]
    return Assembled(
        copy.model,
        tuple(name for name in inputs if name not in copy.persistables),
        tuple(name for name in inputs if name in copy.persistables),
        replaced,
        fetches,
    )


def _prune(model: ir.Model) -> None:
    """Remove nodes, inputs and constants that no output needs."""
    graph = model.graph
    common.RemoveUnusedNodesPass()(model)
    read = {v for scope in scopes(model) for node in scope.graph for v in node.inputs if v is not None}
    read |= {v for scope in scopes(model) for v in scope.graph.outputs}
    for value in list(graph.inputs):
        if value not in read:
            graph.inputs.remove(value)
    for name, value in list(graph.initializers.items()):
        if value not in read:
            del graph.initializers[name]


def with_values(model: ir.Model, program: Program, scope: Mapping[str, np.ndarray]) -> None:
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
