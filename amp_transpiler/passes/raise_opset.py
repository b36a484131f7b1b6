"""The opset in which more of a model can be in lower precision."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.name_nodes import NameNodes
from amp_transpiler.passes.standard_opset import OpsetConversionError
from amp_transpiler.precision.opset_choice import OpsetChoice

__all__ = ["RaiseOpset"]


class RaiseOpset(Pass[PassResult]):
    """Raises the opset to the one chosen, and rewrites the nodes that lose their kernel there; counts these.

    Where a node cannot be carried over, the model keeps its opset, with a note.

    Args:
        choose: asked once, about the model as the pass finds it.
        required: the model is of no use at its own opset, so a node that cannot be carried over is an error.
        training: whether gradients will be computed of what is written.

    Raises:
        OpsetConversionError: a node cannot be carried over, and `required` is set.
    """

    def __init__(
        self, choose: Callable[[ir.Model], OpsetChoice], *, required: bool = False, training: bool = False
    ) -> None:
        self._choose = choose
        self._required = required
        self._training = training

    def call(self, model: ir.Model) -> PassResult:
        choice = self._choose(model)
        if not choice.reason:
            return PassResult(model, modified=False)
        from amp_transpiler.passes.convert_opset import ConvertOpset  # with an adapter for each schema that changed
        from amp_transpiler.passes.rewrite_equivalents import RewriteEquivalents

        # By name: the conversion may replace the nodes by copies.
        names = {str(node.name) for node in choice.rewrite}
        try:
            converted = ConvertOpset(choice.opset)(model)
        except OpsetConversionError as error:
            if self._required:
                raise
            note = f"opset kept at {opset_of(model, '')}: {error}"
            return PassResult(model, modified=False, notes=(note,))
        rewritten = RewriteEquivalents(lambda node: node.name in names, training=self._training)(model)
        named = NameNodes()(model)
        modified = converted.modified or rewritten.modified or named.modified
        return PassResult(model, modified=modified, count=rewritten.count, notes=(choice.reason,))
