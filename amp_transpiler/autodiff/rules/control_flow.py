"""Gradients of control flow: `If` by differentiating its branches, and a refusal of what must be unrolled first."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.autodiff.bodies import captured
from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient, no_gradient
from amp_transpiler.graph.walk import bodies, constant_of

_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")

# NonZero gives integers: nothing passes.
no_gradient(["NonZero"])


@gradient("If")
def if_(n: NodeGradient) -> Sequence[ir.Value | None]:
    """An `If` on the same condition, whose branches run forward again and then backward.

    Its outputs are the gradients of the captured values that are wanted.
    """
    reads = captured(n.node)
    wanted = [value for value in reads if n.wants_value(value)]
    for _, body in bodies(n.node):
        _refuse_random(n, body)
    branches = {name: n.driver.branch(body, n.grads, wanted) for name, body in bodies(n.node)}
    made = n.b.nodes("If", [n.input(0)], branches, outputs=len(wanted))
    found: dict[ir.Value, ir.Value] = {}
    for value, grad in zip(wanted, made, strict=True):
        grad.type = value.type
        grad.shape = None if value.shape is None else ir.Shape(value.shape)
        found[value] = grad
    return [*(None for _ in n.node.inputs), *(found.get(value) for value in reads)]


def _refuse_random(n: NodeGradient, body: ir.Graph) -> None:
    for node in body:
        mode = node.inputs[2] if node.op_type == "Dropout" and len(node.inputs) > 2 else None
        if node.op_type in _RANDOM or (mode is not None and not _is_false(mode)):
            raise n.error(
                f"its branch '{body.name}' holds '{node.name}' ({node.op_type}), which would draw other numbers when "
                "the branch is run again for its gradient; move it out of the branch"
            )
        for _, inner in bodies(node):
            _refuse_random(n, inner)


def _is_false(value: ir.Value) -> bool:
    tensor = constant_of(value)
    return tensor is not None and not tensor.numpy().any()


@gradient("Loop", "Scan")
def loop(n: NodeGradient) -> None:
    """Refused."""
    raise n.error("loops have no gradient rule; unroll it (export with a fixed number of steps)")


@gradient("LSTM", "GRU", "RNN")
def recurrent(n: NodeGradient) -> None:
    """Refused."""
    raise n.error("recurrent layers have no gradient rule; unroll it into MatMul, Sigmoid and Tanh, a step at a time")


@gradient("GridSample")
def grid_sample(n: NodeGradient) -> None:
    """Refused."""
    raise n.error(
        "GridSample has no gradient rule; write the sampling with Gather and Mul, or keep gradients from passing "
        "(stop_gradient, no_grad_set)"
    )
