"""Loads a result in ONNX Runtime, itself or emulated."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Literal

from amp_transpiler.child_process.child import RUN_ERRORS, default_place_name
from amp_transpiler.child_process.remote import open_file, open_program
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.ort import SessionSettings, error_text

__all__ = ["LoadResult", "check_load", "lacks_something"]


@dataclasses.dataclass(frozen=True, slots=True)
class LoadResult:
    """How ONNX Runtime received a model.

    Attributes:
        outcome: `loaded`; `emulated`: this machine's provider lacks a kernel or operator, but the emulated program
            loads; `structural`: neither loads, because a kernel or operator is missing; `refused`: invalid.
        detail: the place it was loaded on, or ONNX Runtime's message.
    """

    outcome: Literal["loaded", "emulated", "structural", "refused"]
    detail: str


def check_load(path: pathlib.Path, program: Program, place: str | None = None) -> LoadResult:
    """Load the model at `path`, which holds `program`, at a place; without one at the host's default place."""
    place = default_place_name() if place is None else place
    try:
        with open_file(path, SessionSettings(optimize=False), place):
            pass
    except RUN_ERRORS as error:
        if not lacks_something(error):
            return LoadResult("refused", error_text(error))
        reason = error_text(error)
    else:
        return LoadResult("loaded", place)
    try:
        with open_program(program):
            pass
    except RUN_ERRORS as error:
        if _lacks_kernel_or_operator(error):
            return LoadResult("structural", error_text(error))
        return LoadResult("refused", f"emulated: {error_text(error)}")
    return LoadResult("emulated", reason)


def lacks_something(error: BaseException) -> bool:
    """Whether a session was refused because this machine's providers lack a kernel or an operator."""
    return _lacks_kernel_or_operator(error) or _is_in_a_function_body(error)


def _is_in_a_function_body(error: BaseException) -> bool:
    """Whether the error is about a node inside of a function body.

    ONNX Runtime replaces an operator without a kernel by its function body. Those nodes have no names, while every
    node of a checked program has one.
    """
    return "Type Error" in str(error) and "in node ()" in str(error)


def _lacks_kernel_or_operator(error: BaseException) -> bool:
    text = str(error)
    signs = (
        "NOT_IMPLEMENTED",
        "is not a registered function/op",
        "Could not find an implementation",
        "No Op registered",
    )
    return any(sign in text for sign in signs) or "Unsupported model IR version" in text
