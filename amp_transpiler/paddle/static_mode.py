"""Defines the names that Paddle's scripts use for the mode they run in: here every program is static."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.framework.mode import disable_static, enable_static, in_dynamic_mode
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.paddle.framework.random import get_rng_state, seed as set_seed, set_rng_state
from amp_transpiler.program.program import Variable

__all__ = [
    "Tensor",
    "check_shape",
    "disable_signal_handler",
    "disable_static",
    "e",
    "enable_grad",
    "enable_static",
    "get_cuda_rng_state",
    "grad",
    "in_dynamic_mode",
    "inf",
    "is_grad_enabled",
    "manual_seed",
    "nan",
    "newaxis",
    "no_grad",
    "pi",
    "set_cuda_rng_state",
    "set_grad_enabled",
    "set_printoptions",
]

Tensor = Variable  # for annotations; every variable is one
get_cuda_rng_state, set_cuda_rng_state = get_rng_state, set_rng_state

e = math.e
inf = math.inf
nan = math.nan
newaxis = None
pi = math.pi


def is_grad_enabled() -> bool:
    """Return True: `append_backward` and `minimize` differentiate whatever `no_grad` did not mark."""
    return True


def manual_seed(seed: int) -> None:
    """Set the seed of programs without one, as `paddle.seed`."""
    set_seed(seed)


def disable_signal_handler() -> None:
    """Do nothing: no signal is handled."""


def set_printoptions(
    precision: int | None = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    sci_mode: bool | None = None,
    linewidth: int | None = None,
) -> None:
    """Set how arrays are printed, which is what a run returns: numpy's settings."""
    np.set_printoptions(
        precision=precision,
        threshold=threshold,
        edgeitems=edgeitems,
        suppress=None if sci_mode is None else not sci_mode,
        linewidth=linewidth,
    )


def check_shape(shape: Variable | Sequence[Any]) -> None:
    """Check that a shape consists of whole numbers and integer variables.

    Raises:
        InputError: something else is in it.
    """
    for size in [shape] if isinstance(shape, Variable) else shape:
        if isinstance(size, Variable) and size.dtype in ("int32", "int64"):
            continue
        if not isinstance(size, (int, np.integer)) or size < -1:
            raise InputError(f"a shape consists of whole numbers, -1 and integer variables, got {size!r} in {shape!r}")


def grad(*_: Any, **__: Any) -> NoReturn:
    """Refuse to differentiate values, which static mode does not have.

    Raises:
        OptionError: always.
    """
    raise OptionError("paddle.grad differentiates in dynamic mode: use paddle.static.gradients(targets, inputs)")


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Stop gradients at everything that is built inside; a context manager, and a decorator as `@no_grad()`."""
    program = default_main_program()
    before = {str(value.name) for node in program.model.graph for value in node.outputs}
    try:
        yield
    finally:
        after = {str(value.name) for node in program.model.graph for value in node.outputs}
        program.no_gradient.update(after - before)


@contextlib.contextmanager
def enable_grad() -> Iterator[None]:
    """Do nothing: gradients pass unless `no_grad` or `stop_gradient` stops them."""
    yield


def set_grad_enabled(mode: bool) -> contextlib.AbstractContextManager[None]:
    """Return `enable_grad()`, or `no_grad()` where `mode` is False."""
    return enable_grad() if mode else no_grad()
