"""Appends one training step's update to a program: what an optimizer's rule works with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias, overload

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.expression import Expr, Number
from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.framework.persistables import create_persistable, initialise_by, initialise_from
from amp_transpiler.program.program import Persistable, Program, Variable
from amp_transpiler.systems.paddle.master_weights import master_name

__all__ = ["ParameterUpdate", "Setting", "UpdateStep"]

Setting: TypeAlias = float | Variable
"""A number of an optimizer's, or a variable with one element that the startup program sets."""


class UpdateStep:
    """Appends the update of all parameters in one training step.

    A step that is skipped changes nothing, only by its scalars, which costs next to nothing: the gradient and the rate
    are 0, factors on accumulators (`unless_skipped`) are 1, and what keeps a divisor away from 0 is 1.

    Args:
        program: the training program.
        startup: the program that computes initial values.
        skip: a bool scalar; where it holds, everything stays as it was. None for a step that is never skipped.
    """

    def __init__(self, program: Program, startup: Program, skip: ir.Value | None) -> None:
        self.program = program
        self.startup = startup
        self._skip = skip
        if skip is not None and skip.shape != ir.Shape([]):
            self._skip = self.builder.reshape(skip, [])
        self._shared: dict[Hashable, Expr] = {}

    @property
    def builder(self) -> GraphBuilder:
        """Appends to the program."""
        return self.program.builder("optimize")

    def state(
        self,
        name: str,
        initial: float,
        shape: Sequence[int] = (),
        dtype: ir.DataType = ir.DataType.FLOAT,
        driver: Callable[[], float] | None = None,
    ) -> ir.Value:
        """Return a new persistable value, which the startup program fills with `initial`, and `driver` before runs."""
        persistable = Persistable(name, "state", driver=driver)
        return create_persistable(persistable, shape, initial, dtype, main=self.program, startup=self.startup).value

    def state_from(self, name: str, variable: Variable) -> ir.Value:
        """Return a new persistable float32 scalar that begins with the initial value of a variable."""
        persistable = Persistable(name, "state")
        initialise_by(self.startup, persistable, variable.name, lambda builder, value: builder.reshape(value, []))
        return self.program.add_persistable(persistable, ir.DataType.FLOAT, ())

    def append(self, op_type: str, inputs: Sequence[Number], like: ir.Value) -> ir.Value:
        """Append an operator; numbers among its inputs get the element type of `like`."""
        return self.builder.op(op_type, self._values(inputs, like))

    def shared(self, key: Hashable, make: Callable[[], Expr]) -> Expr:
        """Return what `make` appends, once for all parameters with this key."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    @overload
    def unless_skipped(self, value: Expr, otherwise: float) -> Expr: ...

    @overload
    def unless_skipped(self, value: Number, otherwise: float) -> Number: ...

    def unless_skipped(self, value: Number, otherwise: float) -> Number:
        """Return `value`, or in a step that is skipped `otherwise`: a scalar, or a tensor if `value` is one."""
        if self._skip is None:
            return value
        skip, builder = self._skip, self.builder
        normal = value.value if isinstance(value, Expr) else builder.constant(value, ir.DataType.FLOAT)
        return self.shared((normal, otherwise), lambda: Expr(builder.where(skip, otherwise, normal), builder))

    def replace(self, old: ir.Value, op_type: str, inputs: Sequence[Number], *, kept: bool = False) -> ir.Value:
        """Append an operator whose result replaces the persistable value `old` after the run.

        With `kept`, the old value stays in a step that is skipped, whatever the result is.

        Returns:
            The result.
        """
        values = self._values(inputs, old)
        if not kept or self._skip is None:
            return self._replace(old, op_type, values)
        new = self.builder.op(op_type, values)
        self._replace(old, "Where", [self._skip, old, new])
        return new

    def _values(self, inputs: Sequence[Number], like: ir.Value) -> list[ir.Value]:
        builder = self.builder
        return [number.value if isinstance(number, Expr) else builder.operand(number, like) for number in inputs]

    def round_into(self, parameter: ir.Value, new: ir.Value) -> None:
        """Replace a float16 or bfloat16 parameter by a float32 value, rounded."""
        self._replace(parameter, "Cast", [new], {"to": int(parameter.dtype or ir.DataType.FLOAT16)})

    def _replace(
        self, old: ir.Value, op_type: str, inputs: Sequence[ir.Value], attributes: dict[str, int] | None = None
    ) -> ir.Value:
        builder, name = self.builder, str(old.name)
        label = builder.names.fresh(f"{name}__new")
        self.program.updates[name] = label
        return builder.op(op_type, inputs, attributes, name=label)

    def master_weight(self, parameter: Variable) -> ir.Value:
        """Return a new float32 copy of a low parameter, `PARAMETER_fp32_master_0`, with the unrounded initial value.

        Raises:
            InputError: the startup program has no initial value for the parameter.
        """
        startup, name = self.startup, master_name(parameter.name)
        if parameter.name not in startup.updates:
            raise InputError(
                f"the master weight of '{parameter.name}' needs the parameter's initial value, and the startup program "
                "has none: give minimize the startup program that was current when the parameter was made"
            )
        persistable = Persistable(name, "state")
        if name not in startup.updates:  # if it is: another program trains the parameter too, and they share the master
            initialise_from(startup, persistable, parameter)
        return self.program.add_persistable(persistable, ir.DataType.FLOAT, parameter.shape)


@dataclasses.dataclass(frozen=True, slots=True)
class ParameterUpdate:
    """Appends the update of one parameter.

    Attributes:
        step: the step that it is part of.
        parameter: the parameter as the forward pass reads it.
        key: accumulators are named after this: the master weight if there is one, else the parameter.
        weight: the parameter's value in float32: the master weight, or the parameter itself.
        used: its gradient in float32, clipped and regularised; zeros in a step that is skipped.
        rate: its learning rate, a float32 scalar; 0 in a step that is skipped.
        scale: what `used` is still to be multiplied by, the inverse of the loss scale; None: nothing.
    """

    step: UpdateStep
    parameter: Variable
    key: str
    weight: Expr
    used: Expr
    rate: Expr
    scale: Expr | None = None

    @property
    def gradient(self) -> Expr:
        """Its gradient in float32: unscaled, clipped and regularised; zeros in a step that is skipped."""
        if self.scale is None:
            return self.used
        return self.step.shared((self.used.value, "unscaled"), lambda: self.gradient_times(1.0))

    def gradient_times(self, factor: Number) -> Expr:
        """Return the gradient times a number or a scalar: one operator, even where it has the loss scale in it."""
        scale = self.scale
        if scale is None:
            return self.used * factor
        if factor == 1.0:
            return self.used * scale
        key = factor.value if isinstance(factor, Expr) else factor
        return self.used * self.step.shared((scale.value, key, "product"), lambda: scale * factor)

    def accumulator(self, kind: str, initial: Setting = 0.0, shape: Sequence[int] | None = None) -> Expr:
        """Return a new float32 accumulator named `KEY_KIND_0`.

        Args:
            kind: what it accumulates, for its name.
            initial: its initial value; that of a variable makes a scalar.
            shape: its shape; the parameter's unless given.
        """
        name = _free_name(f"{self.key}_{kind}", self.step)
        if isinstance(initial, Variable):
            return Expr(self.step.state_from(name, initial), self.step.builder)
        value = self.step.state(name, initial, self.parameter.shape if shape is None else shape)
        return Expr(value, self.step.builder)

    def number(self, setting: Setting) -> Number:
        """Return a setting as arithmetic takes it: a number, rounded to float32, or what a variable holds as a scalar.

        The powers of a rate of decay are float32. So `1 - beta` must be that of the rounded `beta`: with 0.999 the two
        differ in the fifth digit, and every step of Adam's would be off by 6e-6.
        """
        if not isinstance(setting, Variable):
            return float(np.float32(setting))
        builder = self.step.builder
        return self.step.shared(("number", setting.name), lambda: Expr(builder.reshape(setting.value, []), builder))

    def factor(self, setting: Setting) -> Number:
        """Return a factor on an accumulator, which is 1 in a step that is skipped."""
        return self.step.unless_skipped(self.number(setting), 1.0)

    def epsilon(self, value: Number) -> Number:
        """Return what keeps a divisor away from 0, which is 1 in a step that is skipped."""
        return self.step.unless_skipped(value, 1.0)

    def replace(self, accumulator: Expr, op_type: str, *inputs: Number, kept: bool = False) -> Expr:
        """Append an operator whose result replaces an accumulator after the run.

        A step that is skipped must change nothing: `factor` and a gradient of zeros do so; or the old value is `kept`.

        Returns:
            The result.
        """
        return Expr(self.step.replace(accumulator.value, op_type, inputs, kept=kept), self.step.builder)

    def replace_weight(self, op_type: str, *inputs: Number) -> None:
        """Append an operator whose float32 result replaces the parameter, and its master weight if it has one."""
        parameter = self.parameter.value
        if parameter.dtype == ir.DataType.FLOAT:
            self.step.replace(parameter, op_type, inputs)
            return
        if self.key != parameter.name:  # there is a master weight
            new = self.step.replace(self.weight.value, op_type, inputs)
        else:
            new = self.step.append(op_type, inputs, self.weight.value)
        self.step.round_into(parameter, new)


def _free_name(base: str, step: UpdateStep) -> str:
    """Return `base_0`, or the first of `base_1`, `base_2`, ... that neither program has yet."""
    count = 0
    while step.program.find(f"{base}_{count}") is not None or f"{base}_{count}" in step.startup.updates:
        count += 1
    return f"{base}_{count}"
