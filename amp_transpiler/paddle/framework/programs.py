"""Keeps the programs being built: which is current, and its inputs."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError
from amp_transpiler.paddle.framework.element_types import declared_dtype
from amp_transpiler.paddle.framework.mode import check_static
from amp_transpiler.program.fed_shapes import mark_unnamed
from amp_transpiler.program.program import Program, Variable

__all__ = ["data", "default_main_program", "default_startup_program", "lod_level", "program_guard"]

_LEVEL_KEY = "amp_transpiler.lod_level"  # in `meta` of an input

_defaults = (Program(), Program())
_current: contextvars.ContextVar[tuple[Program, Program]] = contextvars.ContextVar("amp_transpiler.programs")


def default_main_program() -> Program:
    """Return the program that layers append to.

    Raises:
        OptionError: it is the default one, and `disable_static` was called.
    """
    return _programs()[0]


def default_startup_program() -> Program:
    """Return the program that computes initial values.

    Raises:
        OptionError: it is the default one, and `disable_static` was called.
    """
    return _programs()[1]


def _programs() -> tuple[Program, Program]:
    guarded = _current.get(None)
    if guarded is None:
        check_static()
        return _defaults
    return guarded


@contextlib.contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Make these the current programs inside the `with` block.

    Args:
        main_program: the program that layers append to.
        startup_program: the program that their initial values go to; stays the current one if None.
    """
    before = _current.get(_defaults)
    token = _current.set((main_program, before[1] if startup_program is None else startup_program))
    try:
        yield
    finally:
        _current.reset(token)


def data(name: str, shape: Sequence[int | str | None], dtype: Any = None, lod_level: int = 0) -> Variable:
    """Add an input to the current program. Every run must feed it.

    Args:
        name: its name in `feed`.
        shape: its dimensions. None, -1 or a name is a free dimension, which may change from run to run. An unnamed free
            first dimension is called `batch`. Inputs may be fed with batches of different sizes where no operator
            combines them row by row; in a training step that combines a batch of one row with others, name it.
        dtype: element type, float32 unless given; `uint16` is bfloat16, as in Paddle.
        lod_level: how deep Paddle's sequences of several lengths are nested. Only arrays are fed here, as what has no
            sequences may be fed in Paddle, too.

    Raises:
        InputError: the name is taken or no string, or the shape is no list of sizes.
        OptionError: `dtype` names no element type.
    """
    _check_declaration(name, shape)
    program = default_main_program()
    value = program.add_input(
        name,
        declared_dtype("float32" if dtype is None else dtype),
        [_dimension(name, axis, size) for axis, size in enumerate(shape)],
    )
    if shape and not isinstance(shape[0], str) and (shape[0] is None or shape[0] < 0):
        mark_unnamed(value)
    if lod_level:
        value.meta[_LEVEL_KEY] = lod_level
    program.no_gradient.add(name)
    return Variable(program, name)


def lod_level(variable: Variable) -> int:
    """Return how deep the sequences of an input are nested; 0 for every other variable."""
    return int(variable.value.meta.get(_LEVEL_KEY, 0))


def _check_declaration(name: object, shape: object) -> None:
    if not isinstance(name, str) or not name:
        raise InputError(f"data: the name must be a string, got {name!r:.80}")
    if not isinstance(shape, (list, tuple)) or not all(map(_is_size, shape)):
        raise InputError(f"data '{name}': the shape must be a list of sizes, None, -1 or names, got {shape!r:.80}")


def _is_size(size: object) -> bool:
    is_whole = isinstance(size, (int, np.integer)) and not isinstance(size, bool)
    return size is None or isinstance(size, str) or (is_whole and size >= -1)  # type: ignore[operator]  # a number


def _dimension(name: str, axis: int, size: int | str | None) -> int | str:
    if isinstance(size, str) or (size is not None and size >= 0):
        return size if isinstance(size, str) else int(size)
    return "batch" if axis == 0 else f"{name}_{axis}"
