"""Writes updates that are one Gemm as a product and a sum."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder
from amp_transpiler.precision.constraints import is_float32

__all__ = ["SplitGemmUpdates"]


class SplitGemmUpdates(Pass[PassResult]):
    """Writes `w_new = alpha * A @ B + beta * w` as a Gemm without `w`, a product with alpha and a sum; counts them.

    It does so where `w` is an input and `w_new` an output of the graph, of one type and shape: that may be the update
    of a weight, with the gradient inside. Apart, the gradient can be low while the update stays float32.
    """

    def call(self, model: ir.Model) -> PassResult:
        updates = [node for node in model.graph if _may_be_an_update(node)]
        names = NameAllocator(model) if updates else None
        for node in updates:
            assert names is not None
            _split(node, names)
        return PassResult(model, modified=bool(updates), count=len(updates))


def _may_be_an_update(node: ir.Node) -> bool:
    if node.op_type != "Gemm" or not is_standard(node) or len(node.inputs) < 3:
        return False
    old, new = node.inputs[2], node.outputs[0]
    if old is None or not old.is_graph_input() or not new.is_graph_output() or not is_float32(old):
        return False
    return old.shape is not None and new.shape is not None and list(old.shape) == list(new.shape)


def _split(node: ir.Node, names: NameAllocator) -> None:
    build, old, dtype = NodeBuilder(node, names), node.inputs[2], ir.DataType.FLOAT
    alpha, beta = (_factor(node, name) for name in ("alpha", "beta"))
    turns = {name: node.attributes[name].as_int() for name in ("transA", "transB") if name in node.attributes}
    product = build.node("Gemm", node.inputs[:2], turns, dtype)
    product.shape = node.outputs[0].shape
    change = build.node("Mul", [product, build.constant(alpha)], dtype=dtype)
    scaled = old if beta == 1 else build.node("Mul", [old, build.constant(beta)], dtype=dtype)
    build.become("Add", [scaled, change])


def _factor(node: ir.Node, name: str) -> np.ndarray:
    attribute = node.attributes.get(name)
    return np.array(1.0 if attribute is None else attribute.as_float(), np.float32)
