"""Lists operators that exporters write as several nodes and ONNX Runtime fuses to one again: one row a form.

The whole is decided as one operator: its nodes share one precision, since a float32 node in the middle would only keep
it from being fused, and cost casts.

How it rounds in 16 bits on CUDA (`targets/data/arithmetic.txt`; errors of normally distributed numbers):

- GELU by Erf is fused in float16 and computes in float32 inside: it rounds once. With the addition of a bias before it,
  it becomes a BiasGelu, which rounds every step. In bfloat16 it stays as written.
- GELU by Tanh is fused only in float32. In 16 bits it stays as written and rounds at every node.
- SiLU would be a QuickGelu, which rounds every step. In float16 a view keeps it from being fused
  (`passes/part_fusions.py`), so that it rounds twice; in bfloat16 float32 would cost three launches for one.

Rounding every step makes 1.2 to 2.5 times the error of rounding once, as sums of a few nodes do. None of it leaves the
range with an effect, divides by what may be zero, or amplifies: a lost digit of the gate is a lost digit of the result
at most as large as the input's. So what is unsafe about a single node does not count where the whole is safe.

A form is an expression of `graph.match`. Forms are tried at their last node only, each no deeper than it is written,
so the cost is linear in nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_transpiler.graph.match import Call, kind_of_constant, match_at, parse_form
from amp_transpiler.ops.names import is_standard

__all__ = ["NORMALISATION", "PATTERNS", "Match", "Pattern", "matches"]

_CUBE = "Pow(x, c)"
_CUBE_BY_PRODUCT = "Mul(Mul(x, x), x)"
_TANH = "Add(Tanh(Mul(Add(x, Mul({cube}, c)), c)), c)"
_TANH_FACTORED = "Add(Tanh(Mul(Mul(x, c), Add(Mul(Mul(x, c), x), c))), c)"
_ERF = "Add(Erf({scaled}), c)"


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """Describes one operator in its written forms.

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
    """Return the orders in which `x`, one half and another factor are multiplied."""
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


def matches(nodes: Iterable[ir.Node]) -> Iterator[Match]:
    """Yield the patterns in a program; no node is in two of them.

    Args:
        nodes: in the order of execution.
    """
    taken: set[ir.Node] = set()
    for node in nodes:
        ends = _ENDS.get(node.op_type)
        if ends is None or not is_standard(node):
            continue
        before = {maker.op_type for maker in node.predecessors()}
        for end in ends:
            members = match_at(end.form, node, kind_of_constant) if end.reads <= before else None
            if members is not None and not members & taken:
                taken |= members
                yield Match(end.pattern, members)
                break


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    """The last node of a form.

    Attributes:
        pattern: the row.
        form: the form as an expression.
        reads: operators whose results the node reads. Where it reads other results, the form need not be tried.
    """

    pattern: Pattern
    form: Call
    reads: frozenset[str]


_ENDS: dict[str, list[_End]] = {}
for _pattern in PATTERNS:
    for _form in map(parse_form, _pattern.forms):
        _reads = frozenset(term.op_type for term in _form.arguments if isinstance(term, Call))
        _ENDS.setdefault(_form.op_type, []).append(_End(_pattern, _form, _reads))
