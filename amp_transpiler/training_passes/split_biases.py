"""Splits convolutions so that their bias is a separate operator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder
from amp_transpiler.precision.constraints import is_float32

__all__ = ["SplitBiases"]


class SplitBiases(Pass[PassResult]):
    """Writes chosen float32 convolutions of the main graph as one without a bias and an addition; counts them.

    Apart, the convolution can be low while the addition stays float32.

    Args:
        chosen: whether the bias of a node is to be a separate operator.
    """

    def __init__(self, chosen: Callable[[ir.Node], bool]) -> None:
        self._chosen = chosen

    def call(self, model: ir.Model) -> PassResult:
        biased = [node for node in model.graph if _has_bias(node) and self._chosen(node)]
        names = NameAllocator(model) if biased else None
        for node in biased:
            assert names is not None
            _split(node, names)
        return PassResult(model, modified=bool(biased), count=len(biased))


def _has_bias(node: ir.Node) -> bool:
    if not is_standard(node) or node.op_type not in ("Conv", "ConvTranspose") or len(node.inputs) < 3:
        return False
    weight, bias = node.inputs[1], node.inputs[2]
    return bias is not None and is_float32(bias) and weight is not None and weight.shape is not None


def _split(node: ir.Node, names: NameAllocator) -> None:
    build, (data, weight, bias) = NodeBuilder(node, names), node.inputs[:3]
    assert weight is not None
    assert weight.shape is not None
    unbiased = build.node(node.op_type, [data, weight], dict(node.attributes), ir.DataType.FLOAT)
    unbiased.shape = node.outputs[0].shape
    product = unbiased.producer()
    assert product is not None
    product.meta.update(node.meta)  # the line of the user's program
    per_channel = build.constant(np.array([-1] + [1] * (len(weight.shape) - 2), np.int64))
    build.become("Add", [unbiased, build.node("Reshape", [bias, per_channel], dtype=ir.DataType.FLOAT)])
