"""Root mean square normalisation, spelled as ONNX Runtime recognises it."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import is_pow_of_two
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["SpellNorms"]

logger = logging.getLogger(__name__)

_ROOT = ("Sqrt", "Add", "ReduceMean")  # from the root back to the sum of squares


class SpellNorms(Pass[PassResult]):
    """Writes the reciprocal in a root mean square normalisation as a division of one; counts them.

    `x * Reciprocal(Sqrt(ReduceMean(x ** 2) + epsilon))` is what torch's exporter writes. ONNX Runtime makes one
    operator of it, and of the casts around it, only if it reads `x * (1 / Sqrt(...))`, which gives the same numbers.
    """

    operators = frozenset({"Reciprocal"})

    def call(self, model: ir.Model) -> PassResult:
        if norms := [node for node in all_nodes(model) if _normalises(node)]:
            names = NameAllocator(model)
            for node in norms:
                _divide(node, names)
            logger.info("%d reciprocals of normalisations written as divisions, so that they are fused", len(norms))
        return PassResult(model, modified=bool(norms), count=len(norms))


def _normalises(node: ir.Node) -> bool:
    if node.op_type != "Reciprocal" or not is_standard(node) or node.outputs[0].dtype is None:
        return False
    square = _square_below(node)
    origin = None if square is None else _past_cast(square.inputs[0])
    return origin is not None and any(
        use.node.op_type == "Mul" and any(_past_cast(value) is origin for value in use.node.inputs)
        for use in node.outputs[0].uses()
    )


def _square_below(node: ir.Node) -> ir.Node | None:
    """The square under the root of which `node` is the reciprocal."""
    value = node.inputs[0]
    for op_type in _ROOT:
        maker = None if value is None else value.producer()
        if maker is None or maker.op_type != op_type or not is_standard(maker):
            return None
        value = maker.inputs[0]
    square = None if value is None else value.producer()
    return square if square is not None and is_pow_of_two(square) else None


def _past_cast(value: ir.Value | None) -> ir.Value | None:
    maker = None if value is None else value.producer()
    return maker.inputs[0] if maker is not None and maker.op_type == "Cast" and is_standard(maker) else value


def _divide(node: ir.Node, names: NameAllocator) -> None:
    dtype = node.outputs[0].dtype
    assert dtype is not None  # it was asked for
    builder = NodeBuilder(node, names)
    numerator = builder.constant(np.asarray(1.0).astype(dtype.numpy()), dtype)
    builder.become("Div", [numerator, node.inputs[0]])
