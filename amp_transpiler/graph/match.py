"""Matching of nodes against written expressions: the nodes that compute one, and what its names stand for there.

An expression is a call of operators on operands. Sums, products and comparisons for equality match in either order.
Inputs that a form does not write, such as axes, may be there if they are constants. An operand is

- `c` (a constant number), `w` (any constant), `y` (any value) or `x` (one value all over, which is no constant);
- a number: a constant of one element that equals it;
- another name: one value all over. `name:` before `c`, `w`, `y`, `x` or a call names what that matches.

A form is tried only at its last node, no deeper than it is written.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of, single_number
from amp_transpiler.ops.names import is_standard

__all__ = [
    "Binding",
    "Call",
    "ConstantKind",
    "Operand",
    "Term",
    "bindings",
    "kind_of_constant",
    "match_at",
    "only_read_within",
    "parse_form",
    "parse_term",
]

ConstantKind: TypeAlias = Callable[[ir.Value], Literal["number", "constant", ""]]

_SWAPS = {"Add", "Mul", "Equal"}
_KINDS = {"x": ("x", "computed"), "c": ("", "number"), "w": ("", "constant"), "y": ("", "any")}
_TOKEN = re.compile(r"-?\d+\.?\d*|\w+|[(),:]")


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A node of an expression.

    Attributes:
        op_type: its operator, of ONNX's own domain.
        arguments: its first inputs.
        name: the name of its first output; "" for none.
    """

    op_type: str
    arguments: tuple[Term, ...]
    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Operand:
    """A value that an expression reads.

    Attributes:
        name: the same name stands for the same value all over; "" for none.
        kind: "any", "computed" (no constant), "constant", or "number" (a constant of one element).
        number: which number; None for any.
    """

    name: str
    kind: str = "any"
    number: float | None = None


Term: TypeAlias = "Call | Operand"


@functools.cache
def parse_term(text: str) -> Term:
    """Return the call or the operand that a text spells."""
    tokens = _TOKEN.findall(text)

    def term(at: int) -> tuple[Term, int]:
        word, following = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        if following == ":":
            named, at = term(at + 2)
            return dataclasses.replace(named, name=word), at
        if following != "(":
            return _operand(word), at + 1
        arguments: list[Term] = []
        at += 1
        while tokens[at] != ")":
            argument, at = term(at + 1)
            arguments.append(argument)
        return Call(word, tuple(arguments)), at + 1

    return term(0)[0]


def parse_form(text: str) -> Call:
    """Return the expression that a form spells."""
    form = parse_term(text)
    assert isinstance(form, Call)  # every form is one
    return form


def _operand(word: str) -> Operand:
    if word[-1].isdigit() and not word[0].isalpha():
        return Operand("", "number", float(word))
    name, kind = _KINDS.get(word, (word, "any"))
    return Operand(name, kind)


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """One match of a form: its nodes, and the values of its names.

    Attributes:
        last: the node that the form ends in.
        values: name -> the value that it stands for.
        nodes: all nodes of the form.
    """

    last: ir.Node
    values: Mapping[str, ir.Value]
    nodes: frozenset[ir.Node]

    def __getitem__(self, name: str) -> ir.Value:
        """Return the value that a name stands for."""
        return self.values[name]

    def node(self, name: str) -> ir.Node:
        """Return the node of a named call."""
        node = self.values[name].producer()
        assert node is not None  # a call names what a node computes
        return node


def kind_of_constant(value: ir.Value) -> Literal["number", "constant", ""]:
    """Say what kind of constant a value is in a prepared program."""
    tensor = constant_of(value)
    if tensor is None:
        return ""
    return "number" if tensor.size == 1 else "constant"


def bindings(form: Call, node: ir.Node, kind_of: ConstantKind = kind_of_constant) -> Iterator[Binding]:
    """Yield each way in which a form ends in `node`, whoever else reads its parts; the order as written comes first."""
    for values, nodes in _call(form, node, {}, kind_of):
        yield Binding(node, values, nodes)


def match_at(form: Call, node: ir.Node, kind_of: ConstantKind) -> frozenset[ir.Node] | None:
    """Return the nodes of a form that ends in `node`; None if it is another, or part of it is read elsewhere."""
    first = next(bindings(form, node, kind_of), None)
    return None if first is None or not only_read_within(first.nodes, node) else first.nodes


def only_read_within(members: set[ir.Node] | frozenset[ir.Node], last: ir.Node) -> bool:
    """Whether nothing but the members reads what they compute, the results of the last one aside."""
    return all(
        not value.is_graph_output() and all(use.node in members for use in value.uses())
        for member in members
        if member is not last
        for value in member.outputs
    )


_Values: TypeAlias = dict[str, ir.Value]
_NO_NODES: frozenset[ir.Node] = frozenset()


def _call(
    term: Call, node: ir.Node, values: _Values, kind_of: ConstantKind
) -> Iterator[tuple[_Values, frozenset[ir.Node]]]:
    written = len(term.arguments)
    if node.op_type != term.op_type or not is_standard(node) or len(node.inputs) < written:
        return
    if any(value and not kind_of(value) for value in node.inputs[written:]):
        return
    inputs = tuple(node.inputs[:written])
    swaps = term.op_type in _SWAPS and term.arguments[0] != term.arguments[1]
    for order in (inputs, inputs[::-1]) if swaps else (inputs,):
        for bound, nodes in _arguments(term.arguments, order, values, kind_of):
            yield bound, nodes | {node}


def _arguments(
    terms: tuple[Term, ...], inputs: tuple[ir.Value | None, ...], values: _Values, kind_of: ConstantKind
) -> Iterator[tuple[_Values, frozenset[ir.Node]]]:
    if not terms:
        yield values, _NO_NODES
        return
    if inputs[0] is None:
        return
    for bound, nodes in _term(terms[0], inputs[0], values, kind_of):
        for others_bound, others in _arguments(terms[1:], inputs[1:], bound, kind_of):
            yield others_bound, nodes | others


def _term(
    term: Term, value: ir.Value, values: _Values, kind_of: ConstantKind
) -> Iterator[tuple[_Values, frozenset[ir.Node]]]:
    if term.name:
        if values.get(term.name, value) is not value:
            return
        values = {**values, term.name: value}
    if isinstance(term, Operand):
        if _is_of_kind(term, value, kind_of):
            yield values, _NO_NODES
    elif (producer := value.producer()) is not None and value is producer.outputs[0]:
        yield from _call(term, producer, values, kind_of)


def _is_of_kind(term: Operand, value: ir.Value, kind_of: ConstantKind) -> bool:
    if term.kind == "any":
        return True
    kind = kind_of(value)
    if term.kind == "computed":
        return not kind
    if term.kind == "constant":
        return bool(kind)
    return kind == "number" and (term.number is None or single_number(value) == term.number)
