"""Reads which inputs of operators a user keeps in float32 while others of them are low."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from amp_transpiler.errors import OptionError, visible
from amp_transpiler.graph.name_matching import did_you_mean
from amp_transpiler.ops.names import operator_name

__all__ = ["checked_inputs", "inputs_in", "parse_inputs"]

_OPTION = "--float32-inputs"


def parse_inputs(text: str) -> tuple[str, str]:
    """Return an operator and the indices of its inputs, of a text such as `Pow:1`.

    Raises:
        OptionError: it is no such text.
    """
    operator, _, indices = text.rpartition(":")
    if not operator or operator.endswith(":"):
        raise OptionError(f"{_OPTION} {visible(text, 80)!r} is no OP:INDICES: expected such as Pow:1 or Resize:1,2")
    return operator, _spelling(operator, indices)


def checked_inputs(declared: Any) -> dict[str, str] | None:
    """Return the inputs by operator, each as a text; None if there are none.

    Args:
        declared: a dict of operator -> indices, or `1,2`.

    Raises:
        OptionError: it is no such dict.
    """
    if declared is None:
        return None
    if not isinstance(declared, Mapping):
        raise OptionError(f"{_OPTION}: got {type(declared).__name__}, expected a dict of operators and indices")
    return {str(operator): _spelling(str(operator), indices) for operator, indices in declared.items()} or None


def inputs_in(model: ir.Model, declared: Any) -> dict[str, frozenset[int]]:
    """Return the inputs by operator, as numbers.

    Args:
        model: the program as it was loaded.
        declared: by the user, as `checked_inputs` takes it.

    Raises:
        OptionError: the model has no such operator.
    """
    texts = checked_inputs(declared) or {}
    functions = (function.all_nodes() for function in model.functions.values())
    present = set(map(operator_name, itertools.chain(model.graph.all_nodes(), *functions)))
    if unknown := sorted(texts.keys() - present):
        raise OptionError(f"{_OPTION}: the model has no operator {unknown[0]!r}{did_you_mean(unknown[0], present)}")
    return {operator: frozenset(map(int, text.split(","))) for operator, text in texts.items()}


def _spelling(operator: str, indices: object) -> str:
    items = indices.split(",") if isinstance(indices, str) else indices
    if isinstance(items, (list, tuple, set, frozenset)) and items:
        texts = [str(item).strip() for item in items]
        if all(text.isascii() and text.isdigit() for text in texts):
            return ",".join(map(str, sorted({int(text[:9]) for text in texts})))
    raise OptionError(
        f"{_OPTION}: {operator!r} has {visible(repr(indices), 60)}: expected indices of inputs, such as 1,2"
    )
