"""The user's own casting rules, as in RAF: for an operator, a function that returns the types of its inputs.

::

    @casting_rule("Foo", domain="my.domain")
    def foo(node, inputs, low_dtype):
        return [low_dtype, None]  # the data low, the table as in the source program

    with CustomTypeHint({"Add": lambda node, inputs, low_dtype: ["float32"] * len(inputs)}):
        ...
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import LowFormat, dtype_name, parse_dtype
from amp_transpiler.ops.names import operator_name
from amp_transpiler.ops.vocabulary import known_operator, paddle_names, unknown_operators
from amp_transpiler.precision.constraints import is_float32

__all__ = [
    "CastingRule",
    "CustomTypeHint",
    "Hint",
    "RuleInput",
    "casting_rule",
    "find_rule",
    "low_inputs",
]


@dataclasses.dataclass(frozen=True, slots=True)
class RuleInput:
    """One input of the node that a rule is asked about.

    Attributes:
        name: the value's name.
        dtype: its element type by the decisions so far (`float32`, `bfloat16`, `int64`, ...): low if its producer is.
            The user's own casts between float types are looked through.
        shape: for each dimension a number, a symbol, or None if unknown; None if the rank is unknown.
        is_constant: whether it is a constant.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    is_constant: bool


Hint: TypeAlias = "str | np.dtype[Any] | type[Any] | ir.DataType | None"
"""The element type for an input; None: its type in the source program."""

CastingRule: TypeAlias = Callable[[ir.Node, Sequence[RuleInput | None], str], Sequence[Hint]]
"""`rule(node, inputs, low_dtype)` returns one hint per input. Inputs left out are None, and have a hint too."""

_Key: TypeAlias = tuple[str, str]
_R = TypeVar("_R", bound=CastingRule)

# The engine decides about these without asking any rules: they keep their types, or accept any float type.
_NEVER_ASKED = {"BitCast", "Cast", "Constant", "If", "Loop", "Scan", "SequenceMap", "Shape", "Size"}

_registered: dict[_Key, dict[int, CastingRule]] = {}
_lock = threading.Lock()
_hints: contextvars.ContextVar[tuple[CustomTypeHint, ...]] = contextvars.ContextVar("casting_rules", default=())


def casting_rule(op_type: str, domain: str = "", since: int = 1) -> Callable[[_R], _R]:
    """Return a decorator that makes a function the casting rule of an operator. It replaces RAF's.

    Args:
        op_type: the operator.
        domain: its domain; empty for ONNX's own.
        since: the first version of the domain that the rule is for; it holds up to the `since` of the next rule.

    Raises:
        OptionError: (a ValueError) ONNX has no such operator, `since` is no version, or the rule is no function.
    """
    key = _key(f"{domain}::{op_type}" if domain else op_type)
    version: object = since
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise OptionError(f"casting rule for {op_type}: since must be an opset version, 1 or more, got {since!r}")

    def register(rule: _R) -> _R:
        _check_callable(op_type, rule)
        with _lock:
            _registered.setdefault(key, {})[since] = rule
        return rule

    return register


