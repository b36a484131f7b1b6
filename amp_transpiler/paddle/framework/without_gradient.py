"""Trainable parameters that a backward pass gives no gradient: a warning says which, and where gradients stop."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import onnx_ir as ir

from amp_transpiler.autodiff.rules import is_piecewise_constant
from amp_transpiler.graph.builder import is_float_tensor
from amp_transpiler.graph.roles import role_of
from amp_transpiler.phrases import first_few, quoted
from amp_transpiler.program.program import Program, Variable

__all__ = ["few", "warn_without_gradient", "why_without_gradient"]

logger = logging.getLogger(__name__)

_SHOWN = 6


def warn_without_gradient(
    program: Program, loss: str, missing: Sequence[Variable], no_grad_set: Collection[Variable | str]
) -> None:
    """Warn of trainable parameters that the loss has no gradient for.

    Args:
        program: their program.
        loss: name of the loss.
        missing: the parameters.
        no_grad_set: what the caller wants no gradient of; it is not warned of.
    """
    asked = {item if isinstance(item, str) else item.name for item in no_grad_set}
    names = [parameter.name for parameter in missing if parameter.name not in asked]
    if not names:
        return
    logger.warning(
        "%s will not train: the loss '%s' has no gradient for %s (%s); set trainable=False or stop_gradient where "
        "that is meant",
        few(names),
        loss,
        "it" if len(names) == 1 else "them",
        why_without_gradient(program, loss, names, asked),
    )


def few(names: Sequence[str]) -> str:
    """Return names for a message, the first six of them."""
    return first_few(quoted(names), _SHOWN)


def why_without_gradient(program: Program, loss: str, names: Sequence[str], asked: Collection[str]) -> str:
    """Return where gradients stop on the way from a loss to values.

    Args:
        program: their program.
        loss: name of the loss.
        names: of the values.
        asked: names of values that gradients were asked to stop at.
    """
    reached = {program.value(name) for name in names}
    stops = {program.value(name) for name in set(asked) | program.no_gradient if program.find(name) is not None}
    target, ends = program.value(loss), []
    used = _ancestors(target)
    if not reached & used:
        return "it does not depend on them"
    for node in program.model.graph:
        if role_of(node) != "forward" or not any(value in reached for value in node.inputs):
            continue
        through = [value for value in node.outputs if is_float_tensor(value) and value not in stops]
        if is_piecewise_constant(node.domain, node.op_type) or not through:
            if used.intersection(node.outputs):
                ends.append(f"{node.op_type} '{node.name}'")
        else:
            reached.update(through)
    return f"gradients stop at {first_few(ends, _SHOWN)}" if ends else "no gradient passes on the way"


def _ancestors(target: ir.Value) -> set[ir.Value]:
    """Return the values that a value is computed from, itself included."""
    ancestors, stack = {target}, [target]
    while stack:
        node = stack.pop().producer()
        for value in () if node is None else node.inputs:
            if value is not None and value not in ancestors:
                ancestors.add(value)
                stack.append(value)
    return ancestors
