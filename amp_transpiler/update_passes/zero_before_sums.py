"""Replaces gradients that are not finite by zeros before they are added up in float32."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, elements_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.update_passes.scattered_sums import float16_operands
from amp_transpiler.update_passes.update_chains import is_scalar

__all__ = ["ZeroBeforeSums"]

_LARGE = 1 << 20  # elements: below that, one more kernel costs more than a narrower one saves


class ZeroBeforeSums(Pass[PassResult]):
    """Chooses between float16 gradients and zeros before these are added up in float32; counts the sums.

    The gradient of a table of words that is the last layer's weight too is a float16 product, cast to float32, with
    the rows of the words added. Where a step is skipped, zeros stand for the sum: float32 of the table's size are read
    and written for that. Zeros in the product and in the rows give the same sum, from half the bytes; and the product
    stays in float16 until it is known whether the step counts.

    The values of the model must be typed, and have shapes. Only the main graph is edited.

    Args:
        least: the elements of a large sum.
    """

    def __init__(self, least: int = _LARGE) -> None:
        self._least = least

    def call(self, model: ir.Model) -> PassResult:
        chosen = [node for node in model.graph if self._chooses_sum(node)]
        names = NameAllocator(model) if chosen else None
        for node in chosen:
            assert names is not None
            _rewrite(GraphBuilder(model, before=node, names=names, metadata=node.metadata_props), node)
        return PassResult(model, modified=bool(chosen), count=len(chosen))

    def _chooses_sum(self, node: ir.Node) -> bool:
        """Whether a node puts zeros in the place of a large sum that nothing else reads, for all elements or none."""
        if node.op_type != "Where" or not is_standard(node):
            return False
        condition, zero, total = node.inputs
        if condition is None or zero is None or total is None or not is_scalar(condition):
            return False
        number = constant_of(zero)
        if number is None or number.size != 1 or number.numpy().item() != 0:
            return False
        if len(total.uses()) != 1 or total.is_graph_output() or (elements_of(total) or 0) < self._least:
            return False
        return bool(float16_operands(total))


def _rewrite(build: GraphBuilder, node: ir.Node) -> None:
    condition, _, total = node.inputs
    assert condition is not None
    assert total is not None
    scatter = total.producer()
    assert scatter is not None
    data, rows = (build.high(build.where(condition, 0.0, source)) for source in float16_operands(total))
    summed = build.op("ScatterND", [data, scatter.inputs[1], rows], {"reduction": "add"})
    summed.shape = node.outputs[0].shape
    take_over(node.outputs[0], summed, build.names)
    remove_unread(node)
