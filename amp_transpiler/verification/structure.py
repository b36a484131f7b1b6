"""Whether a model is valid: ONNX's checker in full, and whether ONNX Runtime takes it."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Literal

import onnx
import onnx_ir as ir

from amp_transpiler.graph.io import to_proto_without_weights
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.walk import all_nodes, scopes
from amp_transpiler.runtime.ort import ORT_ERRORS, error_text, open_session
from amp_transpiler.runtime.places import CPUPlace, default_place
from amp_transpiler.runtime.session import Session

__all__ = ["LoadResult", "check_load", "checker_fault", "mend_declared_shapes"]


def checker_fault(model: ir.Model, *, full: bool = True) -> str:
    """Return what `onnx.checker` says against the model, weights left out; empty if it accepts it.

    Args:
        model: the program.
        full: with strict shape and type inference.
    """
    try:
        onnx.checker.check_model(to_proto_without_weights(model), full_check=full)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return " ".join(str(error).split())[:400]
    return ""


def mend_declared_shapes(model: ir.Model) -> str:
    """Forget declared shapes that contradict what the operators compute; return what was wrong, empty if nothing was.

    First the shapes of intermediates are forgotten, since inference finds them anyway; then, if outputs of the model
    are declared wrongly, their sizes become unknown. Where neither helps, everything stays as it was.
    """
    fault = checker_fault(model)
    if not fault:
        return ""
    outputs = {value for scope in scopes(model) for value in scope.graph.outputs if value.producer() is not None}
    inner = {value for node in all_nodes(model) for value in node.outputs} - outputs
    before = {value: value.shape for value in (*inner, *outputs)}
    for value in inner:
        value.shape = None
    if not checker_fault(model):
        return f"declared shapes of intermediate values were wrong and are left out: {fault}"
    for value in outputs:
        value.shape = None if value.shape is None else ir.Shape([None] * len(value.shape))
    if not checker_fault(model):
        return f"the declared shape of an output was wrong, its sizes are left open: {fault}"
    for value, shape in before.items():
        value.shape = shape
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class LoadResult:
    """What ONNX Runtime made of a model.

    Attributes:
        outcome: `loaded`; `emulated`: the provider at hand lacks a kernel or operator, but the emulated program loads;
            `structural`: neither could be loaded for want of a kernel or an operator; `refused`: invalid.
        detail: the place it was loaded on, or ONNX Runtime's words.
    """

    outcome: Literal["loaded", "emulated", "structural", "refused"]
    detail: str


def check_load(path: pathlib.Path, program: Program) -> LoadResult:
    """Load the model at `path`, which holds `program`: on CUDA where a device answers, else on the CPU."""
    place = default_place()
    try:
        open_session(path, place, optimize=False)
    except ORT_ERRORS as error:
        if not _lacks_kernel_or_operator(error) and not _is_in_a_function_body(error):
            return LoadResult("refused", error_text(error))
        reason = error_text(error)
    else:
        return LoadResult("loaded", str(place))
    try:
        Session(program, CPUPlace())
    except ORT_ERRORS as error:
        if _lacks_kernel_or_operator(error):
            return LoadResult("structural", error_text(error))
        return LoadResult("refused", f"emulated: {error_text(error)}")
    return LoadResult("emulated", reason)


def _is_in_a_function_body(error: BaseException) -> bool:
    """Whether the error is about a node that ONNX Runtime made: it writes operators without a kernel out, unnamed.

    Every node of a checked program has a name.
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
