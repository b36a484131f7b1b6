"""The programs being built: which is current, its inputs and its parameters."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.graph.program import Persistable, Program, Variable
from amp_transpiler.paddle.utils.seed import generator, global_seed

__all__ = [
    "create_persistable",
    "data",
    "default_main_program",
    "default_startup_program",
    "enable_static",
    "program_guard",
]

Initial = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

_defaults = (Program(), Program())
_current: contextvars.ContextVar[tuple[Program, Program]] = contextvars.ContextVar("amp_transpiler.programs")


def enable_static() -> None:
    """Do nothing: every program is static. It is there so that Paddle's programs run."""


def default_main_program() -> Program:
    """Return the program that layers append to."""
    return _current.get(_defaults)[0]


def default_startup_program() -> Program:
    """Return the program that makes initial values."""
    return _current.get(_defaults)[1]


@contextlib.contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Make layers append to `main_program`, and their parameters start in `startup_program`, inside."""
    token = _current.set((main_program, startup_program if startup_program is not None else default_startup_program()))
    try:
        yield
    finally:
        _current.reset(token)


def data(name: str, shape: Sequence[int | str | None], dtype: Any = "float32", lod_level: int = 0) -> Variable:
    """Add an input that is fed with every run.

    Args:
        name: its name in `feed`.
        shape: its dimensions; None or -1 is free from run to run, and so is a name. A free first dimension is the
            batch, the same for all inputs; give it a name of its own where it is not.
        dtype: element type.
        lod_level: Paddle's, must be 0.

    Raises:
        InputError: the name is taken, or `lod_level` is not 0.
    """
    if lod_level:
        raise InputError(f"data '{name}': lod_level must be 0, got {lod_level}: ONNX has no nested sequences")
    program = default_main_program()
    dims = [
        size
        if isinstance(size, str) or (size is not None and size >= 0)
        else "batch"
        if axis == 0
        else f"{name}_{axis}"
        for axis, size in enumerate(shape)
    ]
    program.add_input(name, parse_dtype(dtype), dims)
    program.no_gradient.add(name)
    return Variable(program, name)


def create_persistable(
    about: Persistable,
    shape: Sequence[int],
    initial: Initial | float,
    dtype: ir.DataType = ir.DataType.FLOAT,
    *,
    main: Program | None = None,
    startup: Program | None = None,
) -> Variable:
    """Add a value that lives in the scope to the main program, and its initial value to the startup program.

    A startup program that initialises the name already keeps its initial value: two programs share it so.

    Args:
        about: name and kind.
        shape: dimensions.
        initial: a number, or a function of a random generator and the shape.
        dtype: element type.
        main: the program that uses it; the current one unless given.
        startup: the program that makes it; the current one unless given.

    Raises:
        InputError: one of the programs has the name with another shape or element type.
    """
    main = main if main is not None else default_main_program()
    startup = startup if startup is not None else default_startup_program()
    main.add_persistable(about, dtype, shape)
    initialise(startup, about, tuple(shape), initial, dtype)
    return Variable(main, about.name)


def initialise(
    startup: Program, about: Persistable, shape: tuple[int, ...], initial: Initial | float, dtype: ir.DataType
) -> None:
    """Make the startup program set `about.name`, unless it does so already.

    Raises:
        InputError: it does, with another shape or element type.
    """
    name = about.name
    if name in startup.updates:
        found = startup.value(startup.updates[name])
        if found.dtype != dtype or list(found.shape or ()) != list(shape):
            raise InputError(
                f"the startup program initialises '{name}' as {found.dtype} {found.shape} already, and is now asked "
                f"for {dtype} {list(shape)}: give one of the two another name"
            )
        return
    builder = startup.builder()
    if callable(initial):
        value = _random_initial(startup, name, shape, initial, dtype)
    else:
        fill = ir.tensor(np.full(1, initial, dtype.numpy()))
        value = builder.op("ConstantOfShape", [builder.constant(np.array(shape, np.int64))], {"value": fill})
        value.shape = ir.Shape(shape)
    made = builder.op("Identity", [value], name=builder.names.fresh(f"{name}__initial"))
    startup.updates[name] = str(made.name)
    startup.persistables.setdefault(name, about)


def _random_initial(
    startup: Program, name: str, shape: tuple[int, ...], initial: Initial, dtype: ir.DataType
) -> ir.Value:
    """Return a constant of the startup program whose value is made when it is first looked at.

    So it goes by the seed that the program has then, and a big table costs nothing until the program runs.
    """

    def make() -> ir.TensorProtocol:
        seed = startup.random_seed or global_seed()
        return ir.tensor(np.asarray(initial(generator(seed, name), shape)).astype(dtype.numpy()), dtype=dtype)

    label = startup.builder().names.fresh(f"{name}__value")
    value = ir.Value(name=label, type=ir.TensorType(dtype), shape=ir.Shape(shape))
    value.const_value = ir.LazyTensor(make, dtype=dtype, shape=ir.Shape(shape), name=label)
    startup.model.graph.register_initializer(value)
    startup.remember(value)
    return value
