"""Gradient rules, one file per kind of operator. Every file of this folder is loaded when a rule is first looked up."""

from __future__ import annotations

import functools

from amp_transpiler.autodiff.context import NotDifferentiable
from amp_transpiler.autodiff.registry import RULES, Rule
from amp_transpiler.lazy import import_folder

__all__ = ["find_rule", "is_piecewise_constant", "refusal", "registered"]


def find_rule(domain: str, op_type: str) -> Rule | None:
    """Return the rule of an operator, or None if there is none."""
    _load()
    return RULES.get(("" if domain == "ai.onnx" else domain, op_type))


def refusal(domain: str, op_type: str) -> str:
    """Return why an operator can never be differentiated; empty if it can, in some use."""
    rule = find_rule(domain, op_type)
    if rule is None:
        return "it has no gradient rule"
    try:
        if rule.asks_nothing:
            rule.function()
    except NotDifferentiable as error:
        return str(error)
    return ""


def is_piecewise_constant(domain: str, op_type: str) -> bool:
    """Whether the gradient of an operator is zero wherever it has one."""
    rule = find_rule(domain, op_type)
    return rule is not None and rule.asks_nothing and not refusal(domain, op_type)


def registered() -> list[tuple[str, str]]:
    """Return (domain, operator) of every rule, sorted."""
    _load()
    return sorted(RULES)


@functools.cache
def _load() -> None:
    import_folder(__name__, __path__)
