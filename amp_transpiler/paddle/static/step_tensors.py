"""Lists the tensors of a training step that precision is judged by: the forward pass, and gradients of parameters."""

from __future__ import annotations

import dataclasses

from amp_transpiler.graph.builder import is_float_tensor
from amp_transpiler.graph.origins import scope_of
from amp_transpiler.program.program import Program

__all__ = ["Place", "first_readers", "forward_tensors", "gradients_of", "loss_scales_of"]

_SCALE = "loss_scaling"  # what the names of loss scales begin with
_GRADIENT = "@GRAD"


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Says where a value comes from.

    Attributes:
        operator: Paddle's name of the operator that makes it; for a parameter, of the first one that reads it.
        where: the function, layer or line of the program that the operator comes from; empty if it is not known.
    """

    operator: str
    where: str

    def __str__(self) -> str:
        return f"{self.operator}, {self.where}" if self.where else self.operator


def forward_tensors(program: Program) -> dict[str, Place]:
    """Return the float values that the forward pass computes, casts excepted, in its order; and where each is from."""
    forward = (op for op in program.blocks[0].ops if op.role == "forward" and op.type != "cast")
    tensors: dict[str, Place] = {}
    for op in forward:
        for name in op.output_arg_names:
            value = program.find(name)  # None for an output that nothing reads
            if value is not None and is_float_tensor(value):
                node = value.producer()
                tensors[name] = Place(op.type, "" if node is None else scope_of(node))
    return tensors


def gradients_of(program: Program) -> dict[str, str]:
    """Return the parameters with a gradient, and the name of each gradient as the backward pass makes it, scaled."""
    parameters = [name for name, persistable in program.persistables.items() if persistable.kind == "parameter"]
    gradients = {name: f"{name}{_GRADIENT}" for name in parameters}
    return {name: gradient for name, gradient in gradients.items() if program.find(gradient) is not None}


def loss_scales_of(program: Program) -> list[str]:
    """Return the names of the persistable values that hold a loss scale which the step reads."""
    state = (name for name, persistable in program.persistables.items() if persistable.kind == "state")
    scales = (name for name in state if name == _SCALE or name.startswith(f"{_SCALE}_"))
    return [name for name in scales if program.value(name).uses()]


def first_readers(program: Program) -> dict[str, Place]:
    """Return the parameters with a gradient in the order of their first readers, behind casts, and these readers."""
    parameter_of = {name: name for name in gradients_of(program)}
    readers: dict[str, Place] = {}
    for op in program.blocks[0].ops:
        for name in op.input_arg_names:
            parameter = parameter_of.get(name)
            if parameter is None:
                continue
            if op.type == "cast":
                parameter_of.update(dict.fromkeys(op.output_arg_names, parameter))
            elif parameter not in readers:
                node = program.value(op.output_arg_names[0]).producer()
                readers[parameter] = Place(op.type, "" if node is None else scope_of(node))
    inside = Place("control flow", "")  # read in a body
    return {**readers, **{name: inside for name in parameter_of.values() if name not in readers}}