class CustomTypeHint(contextlib.ContextDecorator):
    """Casting rules for a `with` block or a decorated function, only in this thread or task.

    Blocks nest, and the innermost wins.

    Args:
        rules: `Op` or `domain::Op` -> rule.

    Raises:
        OptionError: (a ValueError) a name is no operator, or a rule no function.
    """

    def __init__(self, rules: Mapping[str, CastingRule]) -> None:
        if not isinstance(rules, Mapping):
            raise OptionError(f"CustomTypeHint: got {rules!r}, expected a dict from operator to casting rule")
        for name, rule in rules.items():
            _check_callable(name, rule)
        self.rules: Mapping[_Key, CastingRule] = {_key(name): rule for name, rule in rules.items()}

    def __enter__(self) -> CustomTypeHint:
        _hints.set((*_hints.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        active = list(_hints.get())
        active.reverse()
        active.remove(self)  # the innermost entry of this block: generators may leave blocks out of order
        active.reverse()
        _hints.set(tuple(active))


def find_rule(domain: str, op_type: str, opset: int) -> CastingRule | None:
    """Return the user's rule for an operator at version `opset` of its domain, or None."""
    key = ("" if domain == "ai.onnx" else domain, op_type)
    for layer in reversed(_hints.get()):
        if key in layer.rules:
            return layer.rules[key]
    with _lock:
        versions = dict(_registered.get(key, {}))
    newest = max((since for since in versions if since <= opset), default=None)
    return None if newest is None else versions[newest]


def low_inputs(node: ir.Node, rule: CastingRule, inputs: Sequence[RuleInput | None], low: LowFormat) -> frozenset[int]:
    """Ask a rule about a node, and return the node's float32 inputs that it wants low.

    Args:
        node: the node.
        rule: the rule for its operator.
        inputs: a description of each input, for the rule.
        low: the low format.

    Raises:
        OptionError: (a ValueError) the number of hints is wrong, or an input cannot have the type of its hint.
    """
    hints = rule(node, inputs, low.name)
    if isinstance(hints, str) or not isinstance(hints, Sequence):
        raise _fault(node, f"returned {hints!r}", "a list of hints, one per input", "return a list")
    if len(hints) != len(node.inputs):
        raise _fault(
            node,
            f"returned {len(hints)} hints",
            f"{len(node.inputs)}, one per input, also for inputs left out",
            "return len(inputs) hints, None for inputs to leave alone",
        )
    return frozenset(i for i, hint in enumerate(hints) if _wants_low(node, i, hint, low))


def _wants_low(node: ir.Node, index: int, hint: Hint, low: LowFormat) -> bool:
    if hint is None:
        return False
    value = node.inputs[index]
    where = f"hints {_shown(hint)} for input {index}" + (f" '{value.name}'" if value is not None else "")
    try:
        dtype = parse_dtype(hint)
    except OptionError as error:
        raise _fault(node, where, "a dtype such as 'float32', or None", "return one of these") from error
    if value is None or dtype == value.dtype:
        return False
    if not is_float32(value):
        source_dtype = dtype_name(value.dtype)
        raise _fault(
            node,
            where,
            f"None or '{source_dtype}', which it is in the source program",
            "return None for inputs that are not float32 there",
        )
    if dtype != low.dtype:
        raise _fault(
            node, where, f"'float32', '{low.name}' or None", "return the low_dtype that the rule is given, or None"
        )
    return True


def _shown(hint: Hint) -> str:
    return repr(hint if isinstance(hint, str) else getattr(hint, "name", None) or getattr(hint, "__name__", hint))


def _fault(node: ir.Node, got: str, expected: str, remedy: str) -> OptionError:
    asked = f"the casting rule for {operator_name(node)}, asked about node '{node.name}',"
    return OptionError(f"{asked} {got}: expected {expected}; {remedy}")


def _key(name: str) -> _Key:
    if not isinstance(name, str):
        raise OptionError(f"casting rule for {name!r}: expected the name of an operator, 'Op' or 'domain::Op'")
    plain = name.removeprefix("ai.onnx::")
    domain, separator, op_type = plain.rpartition("::")
    if not op_type or (separator and not domain):
        raise OptionError(f"casting rule for {name!r}: expected an operator, 'Op' or 'domain::Op'")
    if not domain and (not known_operator(plain) or plain in paddle_names() or "[" in plain):
        near = [
            other for _, similar in unknown_operators([plain], ()) for other in similar if other not in paddle_names()
        ]
        hint = f"did you mean {' or '.join(near)}? G" if near else "g"
        raise OptionError(
            f"casting rule for {name!r}: ONNX has no such operator; {hint}ive one of another domain as 'domain::Op'"
        )
    if not domain and op_type in _NEVER_ASKED:
        raise OptionError(
            f"casting rule for {name!r}: a {op_type} is never low or float32 itself, so no rule is asked about it; "
            "give one for the operators around it"
        )
    return domain, op_type


def _check_callable(name: str, rule: object) -> None:
    if not callable(rule):
        raise OptionError(
            f"casting rule for {name}: expected a function (node, inputs, low_dtype) -> hints, got {rule!r}"
        )
