"""Creates the parameters of layers: names, initial values, and the treatment that `ParamAttr` asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.framework.element_types import declared_dtype
from amp_transpiler.paddle.framework.persistables import create_persistable, initialise_by
from amp_transpiler.paddle.framework.programs import default_startup_program
from amp_transpiler.paddle.initial_values import Constant, Initializer, XavierUniform, chosen_initializer
from amp_transpiler.paddle.param_attr import Attr, ParamAttr, WeightNormParamAttr
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Persistable, Program, Variable

__all__ = ["ParameterMaker", "create_parameter"]


def create_parameter(
    shape: Sequence[int],
    dtype: Any = "float32",
    name: str | None = None,
    attr: Attr = None,
    is_bias: bool = False,
    default_initializer: Initializer | None = None,
) -> Variable:
    """Add a trainable parameter to the current program, and its initial value to the current startup program.

    Args:
        shape: its dimensions.
        dtype: its element type.
        name: its name; `create_parameter_0.w_0` and so on unless given here or in `attr`.
        attr: its treatment.
        is_bias: whether it starts at 0 and is named `.b_0`.
        default_initializer: its initial value where `attr` gives none; Xavier's uniform one unless given.

    Raises:
        InputError: a program has the name already, with another shape or element type.
        OptionError: `attr` is False, or of a type that describes no parameter.
    """
    layer = ParameterMaker("create_parameter")
    initial = default_initializer or (Constant(0.0) if is_bias else XavierUniform())
    parsed = ParamAttr.parse(attr)
    if parsed is None:
        raise OptionError("create_parameter: attr=False asks for no parameter: give None or a ParamAttr")
    return layer.create(parsed, "b" if is_bias else "w", shape, declared_dtype(dtype), initial, name=name)


class ParameterMaker:
    """Names and creates the parameters of a layer under construction.

    Args:
        kind: the kind of layer; `fc` gives the names `fc_0`, `fc_1` and so on.
        name: a name instead of these.
        program: the program it is in; the current one unless given.
    """

    def __init__(self, kind: str, name: str | None = None, program: Program | None = None) -> None:
        self.name = name if name is not None else unique_name.generate(kind)
        self._program = program

    def weight(
        self, attr: Attr, shape: Sequence[int], dtype: ir.DataType | None, initial: Initializer
    ) -> Variable | None:
        """Return parameter `.w_0`, `.w_1`, ...; None where `attr` is False."""
        parsed = ParamAttr.parse(attr)
        if isinstance(parsed, WeightNormParamAttr):
            return self._length_and_direction(parsed, shape, self._float(dtype), initial)
        return None if parsed is None else self.create(parsed, "w", shape, self._float(dtype), initial)

    def _length_and_direction(
        self, attr: WeightNormParamAttr, shape: Sequence[int], dtype: ir.DataType | None, initial: Initializer
    ) -> Variable:
        """Return a weight that is the product of two parameters: a length, and a direction."""
        dim, rank = attr.dim, len(shape)
        if dim is not None and not -rank <= dim < rank:
            raise OptionError(f"WeightNormParamAttr: dim must be from {-rank} to {rank - 1}, got {dim}")
        length_axis = None if dim is None else dim % rank
        others = [axis for axis in range(rank) if axis != length_axis]
        label = attr.name or unique_name.generate(f"{self.name}.w")
        plain = {field.name: getattr(attr, field.name) for field in dataclasses.fields(ParamAttr)}
        direction = self.create(ParamAttr(**{**plain, "name": f"{label}_v"}), "w", shape, dtype, initial)
        length = Persistable(f"{label}_g", "parameter", trainable=attr.trainable, learning_rate=attr.learning_rate)

        def norm(b: GraphBuilder, value: ir.Value) -> ir.Value:
            return b.reduce("ReduceL2", value, others)

        sizes = [size if axis == length_axis else 1 for axis, size in enumerate(shape)]
        initialise_by(default_startup_program(), length, direction.name, norm)
        created = create_persistable(length, sizes, 1.0, dtype or ir.DataType.FLOAT, main=self._program)
        b = created.program.builder()
        scaled = b.mul(direction.value, b.div(created.value, norm(b, direction.value)))
        return Variable(created.program, str(scaled.name))

    def bias(
        self, attr: Attr, shape: Sequence[int], dtype: ir.DataType | None, initial: Initializer | None = None
    ) -> Variable | None:
        """Return parameter `.b_0`, `.b_1`, ..., which starts at 0; None where `attr` is False."""
        parsed = ParamAttr.parse(attr)
        return None if parsed is None else self.create(parsed, "b", shape, self._float(dtype), initial or Constant(0.0))

    def _float(self, dtype: ir.DataType | None) -> ir.DataType | None:
        """Return an element type that can be trained.

        Raises:
            InputError: it is another one, that of the layer's input.
        """
        if dtype is not None and not dtype.is_floating_point():
            raise InputError(f"layer '{self.name}': its input is {dtype}: cast it, as in x.astype('float32')")
        return dtype

    def statistic(self, name: str | None, size: int, initial: float) -> Variable:
        """Return a float32 vector that the forward pass keeps, named as a weight would be."""
        return self.create(ParamAttr(name, trainable=False), "w", [size], None, Constant(initial), kind="statistic")

    def create(
        self,
        attr: ParamAttr,
        suffix: str,
        shape: Sequence[int],
        dtype: ir.DataType | None,
        initial: Initializer,
        *,
        name: str | None = None,
        kind: Literal["parameter", "statistic"] = "parameter",
    ) -> Variable:
        """Return a persistable value of this layer.

        Args:
            attr: its name, unless that is None, and treatment.
            suffix: `w` or `b`, for the name otherwise.
            shape: its dimensions.
            dtype: its element type; None for float32.
            initial: its initial value where `attr` gives none.
            name: its name where `attr` gives none.
            kind: a parameter, or a statistic that the forward pass keeps.

        Raises:
            InputError: the shape is not known, or a program has the name with another shape or element type.
        """
        if isinstance(attr, WeightNormParamAttr):
            raise OptionError("WeightNormParamAttr is for the weights of layers of static.nn, such as fc and conv2d")
        label = attr.name or name or unique_name.generate(f"{self.name}.{suffix}")
        if any(size < 0 for size in shape):
            raise InputError(
                f"parameter '{label}' would be of shape {list(shape)}: the layer's input must have known sizes there, "
                "so give the data it comes from a full shape (only the batch may be None), or reshape it"
            )
        persistable = Persistable(
            label,
            kind,
            trainable=attr.trainable,
            learning_rate=attr.learning_rate,
            regularizer=attr.regularizer,
            need_clip=attr.need_clip,
        )
        # Scales of normalisations and the like start from numbers that they choose.
        general = kind == "parameter" and (suffix == "b" or not isinstance(initial, Constant))
        global_initializer = chosen_initializer(suffix) if general else None
        chosen = attr.initializer or global_initializer or initial
        start = chosen.value if isinstance(chosen, Constant) else chosen
        return create_persistable(persistable, list(shape), start, dtype or ir.DataType.FLOAT, main=self._program)


check_arguments(globals(), __all__)
