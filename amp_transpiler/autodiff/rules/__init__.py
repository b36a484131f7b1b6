"""Gradient rules, one file per kind of operator. Every file of this folder is loaded when a rule is first looked up."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from amp_transpiler.autodiff.registry import RULES, Rule

__all__ = ["find_rule", "registered"]


def find_rule(domain: str, op_type: str) -> Rule | None:
    """Return the rule of an operator, or None if there is none."""
    _load()
    return RULES.get(("" if domain == "ai.onnx" else domain, op_type))


def registered() -> list[tuple[str, str]]:
    """Return (domain, operator) of every rule, sorted."""
    _load()
    return sorted(RULES)


@functools.cache
def _load() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
