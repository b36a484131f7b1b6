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

A form is an expression of `graph.match`; its constants have names, whose numbers `fusion/norms_and_gelus.py`
knows. Forms are tried at their last node only, each no deeper than it is written, so the cost is linear in nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_transpiler.graph.match import Call, kind_of_constant, match_at, parse_form
from amp_transpiler.ops.names import is_standard

__all__ = [
    "LAYER_NORM",
    "NORMALISATION",
    "PATTERNS",
    "PLAIN_LAYER_NORM",
    "PLAIN_RMS_NORM",
    "RMS_NORM",
    "RMS_NORM_BY_RECIPROCAL",
    "Match",
    "Pattern",
    "matches",
]

_TANH = "Add(Tanh(Mul(Add(x, {cubic}), linear:c)), one:c)"
_CUBICS = ("Mul(Pow(x, three:c), cubic:c)", "Mul(Mul(Mul(x, x), x), cubic:c)")
_CUBIC_FROM_INSIDE = "Mul(x, Mul(x, Mul(cubic:c, x)))"  # as JAX evaluates it
_TANH_FACTORED = "Add(Tanh(Mul(Mul(x, linear:c), Add(Mul(Mul(x, cubic:c), x), unit:c))), one:c)"
_ERF = "Add(Erf({scaled}), one:c)"


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """Describes one operator in its written forms.

    Attributes:
        name: as messages say it.
        forms: expressions.
        is_safe: whether the whole is safe in a low format, whatever its nodes are by themselves and whether it is
            fused or not.
        unfused: further forms, which ONNX Runtime leaves as they are; `fusion/` makes one operator of them.
    """

    name: str
    forms: tuple[str, ...]
    is_safe: bool
    unfused: tuple[str, ...] = ()


def _halved(*factors: str) -> tuple[str, ...]:
    """Return the orders in which `x`, one half and another factor are multiplied."""
    return tuple(
        form for factor in factors for form in (f"Mul(Mul(x, half:c), {factor})", f"Mul(Mul(x, {factor}), half:c)")
    )


def _halved_before(*factors: str) -> tuple[str, ...]:
    """Return the order that torch's exporter by dynamo writes: one half and the other factor first."""
    return tuple(f"Mul(x, Mul(half:c, {factor}))" for factor in factors)


_TANHS = (*(_TANH.format(cubic=cubic) for cubic in _CUBICS), _TANH_FACTORED)
_UNFUSED_TANH = _TANH.format(cubic=_CUBIC_FROM_INSIDE)
_ERFS = (_ERF.format(scaled="Div(x, root:c)"), _ERF.format(scaled="Mul(x, inverse:c)"))

PATTERNS: tuple[Pattern, ...] = (
    # A cube that overflows does no harm: tanh of an infinity is one or minus one.
    Pattern(
        "a tanh GELU",
        _halved(*_TANHS),
        is_safe=True,
        unfused=(*_halved_before(*_TANHS, _UNFUSED_TANH), *_halved(_UNFUSED_TANH)),
    ),
    Pattern("a GELU", _halved(*_ERFS), is_safe=True, unfused=_halved_before(*_ERFS)),
    Pattern("a SiLU", ("Mul(x, Sigmoid(x))", "Mul(x, Sigmoid(Mul(x, c)))"), is_safe=True),
)

_CENTRED = "Sub(x, ReduceMean(x))"
_SQUARES = ("Pow({0}, two:c)", "Mul({0}, {0})")
LAYER_NORM = tuple(
    f"Add(Mul({form.format(f'Div({centred}, Sqrt(Add(ReduceMean({square.format(centred)}), epsilon:c)))')}, scale:w),"
    " shift:w)"
    for square in _SQUARES
    for centred in (_CENTRED, f"Cast({_CENTRED})")
    for form in ("{0}", "Cast({0})")
)
"""Forms of LayerNormalization."""
_ROOTS = tuple(f"Sqrt(Add(ReduceMean({square.format('x')}), epsilon:c))" for square in _SQUARES)
RMS_NORM = tuple(
    f"Mul({form.format(quotient.format(root))}, scale:w)"
    for root in _ROOTS
    for quotient in ("Div(x, {0})", "Mul(x, Div(one:c, {0}))")
    for form in ("{0}", "Cast({0})")
)
"""Forms of root mean square normalisation that ONNX Runtime fuses."""
RMS_NORM_BY_RECIPROCAL = tuple(
    f"Mul({form.format(f'Mul(x, Reciprocal({root}))')}, scale:w)" for root in _ROOTS for form in ("{0}", "Cast({0})")
)
"""Forms that it fuses once this package has written them as a division (`passes/spell_norms.py`)."""


def _normalised(value: str) -> tuple[str, ...]:
    """Return the forms in which a value is divided by the root of its mean square."""
    roots = [f"Sqrt(Add(ReduceMean({square.format(value)}), epsilon:c))" for square in _SQUARES]
    inverses = [form.format(root) for root in roots for form in ("Div(one:c, {0})", "Reciprocal({0})")]
    return (*(f"Div({value}, {root})" for root in roots), *(f"Mul({value}, {inverse})" for inverse in inverses))


PLAIN_LAYER_NORM = _normalised(_CENTRED)
"""Forms of LayerNormalization without scale and shift, of which ONNX Runtime fuses none by themselves."""
PLAIN_RMS_NORM = _normalised("x")
"""Forms of root mean square normalisation without a scale; it fuses none of them, either."""

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
