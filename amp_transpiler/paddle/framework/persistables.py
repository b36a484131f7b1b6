"""Adds values that live in a scope from run to run, and what the startup program computes them from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.framework.build_record import build_record
from amp_transpiler.paddle.framework.programs import default_main_program, default_startup_program
from amp_transpiler.paddle.framework.random import drawing_state, generator, global_seed, turn_of
from amp_transpiler.program.program import Persistable, Program, Variable

__all__ = [
    "Initial",
    "create_persistable",
    "initialise",
    "initialise_by",
    "initialise_from",
    "initialise_with",
    "renew_draws",
    "retype",
]

Initial = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def create_persistable(
    persistable: Persistable,
    shape: Sequence[int],
    initial: Initial | float,
    dtype: ir.DataType = ir.DataType.FLOAT,
    *,
    main: Program | None = None,
    startup: Program | None = None,
) -> Variable:
    """Add a value that lives in the scope to the main program, and its initial value to the startup program.

    A startup program that initialises the name already keeps its initial value. So two programs can share a value.

    Args:
        persistable: name and kind.
        shape: dimensions.
        initial: a number, or a function of a random generator and the shape.
        dtype: element type.
        main: the program that uses it; the current one unless given.
        startup: the program that computes its initial value; the current one unless given.

    Raises:
        InputError: one of the programs has the name with another shape or element type.
    """
    main = main if main is not None else default_main_program()
    startup = startup if startup is not None else default_startup_program()
    main.add_persistable(persistable, dtype, shape)
    initialise(startup, persistable, tuple(shape), initial, dtype)
    return Variable(main, persistable.name)


def initialise(
    startup: Program, persistable: Persistable, shape: tuple[int, ...], initial: Initial | float, dtype: ir.DataType
) -> None:
    """Make the startup program set `persistable.name`, unless it does so already.

    Raises:
        InputError: it does, with another shape or element type.
    """
    if _is_initialised(startup, persistable.name, dtype, shape, "another layer asks for"):
        return
    if callable(initial):
        _set_initial(startup, persistable, "Identity", _random_initial(startup, persistable, shape, initial, dtype))
        return
    sizes = startup.builder().constant(np.array(shape, np.int64))
    fill = ir.Tensor(np.full(1, initial, dtype.numpy()))
    _set_initial(startup, persistable, "ConstantOfShape", sizes, value=fill).shape = ir.Shape(shape)


def initialise_with(startup: Program, persistable: Persistable, tensor: ir.TensorProtocol) -> None:
    """Make the startup program set `persistable.name` to `tensor`, which is not read before that program runs.

    A startup program that sets the name already keeps what it has. So two programs can share a value.

    Raises:
        InputError: it sets the name with another shape or element type.
    """
    shape = tuple(int(size) for size in tensor.shape.numpy())
    if not _is_initialised(startup, persistable.name, tensor.dtype, shape, "the model has"):
        value = _lazy_initial(startup, persistable.name, shape, tensor.dtype, lambda: tensor)
        _set_initial(startup, persistable, "Identity", value)


def initialise_from(startup: Program, persistable: Persistable, parameter: Variable) -> None:
    """Make the startup program set `persistable.name` to the initial value of `parameter`, in float32."""
    source = startup.value(startup.updates[parameter.name])
    result = _set_initial(startup, persistable, "Cast", source, to=int(ir.DataType.FLOAT))
    result.shape = ir.Shape(parameter.shape)


def retype(variable: Variable, dtype: ir.DataType) -> bool:
    """Give a persistable value and its initial value another element type; return False if the program reads it."""
    program, name = variable.program, variable.name
    if variable.value.uses() or name in program.updates:
        return False
    startup = default_startup_program()
    variable.value.type = ir.TensorType(dtype)
    source = startup.value(startup.updates[name])
    result = _set_initial(startup, program.persistables[name], "Cast", source, to=int(dtype))
    result.shape = source.shape
    program.version += 1
    return True


def initialise_by(
    startup: Program, persistable: Persistable, source: str, compute: Callable[[GraphBuilder, ir.Value], ir.Value]
) -> None:
    """Make the startup program compute the initial value of `persistable` from that of the value `source`."""
    if persistable.name not in startup.updates:
        initial = compute(startup.builder(), startup.value(startup.updates[source]))
        _set_initial(startup, persistable, "Identity", initial)


def _is_initialised(startup: Program, name: str, dtype: ir.DataType, shape: tuple[int, ...], who_differs: str) -> bool:
    """Return whether the startup program sets `name`.

    Raises:
        InputError: it does, with another shape or element type.
    """
    if name not in startup.updates:
        return False
    existing = startup.value(startup.updates[name])
    if existing.dtype != dtype or list(existing.shape or ()) != list(shape):
        raise InputError(
            f"the startup program initialises '{name}' as {existing.dtype} {existing.shape} already, and {who_differs} "
            f"{dtype} {list(shape)}: give one of the two another name, or use a startup program of its own"
        )
    return True


def _set_initial(startup: Program, persistable: Persistable, op_type: str, of: ir.Value, **attributes: Any) -> ir.Value:
    """Let the startup program set `persistable.name` to what an operator makes of a value; return the result."""
    builder = startup.builder()
    result = builder.op(op_type, [of], attributes, name=builder.names.fresh(f"{persistable.name}__initial"))
    startup.updates[persistable.name] = str(result.name)
    startup.persistables.setdefault(persistable.name, persistable)
    return result


def renew_draws(startup: Program) -> None:
    """Let a program draw its initial values again, if the seed was set since they were drawn."""
    state = (startup.random_seed, drawing_state())
    record = build_record(startup)
    if record.drawn and record.drawn_with != state:
        record.drawn_with = state
        startup.version += 1


def _random_initial(
    startup: Program, persistable: Persistable, shape: tuple[int, ...], initial: Initial, dtype: ir.DataType
) -> ir.Value:
    name = persistable.name
    if persistable.kind != "state":  # the seed of Dropout takes no turn, so that weights are the same without Dropout
        build_record(startup).drawn.append(name)

    def draw() -> ir.TensorProtocol:
        if persistable.kind == "state":
            random = generator(startup.random_seed or global_seed(), name)
        elif startup.random_seed:
            random = generator(startup.random_seed, build_record(startup).drawn.index(name))
        else:
            random = generator(global_seed(), turn_of(name, build_record(startup).drawn))
        return ir.Tensor(np.asarray(initial(random, shape)).astype(dtype.numpy()), dtype=dtype)

    return _lazy_initial(startup, name, shape, dtype, draw)


def _lazy_initial(
    startup: Program, name: str, shape: tuple[int, ...], dtype: ir.DataType, make: Callable[[], ir.TensorProtocol]
) -> ir.Value:
    """Return a constant of the startup program whose value is computed when it is first read.

    So a random value uses the seed that the program has when it runs, and a large table costs nothing until then.
    """
    label = startup.builder().names.fresh(f"{name}__value")
    value = ir.Value(name=label, type=ir.TensorType(dtype), shape=ir.Shape(shape))
    value.const_value = ir.LazyTensor(make, dtype=dtype, shape=ir.Shape(shape), name=label)
    startup.model.graph.register_initializer(value)
    startup.remember(value)
    return value
