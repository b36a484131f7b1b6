"""`Print` has values printed after each run."""
# ruff: noqa: A002  # Paddle's argument names

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Sequence

import numpy as np

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.building import emit
from amp_transpiler.program.program import Program, Variable

__all__ = ["Print", "print_values", "printed_names"]


@dataclasses.dataclass(slots=True)
class _Printed:
    name: str
    message: str
    source: str
    left: int
    summarize: int
    facts: tuple[str, ...]


_requests: weakref.WeakKeyDictionary[Program, list[_Printed]] = weakref.WeakKeyDictionary()


def Print(  # noqa: N802  # Paddle's name
    input: Variable,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_layout: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
) -> Variable:
    """Return a copy of a variable that is printed after each run of its program; a clone of the program is silent.

    Args:
        input: the variable.
        first_n: how many runs print it; -1 for all.
        message: a text before it.
        summarize: how many elements are printed; -1 for all.
        print_tensor_name: whether the name is printed.
        print_tensor_type: whether the element type is.
        print_tensor_shape: whether the shape is.
        print_tensor_layout: no effect.
        print_tensor_lod: no effect.
        print_phase: `forward` or `both`: gradients are not printed.

    Raises:
        OptionError: only the gradient is asked for.
    """
    del print_tensor_layout, print_tensor_lod
    if print_phase.lower() not in ("forward", "both"):
        raise OptionError(
            f"Print: print_phase must be 'forward' or 'both', got {print_phase!r}: fetch a gradient instead"
        )
    copy = emit("Identity", [input])
    shown = {"name": print_tensor_name, "type": print_tensor_type, "shape": print_tensor_shape}
    facts = tuple(fact for fact, asked in shown.items() if asked)
    request = _Printed(copy.name, message or "", input.name, first_n, summarize, facts)
    _requests.setdefault(input.program, []).append(request)
    return copy


def printed_names(program: Program) -> list[str]:
    """Return the names of the values that the next run prints."""
    return [request.name for request in _requests.get(program, ()) if request.left]


def print_values(program: Program, values: Sequence[np.ndarray]) -> None:
    """Print the values of `printed_names`."""
    asked = [request for request in _requests.get(program, ()) if request.left]
    for request, value in zip(asked, values, strict=True):
        request.left -= request.left > 0
        shown = value.reshape(-1)[: None if request.summarize < 0 else request.summarize]
        facts = {"name": request.source, "type": value.dtype.name, "shape": list(value.shape)}
        words = [f"{fact}: {facts[fact]}" for fact in request.facts]
        sys.stdout.write(" ".join([request.message, *words, f"data: {shown.tolist()}"]).strip() + "\n")
