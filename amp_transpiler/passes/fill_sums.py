"""Joins the fill of a tensor with one number and the sum of a number with it to one fill."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.dtype_attributes import tensor_of
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["FillSums"]

logger = logging.getLogger(__name__)


class FillSums(Pass[PassResult]):
    """Turns `ConstantOfShape(shape) + number` into a ConstantOfShape of the sum; counts them.

    PyTorch's exporter writes that for `torch.full`. It is one kernel less.
    """

    operators = frozenset({"ConstantOfShape"})

    def call(self, model: ir.Model) -> PassResult:
        nodes = list(all_nodes(model))
        if not any(node.op_type == "ConstantOfShape" for node in nodes):
            return PassResult(model, modified=False, count=0)
        names = NameAllocator(model)
        count = sum(_join(node, names) for node in nodes if node.op_type == "Add")
        if count:
            logger.info("%d sums of a filled tensor and a number are part of the fill", count)
        return PassResult(model, modified=bool(count), count=count)


def _join(add: ir.Node, names: NameAllocator) -> bool:
    """Turn a sum into a fill, if it is one; return whether it is."""
    if not is_standard(add):
        return False
    for filled, other in (tuple(add.inputs), tuple(reversed(add.inputs))):
        fill, number = None if filled is None else filled.producer(), constant_array(other)
        if filled is None or fill is None or fill.op_type != "ConstantOfShape" or not is_standard(fill):
            continue
        if number is None or number.ndim or len(filled.uses()) != 1 or filled.is_graph_output():
            continue
        attribute = fill.attributes.get("value")
        filler = np.zeros(1, np.float32) if attribute is None else np.asarray(tensor_of(attribute).numpy())
        total = (filler + number).astype(number.dtype).reshape(1)
        NodeBuilder(add, names).become(
            "ConstantOfShape", [fill.inputs[0]], {"value": ir.Tensor(total, dtype=filled.dtype)}
        )
        remove_unread(fill)
        return True
    return False
