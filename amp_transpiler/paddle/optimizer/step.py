"""What an optimizer's rule works with while it appends its update to a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.program import Persistable, Program, Variable
from amp_transpiler.paddle.framework.persistables import create_persistable

__all__ = ["Target", "UpdateStep", "free_name"]


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A parameter about to be updated.

    Attributes:
        parameter: the parameter as the forward pass reads it.
        key: what its accumulators are named after: its master weight if it has one, else itself.
        weight: its value in float32: the master weight, or the parameter.
        gradient: its gradient in float32, clipped and regularised.
        rate: its learning rate, a float32 scalar.
    """

    parameter: Variable
    key: str
    weight: ir.Value
    gradient: ir.Value
    rate: ir.Value

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of the parameter."""
        return self.parameter.shape


class UpdateStep:
    """One training step's update of a program, while it is appended.

    Args:
        program: the training program.
        startup: the program that makes initial values.
        skip: where this bool scalar holds, everything stays as it was; None for updates that always happen.
    """

    def __init__(self, program: Program, startup: Program, skip: ir.Value | None) -> None:
        self.program = program
        self.startup = startup
        self._skip = None if skip is None else self.builder.reshape(skip, []) if skip.shape != ir.Shape([]) else skip

    @property
    def builder(self) -> GraphBuilder:
        """What appends to the program; asked for anew each time, since making state turns its role back to forward."""
        return self.program.builder("optimize")

    def state(
        self, name: str, initial: float, shape: Sequence[int] = (), dtype: ir.DataType = ir.DataType.FLOAT
    ) -> ir.Value:
        """Return a new persistable value, which the startup program fills with `initial`."""
        about = Persistable(name, "state")
        return create_persistable(about, shape, initial, dtype, main=self.program, startup=self.startup).value

    def accumulator(
        self, target: Target, kind: str, initial: float = 0.0, shape: Sequence[int] | None = None
    ) -> ir.Value:
        """Return a float32 accumulator of a parameter, of its shape unless another is given: `<key>_<kind>_0`."""
        name = free_name(f"{target.key}_{kind}", self.program, self.startup)
        return self.state(name, initial, target.shape if shape is None else shape)

    def replace(self, old: ir.Value, op_type: str, inputs: Sequence[ir.Value | float]) -> ir.Value:
        """Append an operator whose result replaces the persistable value `old` after the run, unless it is skipped.

        Returns:
            The value that replaces it.
        """
        builder, name = self.builder, str(old.name)
        label = builder.names.fresh(f"{name}__new")
        operands = [builder.operand(value, old) for value in inputs]
        if self._skip is None:
            new = builder.op(op_type, operands, name=label)
        else:
            new = builder.op("Where", [self._skip, old, builder.op(op_type, operands)], name=label)
        self.program.updates[name] = label
        return new

    def replace_weight(self, target: Target, op_type: str, inputs: Sequence[ir.Value | float]) -> None:
        """Append an operator whose float32 result replaces a parameter, and its master weight if it has one."""
        parameter = target.parameter.value
        if parameter.dtype == ir.DataType.FLOAT:
            self.replace(parameter, op_type, inputs)
            return
        if target.key != parameter.name:  # a master weight
            new = self.replace(target.weight, op_type, inputs)
        else:
            new = self.builder.op(op_type, [self.builder.operand(value, target.weight) for value in inputs])
        self._round_into(parameter, new)

    def _round_into(self, parameter: ir.Value, new: ir.Value) -> None:
        builder, name = self.builder, str(parameter.name)
        label = builder.names.fresh(f"{name}__new")
        to = {"to": int(parameter.dtype or ir.DataType.FLOAT16)}
        if self._skip is None:
            builder.op("Cast", [new], to, name=label)
        else:
            builder.op("Where", [self._skip, parameter, builder.op("Cast", [new], to)], name=label)
        self.program.updates[name] = label

    def master_weight(self, parameter: Variable) -> ir.Value:
        """Return a new float32 copy of a low parameter, which starts unrounded: `<parameter>_fp32_master_0`.

        Raises:
            InputError: the startup program does not say what the parameter starts from.
        """
        startup, name = self.startup, f"{parameter.name}_fp32_master_0"
        if parameter.name not in startup.updates:
            raise InputError(
                f"the master weight of '{parameter.name}' needs the parameter's initial value, and the startup program "
                "has none: give minimize the startup program that was current when the parameter was made"
            )
        about = Persistable(name, "state")
        if name not in startup.updates:  # else another program trains the parameter too: they share the master
            builder = startup.builder()
            source = startup.value(startup.updates[parameter.name])
            label = builder.names.fresh(f"{name}__initial")
            made = builder.op("Cast", [source], {"to": int(ir.DataType.FLOAT)}, name=label)
            made.shape = ir.Shape(parameter.shape)
            startup.updates[name] = label
            startup.persistables.setdefault(name, about)
        return self.program.add_persistable(about, ir.DataType.FLOAT, parameter.shape)


def free_name(base: str, program: Program, startup: Program) -> str:
    """Return `base_0`, or the first of `base_1`, `base_2`, ... that neither program has yet."""
    count = 0
    while program.find(f"{base}_{count}") is not None or f"{base}_{count}" in startup.updates:
        count += 1
    return f"{base}_{count}"
