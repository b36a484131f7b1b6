"""Removes transposes that undo each other."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.walk import is_used
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["CancelTransposes"]


class CancelTransposes(Pass[PassResult]):
    """Lets the readers of a value that was transposed and transposed back read it as it was; counts the Transposes.

    The gradient of a convolution's weight wants rows by channel, and the gradient of a BatchNormalization has them.
    Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        count = 0
        for node in list(model.graph):
            first, there = _transposed(node)
            second = None if first is None else first.producer()
            source, back = _transposed(second)
            if source is None or [there[axis] for axis in back] != list(range(len(back))):
                continue
            result = node.outputs[0]
            if result.is_graph_output():
                continue
            result.replace_all_uses_with(source)
            model.graph.remove(node, safe=True)
            count += 1
            assert second is not None
            if not is_used(second.outputs[0]):
                model.graph.remove(second, safe=True)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


def _transposed(node: ir.Node | None) -> tuple[ir.Value | None, list[int]]:
    """Return what a Transpose reads and its permutation; None for other nodes."""
    if node is None or node.op_type != "Transpose" or not is_standard(node) or "perm" not in node.attributes:
        return None, []
    return node.inputs[0], list(node.attributes["perm"].as_ints())
