"""`paddle.static.amp.bf16.amp_utils`: has the functions of `static.amp` that convert programs, for bfloat16 only."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from amp_transpiler.graph.dtypes import BFLOAT16
from amp_transpiler.graph.regions import fp16_guard
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.systems.paddle.casting import cast_model_to_fp16, cast_parameters_to_fp16
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists

__all__ = [
    "bf16_guard",
    "cast_model_to_bf16",
    "cast_parameters_to_bf16",
    "convert_float_to_uint16",
    "rewrite_program_bf16",
]

bf16_guard = fp16_guard  # one kind of region serves both formats


def rewrite_program_bf16(main_prog: Program, amp_lists: AutoMixedPrecisionLists | None = None) -> None:
    """Convert a program to bfloat16 by its lists, in place, as level O1 does."""
    cast_model_to_fp16(main_prog, amp_lists, use_fp16_guard=False, dest_type="bfloat16", level="O1")


def cast_model_to_bf16(
    program: Program,
    startup_prog: Program | None = None,  # noqa: ARG001  # Paddle's: parameters are rounded in the scope
    amp_lists: AutoMixedPrecisionLists | None = None,
    use_bf16_guard: bool = True,
) -> set[str]:
    """Convert a program to bfloat16 as a whole, in place, as level O2 does.

    Args:
        program: the program.
        startup_prog: no effect; `cast_parameters_to_bf16` rounds the values.
        amp_lists: white, black and gray operators; None for the defaults.
        use_bf16_guard: only nodes inside a `bf16_guard` region become low.

    Returns:
        The names of the weights and constants that are bfloat16 now.
    """
    return cast_model_to_fp16(program, amp_lists, use_fp16_guard=use_bf16_guard, dest_type="bfloat16", level="O2")


def cast_parameters_to_bf16(
    place: Place, program: Program, scope: Scope | None = None, to_bf16_var_names: Collection[str] | None = None
) -> None:
    """Round parameters in a scope to bfloat16.

    Args:
        place: where the program runs.
        program: the program that reads them.
        scope: where the values live; the global scope unless given.
        to_bf16_var_names: which; what `cast_model_to_bf16` returned.
    """
    held = global_scope() if scope is None else scope
    cast_parameters_to_fp16(place, program, held, to_bf16_var_names, "bfloat16")


def convert_float_to_uint16(in_list: Any) -> np.ndarray:
    """Round numbers to bfloat16 and return their 16 bits as uint16, the form in which Paddle feeds bfloat16."""
    return np.asarray(in_list, np.float32).astype(BFLOAT16.numpy).view(np.uint16)
