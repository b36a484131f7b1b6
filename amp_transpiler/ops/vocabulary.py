"""The names that users may write for operators: ONNX's, ONNX Runtime's, Paddle's, and finer classes."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping

import onnx

from amp_transpiler.ops.schema import runtime_schemas
from amp_transpiler.ops.table import column, operator_table, unmatched

__all__ = ["finer_classes", "known_operator", "near_operators", "paddle_names", "unknown_operators", "vocabulary"]

_INTERNAL_DOMAINS = ("com.ms.internal.nhwc", "com.microsoft.nchwc")  # ONNX Runtime's own, not for models


@functools.cache
def finer_classes() -> Mapping[str, tuple[str, ...]]:
    """Return operator -> the classes of its nodes that have a row of their own (`Conv[depthwise]`)."""
    classes: dict[str, tuple[str, ...]] = {}
    for key in operator_table():
        operator, bracket, _ = key.partition("[")
        if bracket:
            classes[operator] = (*classes.get(operator, ()), key)
    return classes


@functools.cache
def paddle_names() -> Mapping[str, tuple[str, ...]]:
    """Return Paddle's name -> the operators or finer classes that it stands for; empty where ONNX has none."""
    operators_by_name: dict[str, tuple[str, ...]] = dict.fromkeys(unmatched("paddle names"), ())
    for operator, names in column("paddle names").items():
        for name in names.split():
            operators_by_name[name] = (*operators_by_name.get(name, ()), operator)
    return operators_by_name


def known_operator(name: str) -> bool:
    """Whether `name` is an operator of any version, a finer class of one, or one of Paddle's names."""
    return name.removeprefix("ai.onnx::") in vocabulary()


def unknown_operators(names: Iterable[str], model_ops: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return the names that nothing is known by, each with a few similar names that are known.

    Args:
        names: operators as a user wrote them.
        model_ops: the operators of the model at hand (`Conv`, `my.domain::Foo`); they count as known.
    """
    present = {name.removeprefix("ai.onnx::") for name in model_ops}
    unknown = [n for n in names if not known_operator(n) and n.removeprefix("ai.onnx::") not in present]
    return [(name, near_operators(name, present)) for name in unknown]


def near_operators(name: str, also: Iterable[str] = ()) -> list[str]:
    """Return up to three known names similar to `name`, ignoring case, compared with and without the domain.

    Args:
        name: an operator as a user wrote it.
        also: names that count as known besides.
    """
    by_folded: dict[str, list[str]] = {}
    for known in sorted(vocabulary().union(also)):
        by_folded.setdefault(known.lower(), []).append(known)
        by_folded.setdefault(known.rpartition("::")[2].lower(), []).append(known)
    forms = dict.fromkeys((name.lower(), name.rpartition("::")[2].lower()))
    matches = [match for form in forms for match in difflib.get_close_matches(form, by_folded, n=3, cutoff=0.7)]
    return list(dict.fromkeys(known for match in matches for known in by_folded[match]))[:3]


@functools.cache
def vocabulary() -> frozenset[str]:
    """Return every name that is known: operators of any version, their finer classes, and Paddle's names."""
    onnx_operators = ((schema.domain, schema.name) for schema in onnx.defs.get_all_schemas_with_history())
    named = {name for name in (*onnx_operators, *runtime_schemas()) if name[0] not in _INTERNAL_DOMAINS}
    operators = {f"{domain}::{name}" if domain else name for domain, name in named}
    finer = (key for keys in finer_classes().values() for key in keys)
    return frozenset((*operators, *finer, *paddle_names()))
