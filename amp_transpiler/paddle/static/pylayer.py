"""`static_pylayer` builds a layer from a function for the forward pass and one for the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amp_transpiler.errors import InputError
from amp_transpiler.paddle.building import emit, program_of
from amp_transpiler.paddle.framework.build_record import build_record
from amp_transpiler.program.program import Variable

__all__ = ["static_pylayer"]


def static_pylayer(
    forward_fn: Callable[..., Any],
    inputs: Sequence[Variable],
    backward_fn: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """Return what `forward_fn(*inputs)` returns, with the gradient that `backward_fn` makes.

    Both functions build operators: `forward_fn` once now, `backward_fn` whenever the program is differentiated. Other
    variables that they read get no gradient.

    Args:
        forward_fn: takes the inputs, returns a variable or several.
        inputs: variables.
        backward_fn: takes the gradients of what `forward_fn` returned, returns one for each input, None for none.
        name: Paddle's, no effect.

    Raises:
        InputError: there is no `backward_fn`, and an input asks for a gradient.
    """
    del name
    program = program_of(*inputs)
    if backward_fn is None and (asking := [x.name for x in inputs if not x.stop_gradient]):
        raise InputError(f"static_pylayer without backward_fn: set stop_gradient of {', '.join(asking)} to True")
    results = forward_fn(*inputs)
    if results is None:
        return None
    several = isinstance(results, (list, tuple))
    inner = list(results) if several else [results]
    program.no_gradient.update(variable.name for variable in inner)
    outer = [emit("Identity", [variable]) for variable in inner]
    if backward_fn is None:
        program.no_gradient.update(variable.name for variable in outer)
    else:
        gradients = build_record(program).custom_gradients
        gradients.append(([x.name for x in inputs], [x.name for x in outer], backward_fn))
    return type(results)(outer) if several else outer[0]
