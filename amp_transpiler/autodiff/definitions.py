"""Gradients by definition: an operator written in plain operators, which are differentiated.

The definition is computed again in the backward pass and gradients go through it by the rules of its operators. So an
operator takes one short function, and its numerics are those of the operators that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient

__all__ = ["Results", "defined"]

Results: TypeAlias = "Expr | Sequence[Expr | None]"
_Definition: TypeAlias = Callable[..., Results]


def defined(*op_types: str, domain: str) -> Callable[[_Definition], _Definition]:
    """Register the decorated definition: node and inputs (None where one is left out) -> outputs, None for unused."""

    def register(definition: _Definition) -> _Definition:
        def rule(gs: Sequence[Expr | None], *inputs: Expr | None, node: NodeGradient) -> Gradients:
            return _differentiated(node, gs, inputs, definition)

        gradient(*op_types, domain=domain)(rule)
        return definition

    return register


def _differentiated(
    node: NodeGradient, gs: Sequence[Expr | None], inputs: Sequence[Expr | None], definition: _Definition
) -> Gradients:
    def define() -> list[ir.Value | None]:
        outputs = definition(node, *inputs)
        return [None if y is None else y.value for y in ([outputs] if isinstance(outputs, Expr) else outputs)]

    wanted = [x.value for index, x in enumerate(inputs) if x is not None and node.wants(index)]
    gradients = node.backward.through(define, [None if g is None else g.value for g in gs], wanted)
    return [None if x is None or x.value not in gradients else Expr(gradients[x.value], node.builder) for x in inputs]
