"""Gradient of `If`, by differentiating its branches."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.autodiff.bodies import captured
from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.walk import bodies

_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


@gradient("If")
def if_(gs: Sequence[Expr | None], condition: Expr, *, node: NodeGradient) -> Gradients:
    """An `If` on the same condition, whose branches run forward again and then backward.

    Its outputs are the wanted gradients of the values that the branches capture.
    """
    reads = captured(node.source)
    wanted = [value for value in reads if node.wants_value(value)]
    for _, body in bodies(node.source):
        refuse_random(body)
    grads = [None if g is None else g.value for g in gs]
    branches = {name: node.backward.branch(body, grads, wanted) for name, body in bodies(node.source)}
    results = condition.outputs("If", count=len(wanted), **branches)
    gradients: dict[ir.Value, Expr] = {}
    for value, grad in zip(wanted, results, strict=True):
        grad.value.type = value.type
        grad.value.shape = None if value.shape is None else ir.Shape(value.shape)
        gradients[value] = grad
    return [None, *(gradients.get(value) for value in reads)]


def refuse_random(body: ir.Graph, *, numbered: bool = True) -> None:
    """Raise NotDifferentiable if a body, which is to run again for its gradient, would draw other numbers then.

    A Dropout whose mode is known becomes operators that drop the same, if the turns of all loops around it have
    numbers (`numbered`). A Scan's have none.
    """
    for node in body:
        mode = node.inputs[2] if node.op_type == "Dropout" and len(node.inputs) > 2 else None
        same = mode is None or (constant_of(mode) is not None and (numbered or _is_false(mode)))
        if node.op_type in _RANDOM or not same:
            raise NotDifferentiable(
                f"its body '{body.name}' holds '{node.name}' ({node.op_type}), which would draw other numbers when "
                "the body is run again for its gradient; move it out of the body"
            )
        for _, inner in bodies(node):
            refuse_random(inner, numbered=numbered and node.op_type != "Scan")


def _is_false(value: ir.Value) -> bool:
    tensor = constant_of(value)
    return tensor is not None and not tensor.numpy().any()
