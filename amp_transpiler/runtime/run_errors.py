"""ONNX Runtime's errors of a step, in the program's own names: which node failed, on what, and why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import onnx_ir as ir

from amp_transpiler.errors import InputError, MisfitError
from amp_transpiler.graph.lines import line_of
from amp_transpiler.graph.misfit_messages import misfit, wrong_shape
from amp_transpiler.graph.origins import ONE_ELEMENT_KEY
from amp_transpiler.graph.roles import role_of
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.runtime.index_checks import message
from amp_transpiler.runtime.index_uses import index_uses
from amp_transpiler.runtime.ort import ORT_ERRORS, RUN_ERRORS, error_text

if TYPE_CHECKING:
    from amp_transpiler.program.assemble import Assembled
    from amp_transpiler.program.program import Program
    from amp_transpiler.runtime.finite import Compute
    from amp_transpiler.runtime.scope import Scope

__all__ = ["NO_VALUE", "explained", "plain", "wrong_state"]


NO_VALUE: tuple[type[Exception], ...] = (*RUN_ERRORS, InputError)
"""Raised where a value cannot be computed by itself."""

_INDEX_SIGNS = ("out of data bounds", "out of range", "invalid indice", "out of bound")
_NODE = re.compile(r"running \w+ node\. Name:'([^']*)'|Node \(([^)]*)\) Op \(")


def explained(
    error: Exception,
    whole: ir.Graph,
    assembled: Assembled,
    compute: Compute,
) -> InputError | None:
    """Return an error that names the node that failed and, for indices, the first wrong one; None if it is unknown.

    Args:
        error: ONNX Runtime's.
        whole: the main graph of the program.
        assembled: the model of the step in the shapes fed, as it was before it was lowered.
        compute: see `Compute`.
    """
    graph, text = assembled.model.graph, str(error)
    for node in whole:  # the node itself need not be in the step: it is its gradient that fails
        if (meaning := node.metadata_props.get(ONE_ELEMENT_KEY)) and node.inputs[0] is not None:
            value = compute([str(node.inputs[0].name)]).get(str(node.inputs[0].name))
            if value is not None and value.size != 1:
                return InputError(meaning)
    if any(sign in text.lower() for sign in _INDEX_SIGNS):
        for use, _ in index_uses(graph, frozenset(assembled.state)):
            positions = compute([use.value]).get(use.value)
            bad = None if positions is None else use.outside(positions)
            if positions is not None and bad is not None:
                return InputError(message(use, positions, bad))
    failed = next((node for node in graph if role_of(node) == "forward" and wrong_shape(node)), None) or _named(
        graph, text
    )
    if failed is None:
        return None
    said = misfit(failed, opset_of(assembled.model, failed.domain), error_text(error))
    line = line_of(failed)
    return MisfitError(f"{said}. That line is {line.text}" if line is not None and line.text else said)


def wrong_state(program: Program, scope: Scope) -> InputError | None:
    """Return an error that names a value of the scope that has another shape than in the program; None if none has."""
    for name in program.persistables:
        declared = program.value(name).shape
        if name not in scope or declared is None:
            continue
        held = list(scope[name].shape)
        if len(held) != len(declared) or any(
            isinstance(d, int) and d != h for d, h in zip(declared, held, strict=True)
        ):
            return InputError(
                f"'{name}' is of shape {held} in the scope, but of {declared} in the program: set it to an array of "
                "that shape, or load the right checkpoint"
            )
    return None


def plain(error: Exception, program: object) -> InputError | None:
    """Return an error of ONNX Runtime as one of this package; None for another error."""
    if isinstance(error, ORT_ERRORS) or "ONNXRuntimeError" in str(error) or "Error in execution" in str(error):
        return InputError(f"{program!r} cannot be run: {error_text(error)}")
    return None


def _named(graph: ir.Graph, text: str) -> ir.Node | None:
    """Return the node that a message of ONNX Runtime is about."""
    match = _NODE.search(text)
    name = "" if match is None else match[1] or match[2]
    return next((node for node in graph if node.name == name), None) if name else None
