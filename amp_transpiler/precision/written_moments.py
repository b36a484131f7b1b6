"""Finds means and variances that are written out as sums, where bfloat16 keeps too few digits of them.

ReduceMean rounds once. A sum that is divided afterwards is rounded with its eight bits, the count with it (257 becomes
256), and the quotient again. Where the mean is far from zero, as that of a logarithm of a spectrum is, what is left
once it is subtracted is a small difference of large numbers, and has all of that error. E[x²] - E[x]² is such a
difference by itself. A mean that is not subtracted, such as one that pools, has a small error of its own. In float16,
with eight times as many steps, none was seen to matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_transpiler.graph.match import bindings, parse_form
from amp_transpiler.ops.kinds import MOVEMENT
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.reasons import Reason

__all__ = ["written_moments"]

_SQUARES = ("Mul({0}, {1})", "Pow({0}, 2)")


def _means_of(value: str) -> tuple[str, ...]:
    """Return the forms in which the mean of a value is written as a sum."""
    return f"Div(ReduceSum({value}), y)", f"Mul(ReduceSum({value}), c)"


_MEANS = tuple(map(parse_form, _means_of("x")))
_MEAN_SQUARES = (
    *(
        form
        for square in _SQUARES
        for form in (*_means_of(square.format("x", "x")), f"ReduceMean({square.format('x', 'x')})")
    ),
    "Div(ReduceSumSquare(x), y)",
    "Mul(ReduceSumSquare(x), c)",
)
_SQUARED_MEANS = tuple(
    square.format(f"m:{mean}", "m") for mean in (*_means_of("x"), "ReduceMean(x)") for square in _SQUARES
)
_DIFFERENCES = tuple(parse_form(f"Sub({mean}, {square})") for mean in _MEAN_SQUARES for square in _SQUARED_MEANS)


def written_moments(nodes: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, Reason]]:
    """Yield the nodes of written-out means and variances, each with the reason to leave it in float32.

    Args:
        nodes: of a typed program.
    """
    for node in nodes:
        if node.op_type != "Sub" or not is_standard(node):
            continue
        if difference := next((match for form in _DIFFERENCES for match in bindings(form, node)), None):
            yield from ((member, Reason("difference-of-squares")) for member in difference.nodes)
        elif (maker := _maker(node.inputs[1])) is not None:
            means = (match for form in _MEANS for match in bindings(form, maker))
            yield from ((member, Reason("written-mean")) for match in means for member in match.nodes)


def _maker(value: ir.Value | None) -> ir.Node | None:
    """Return the node that computes the numbers of a value, which others may move or repeat."""
    node = None if value is None else value.producer()
    while node is not None and is_standard(node) and node.op_type in MOVEMENT and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node
