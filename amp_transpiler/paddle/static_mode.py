"""What Paddle's scripts say about the mode they run in: here every program is static."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NoReturn

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.paddle.framework.random import seed as set_seed

__all__ = [
    "disable_static",
    "e",
    "enable_grad",
    "grad",
    "in_dynamic_mode",
    "inf",
    "is_grad_enabled",
    "manual_seed",
    "nan",
    "newaxis",
    "no_grad",
    "pi",
    "set_grad_enabled",
]

e = math.e
inf = math.inf
nan = math.nan
newaxis = None
pi = math.pi


def in_dynamic_mode() -> bool:
    """Return False: every program is static."""
    return False


def is_grad_enabled() -> bool:
    """Return True: `append_backward` and `minimize` differentiate whatever `no_grad` did not mark."""
    return True


def manual_seed(seed: int) -> None:
    """Set the seed of programs that have none of their own, as `paddle.seed`."""
    set_seed(seed)


def disable_static(place: Any = None) -> NoReturn:
    """Refuse to leave static mode.

    Raises:
        OptionError: always.
    """
    del place
    raise OptionError(
        "disable_static: there is no dynamic mode here. Build a program under paddle.static.program_guard, and run it "
        "with paddle.static.Executor"
    )


def grad(*_: Any, **__: Any) -> NoReturn:
    """Refuse to differentiate values, which static mode has not.

    Raises:
        OptionError: always.
    """
    raise OptionError("paddle.grad differentiates in dynamic mode: use paddle.static.gradients(targets, inputs)")


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Stop gradients at all that is built inside; a context manager, and a decorator as `@no_grad()`."""
    program = default_main_program()
    before = {str(value.name) for node in program.model.graph for value in node.outputs}
    try:
        yield
    finally:
        made = {str(value.name) for node in program.model.graph for value in node.outputs}
        program.no_gradient.update(made - before)


@contextlib.contextmanager
def enable_grad() -> Iterator[None]:
    """Do nothing: gradients pass unless `no_grad` or `stop_gradient` stops them."""
    yield


def set_grad_enabled(mode: bool) -> contextlib.AbstractContextManager[None]:
    """Return `enable_grad()`, or `no_grad()` where `mode` is False."""
    return enable_grad() if mode else no_grad()
