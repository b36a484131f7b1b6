"""SiLU and QuickGELU as exporters write them: `x * Sigmoid(x)` and `x * Sigmoid(c * x)`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import onnx_ir as ir

from amp_transpiler.ops.names import is_standard

if TYPE_CHECKING:
    from amp_transpiler.graph.match import Binding, Call

__all__ = ["is_silu_gate", "silu_at"]

_FORMS = ("Mul(value, Sigmoid(value))", "Mul(value, Sigmoid(Mul(value, alpha:c)))")


@functools.cache
def _forms() -> tuple[Call, ...]:
    from amp_transpiler.graph.match import parse_form  # here: a program without gates needs no forms

    return tuple(map(parse_form, _FORMS))


def silu_at(product: ir.Node) -> Binding | None:
    """Return the `value` of the form that ends in a product, and the `alpha` that it is scaled with, if it is."""
    from amp_transpiler.graph.match import bindings

    return next((silu for form in _forms() for silu in bindings(form, product)), None)


def is_silu_gate(node: ir.Node) -> bool:
    """Whether a node is a Sigmoid with one reader, which multiplies by it what it is computed from.

    ONNX Runtime makes one QuickGelu of them, and of the product with a constant before the Sigmoid.
    """
    if node.op_type != "Sigmoid" or not is_standard(node) or node.outputs[0].is_graph_output():
        return False
    readers = [use.node for use in node.outputs[0].uses()]
    return len(readers) == 1 and silu_at(readers[0]) is not None
