"""Finds means and variances that are written out as sums, of which bfloat16 keeps too few digits.

ReduceMean rounds once. A sum that is divided afterwards is rounded with its eight bits, the count with it (257 becomes
256), and the quotient again; what is subtracted from such a mean is a small difference of large numbers where the mean
is far from zero, as that of logarithms of a spectrum is. E[x²] - E[x]² is such a difference by itself. In float16,
with eight times as many steps, neither was seen to matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_transpiler.graph.match import bindings, parse_form
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.reasons import Reason

__all__ = ["written_moments"]

_QUOTIENTS = ("Div({0}, y)", "Mul({0}, c)")
_SQUARES = ("Mul({0}, {1})", "Pow({0}, 2)")


def _means_of(value: str) -> tuple[str, ...]:
    """Return the forms in which the mean of a value is written as a sum."""
    return tuple(form.format(f"ReduceSum({value})") for form in _QUOTIENTS)


_WRITTEN = (*_means_of("x"), *(form.format("ReduceSumSquare(x)") for form in _QUOTIENTS))
_MEAN_SQUARES = (
    *(
        form
        for square in _SQUARES
        for form in (*_means_of(square.format("x", "x")), f"ReduceMean({square.format('x', 'x')})")
    ),
    *(form.format("ReduceSumSquare(x)") for form in _QUOTIENTS),
)
_SQUARED_MEANS = tuple(
    square.format(f"m:{mean}", "m") for mean in (*_means_of("x"), "ReduceMean(x)") for square in _SQUARES
)
_FORMS = (
    ("difference-of-squares", tuple(f"Sub({mean}, {square})" for mean in _MEAN_SQUARES for square in _SQUARED_MEANS)),
    ("written-mean", _WRITTEN),
)
"""The code of a reason, and the forms that it is about."""
_ENDS = {
    op_type: [(code, form) for code, forms in _FORMS for form in map(parse_form, forms) if form.op_type == op_type]
    for op_type in ("Div", "Mul", "Sub")
}


def written_moments(nodes: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, Reason]]:
    """Yield the nodes of written-out means and variances, each with the reason to leave it in float32.

    Args:
        nodes: of a typed program.
    """
    for node in nodes:
        for code, form in _ENDS.get(node.op_type, ()) if is_standard(node) else ():
            match = next(bindings(form, node), None)
            if match is not None:
                yield from ((member, Reason(code)) for member in match.nodes)
                break
