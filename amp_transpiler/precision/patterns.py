"""Operators that exporters write out as several nodes, and that ONNX Runtime makes one of again: one row a form.

The whole is decided as one operator: its nodes share one precision, since a float32 node in the middle would only keep
it from being fused, and cost casts.

How it rounds in 16 bits on CUDA (`targets/data/arithmetic.txt`; errors of normally distributed numbers):

- GELU by Erf is fused in float16 and computes in float32 inside: it rounds once. With the addition of a bias before it,
  it becomes a BiasGelu, which rounds every step. In bfloat16 it stays as written.
- GELU by Tanh is fused in float32 alone. In 16 bits it stays as written and rounds at every node.
- SiLU would be a QuickGelu, which rounds every step. In float16 a view keeps it from being fused
  (`passes/part_fusions.py`), so that it rounds twice; in bfloat16 float32 would cost three launches for one.

Rounding every step makes 1.2 to 2.5 times the error of rounding once, as sums of a few nodes do. None of it leaves the
range with an effect, divides by what may be zero, or amplifies: a lost digit of the gate is a lost digit of the result
at most as large as the input's. So what is unsafe about a single node does not count where the whole is safe.

A form is an expression over `x`, one value all over, and `c`, a constant number. Sums and products match in either
order. Forms are tried at their last node alone, each no deeper than it is written, so the cost is linear in nodes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.ops.names import is_standard

__all__ = ["NORMALISATION", "PATTERNS", "Match", "Pattern", "matches"]

_CUBE = "Pow(x, c)"
_CUBE_BY_PRODUCT = "Mul(Mul(x, x), x)"
_TANH = "Add(Tanh(Mul(Add(x, Mul({cube}, c)), c)), c)"
_TANH_FACTORED = "Add(Tanh(Mul(Mul(x, c), Add(Mul(Mul(x, c), x), c))), c)"
_ERF = "Add(Erf({scaled}), c)"


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """One operator in its written forms.

    Attributes:
        name: as messages say it.
        forms: expressions.
        is_safe: whether the whole is safe in a low format, whatever its nodes are by themselves and whether it is
            fused or not.
    """

    name: str
    forms: tuple[str, ...]
    is_safe: bool


def _halved(*factors: str) -> tuple[str, ...]:
    """The orders in which `x`, one half and another factor are multiplied."""
    return tuple(form for factor in factors for form in (f"Mul(Mul(x, c), {factor})", f"Mul(Mul(x, {factor}), c)"))


PATTERNS: tuple[Pattern, ...] = (
    # A cube that overflows does no harm: tanh of an infinity is one or minus one.
    Pattern(
        "a tanh GELU",
        _halved(_TANH.format(cube=_CUBE), _TANH.format(cube=_CUBE_BY_PRODUCT), _TANH_FACTORED),
        is_safe=True,
    ),
    Pattern("a GELU", _halved(_ERF.format(scaled="Div(x, c)"), _ERF.format(scaled="Mul(x, c)")), is_safe=True),
    Pattern("a SiLU", ("Mul(x, Sigmoid(x))", "Mul(x, Sigmoid(Mul(x, c)))"), is_safe=True),
)

NORMALISATION = Pattern("a normalisation", (), is_safe=False)
"""Squares that are summed and what works on the sum, which `numerics.normalisations` finds in any form."""


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """A place where a pattern was found.

    Attributes:
        pattern: the row.
        nodes: those that make up the whole, in no order.
    """

    pattern: Pattern
    nodes: frozenset[ir.Node]


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """A node of an expression."""

    op_type: str
    arguments: tuple[_Term, ...]


_Term = _Call | str  # "x" or "c"
_SWAPS = {"Add", "Mul"}


def matches(nodes: Iterable[ir.Node]) -> Iterator[Match]:
    """Yield the patterns in a program; no node is in two of them.

    Args:
        nodes: in the order of execution.
    """
    taken: set[ir.Node] = set()
    for node in nodes:
        if not is_standard(node) or node.op_type not in _ENDS:
            continue
        for pattern, term in _ENDS[node.op_type]:
            found = _match(term, node)
            if found is not None and not found & taken:
                taken |= found
                yield Match(pattern, frozenset(found))
                break


def _match(term: _Call, node: ir.Node) -> set[ir.Node] | None:
    """The nodes of the expression that ends in `node`; None if it is another, or if part of it is read elsewhere."""
    found = _call(term, node, None)
    if found is None:
        return None
    members = found[1]
    for member in members - {node}:
        readers = {use.node for value in member.outputs for use in value.uses()}
        if not readers <= members or any(value.is_graph_output() for value in member.outputs):
            return None
    return members


_Found = tuple[ir.Value | None, set[ir.Node]]  # what `x` is, if it was met, and the nodes


def _call(term: _Call, node: ir.Node, x: ir.Value | None) -> _Found | None:
    if node.op_type != term.op_type or not is_standard(node) or len(node.inputs) != len(term.arguments):
        return None
    orders = [tuple(node.inputs)]
    if term.op_type in _SWAPS and term.arguments[0] != term.arguments[1]:
        orders.append(orders[0][::-1])
    for values in orders:
        found = _arguments(term.arguments, values, x)
        if found is not None:
            return found[0], found[1] | {node}
    return None


def _arguments(terms: tuple[_Term, ...], values: tuple[ir.Value | None, ...], x: ir.Value | None) -> _Found | None:
    members: set[ir.Node] = set()
    for term, value in zip(terms, values, strict=True):
        if value is None:
            return None
        if term == "c":
            if not _is_number(value):
                return None
        elif term == "x":
            if _is_number(value) or x not in (None, value):
                return None
            x = value
        else:
            assert isinstance(term, _Call)  # no other kind is left
            producer = value.producer()
            found = None if producer is None else _call(term, producer, x)
            if found is None:
                return None
            x = found[0]
            members |= found[1]
    return x, members


def _is_number(value: ir.Value) -> bool:
    tensor = constant_of(value)
    return tensor is not None and tensor.size == 1


def _parsed(text: str) -> _Call:
    """Return the expression that a form spells."""
    tokens = re.findall(r"\w+|[(),]", text)

    def term(at: int) -> tuple[_Term, int]:
        word = tokens[at]
        if at + 1 >= len(tokens) or tokens[at + 1] != "(":
            return word, at + 1
        arguments: list[_Term] = []
        at += 1
        while tokens[at] != ")":
            argument, at = term(at + 1)
            arguments.append(argument)
        return _Call(word, tuple(arguments)), at + 1

    parsed, _ = term(0)
    assert isinstance(parsed, _Call)  # every row of the table is one
    return parsed


_ENDS: dict[str, list[tuple[Pattern, _Call]]] = {}
for _pattern in PATTERNS:
    for _form in _pattern.forms:
        _term = _parsed(_form)
        _ENDS.setdefault(_term.op_type, []).append((_pattern, _term))
