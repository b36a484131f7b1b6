"""Tells kinds of variables apart, under the names of Paddle's scripts."""

from __future__ import annotations

import abc
from typing import Any

from amp_transpiler.program.program import Variable

__all__ = ["Parameter", "is_parameter", "is_persistable"]


class _KindOfVariable(abc.ABCMeta):
    def __instancecheck__(cls, instance: Any) -> bool:
        info = instance.info if isinstance(instance, Variable) else None
        return info is not None and info.kind in ("parameter", "statistic")


class Parameter(Variable, metaclass=_KindOfVariable):
    """Serves only `isinstance`: a parameter of a program, trainable or not; running statistics count, as in Paddle."""


def is_parameter(var: Variable) -> bool:
    """Whether a variable is a parameter, trainable or not; running statistics count, as in Paddle."""
    return isinstance(var, Parameter)


def is_persistable(var: Variable) -> bool:
    """Whether a variable persists in the scope between runs."""
    return var.persistable
