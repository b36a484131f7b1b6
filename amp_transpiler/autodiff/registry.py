"""The table of gradient rules: operator -> how gradients of its outputs become gradients of its inputs."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient

__all__ = ["Rule", "find_rule", "gradient", "no_gradient", "registered"]

Gradients: TypeAlias = "Sequence[ir.Value | None] | ir.Value | None"
Rule: TypeAlias = Callable[[NodeGradient], Gradients]

_RULES: dict[tuple[str, str], Rule] = {}


def gradient(*op_types: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of these operators.

    A rule gets a `NodeGradient` and returns one gradient an input, in order (shorter: None for the rest). It need not
    undo broadcasting, nor return the element type of the input: the driver does both.
    """

    def register(rule: Rule) -> Rule:
        for op_type in op_types:
            if (domain, op_type) in _RULES:
                raise ValueError(f"there are two gradient rules for {domain or 'ai.onnx'}::{op_type}")
            _RULES[domain, op_type] = rule
        return rule

    return register


def no_gradient(op_types: Iterable[str], domain: str = "") -> None:
    """Register operators whose results do not change with their inputs, or only in jumps: the gradient is zero."""
    gradient(*op_types, domain=domain)(lambda _: None)


def find_rule(domain: str, op_type: str) -> Rule | None:
    """Return the rule of an operator, or None if there is none."""
    _load_rules()
    return _RULES.get(("" if domain == "ai.onnx" else domain, op_type))


def registered() -> list[tuple[str, str]]:
    """Return (domain, operator) of every rule, sorted."""
    _load_rules()
    return sorted(_RULES)


@functools.cache
def _load_rules() -> None:
    from amp_transpiler.autodiff import rules

    for module in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{module.name}")
