"""Removes transposes that undo each other."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.match import Binding
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.rewrite import Rewrite, rewrite

__all__ = ["CancelTransposes"]


def _undo_each_other(pair: Binding) -> bool:
    there, back = (node.attributes.get_ints("perm", ()) for node in (pair.node("turned"), pair.last))
    return len(there) == len(back) > 0 and [there[axis] for axis in back] == list(range(len(back)))


_ROWS = (Rewrite("Transpose(turned:Transpose(source))", "source", applies=_undo_each_other),)


class CancelTransposes(Pass[PassResult]):
    """Lets the readers of a value that was transposed and transposed back read it as it was; counts the Transposes.

    The gradient of a convolution's weight wants rows by channel, and the gradient of a BatchNormalization has them.
    Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        before = len(model.graph)
        rewrite(model, _ROWS, model.graph)
        count = before - len(model.graph)
        return PassResult(model, modified=bool(count), count=count)
