"""Matching of nodes against written expressions: the nodes that compute one, which nothing else may read.

An expression is written with operators, `x` (one value all over), `c` (a constant number), `w` (any constant) and `y`
(any value). Sums and products match in either order. Inputs that a form does not write, such as axes, may be there if
they are constants. A form is tried only at its last node, no deeper than it is written.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Literal, TypeAlias

import onnx_ir as ir

from amp_transpiler.ops.names import is_standard

__all__ = ["Call", "ConstantKind", "match_at", "only_read_within", "parse_form"]

ConstantKind: TypeAlias = Callable[[ir.Value], Literal["number", "constant", ""]]

_SWAPS = {"Add", "Mul"}


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A node of an expression."""

    op_type: str
    arguments: tuple[Call | str, ...]


def parse_form(text: str) -> Call:
    """Return the expression that a form spells."""
    tokens = re.findall(r"\w+|[(),]", text)

    def term(at: int) -> tuple[Call | str, int]:
        word = tokens[at]
        if at + 1 >= len(tokens) or tokens[at + 1] != "(":
            return word, at + 1
        arguments: list[Call | str] = []
        at += 1
        while tokens[at] != ")":
            argument, at = term(at + 1)
            arguments.append(argument)
        return Call(word, tuple(arguments)), at + 1

    form, _ = term(0)
    assert isinstance(form, Call)  # every form is one
    return form


def match_at(form: Call, node: ir.Node, kind_of: ConstantKind) -> frozenset[ir.Node] | None:
    """Return the nodes of a form that ends in `node`; None if it is another, or part of it is read elsewhere."""
    matched = _call(form, node, None, kind_of)
    if matched is None or not only_read_within(matched[1], node):
        return None
    return frozenset(matched[1])


def only_read_within(members: set[ir.Node] | frozenset[ir.Node], last: ir.Node) -> bool:
    """Whether nothing but the members reads what they compute, the results of the last one aside."""
    return all(
        not value.is_graph_output() and all(use.node in members for use in value.uses())
        for member in members
        if member is not last
        for value in member.outputs
    )


_Found: TypeAlias = tuple[ir.Value | None, set[ir.Node]]  # what `x` is, if it was met, and the nodes


def _call(term: Call, node: ir.Node, x: ir.Value | None, kind_of: ConstantKind) -> _Found | None:
    if node.op_type != term.op_type or not is_standard(node):
        return None
    written = len(term.arguments)
    if len(node.inputs) < written or any(value and not kind_of(value) for value in node.inputs[written:]):
        return None
    orders = [tuple(node.inputs[:written])]
    if term.op_type in _SWAPS and term.arguments[0] != term.arguments[1]:
        orders.append(orders[0][::-1])
    for values in orders:
        matched = _arguments(term.arguments, values, x, kind_of)
        if matched is not None:
            return matched[0], matched[1] | {node}
    return None


def _arguments(
    terms: tuple[Call | str, ...], values: tuple[ir.Value | None, ...], x: ir.Value | None, kind_of: ConstantKind
) -> _Found | None:
    members: set[ir.Node] = set()
    for term, value in zip(terms, values, strict=True):
        if value is None:
            return None
        if isinstance(term, Call):
            producer = value.producer()
            matched = None if producer is None else _call(term, producer, x, kind_of)
            if matched is None:
                return None
            x = matched[0]
            members |= matched[1]
        elif term == "c":
            if kind_of(value) != "number":
                return None
        elif term == "w":
            if not kind_of(value):
                return None
        elif term == "x":
            if kind_of(value) or x not in (None, value):
                return None
            x = value
    return x, members
