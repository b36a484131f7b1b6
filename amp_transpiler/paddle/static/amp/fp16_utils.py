"""`paddle.static.amp.fp16_utils`: has the functions that convert a program without `decorate`."""

from __future__ import annotations

from amp_transpiler.graph.regions import fp16_guard
from amp_transpiler.program.program import Program
from amp_transpiler.systems.paddle.casting import cast_model_to_fp16, cast_parameters_to_fp16
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists

__all__ = [
    "AutoMixedPrecisionLists",
    "cast_model_to_fp16",
    "cast_parameters_to_fp16",
    "fp16_guard",
    "rewrite_program",
]


def rewrite_program(
    main_prog: Program, amp_lists: AutoMixedPrecisionLists | None = None, dest_type: str = "float16"
) -> None:
    """Convert a program by its lists, in place, as level O1 does."""
    cast_model_to_fp16(main_prog, amp_lists, use_fp16_guard=False, dest_type=dest_type, level="O1")
