"""Removes the Identities that only give values further names."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.builder import is_static
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["DropIdentities"]


class DropIdentities(Pass[PassResult]):
    """Lets readers of an Identity read what it copies; counts the Identities, which are removed.

    Every parameter's gradient is named by one. Once a step is assembled, nobody asks for the names of values that are
    no outputs. ONNX Runtime would remove the nodes too, after all passes have walked over them.

    Only the main graph is edited. What makes an output of the program stays.
    """

    def call(self, model: ir.Model) -> PassResult:
        dropped = [node for node in model.graph if _passes_on(node)]
        model.graph.remove(dropped, safe=True)
        return PassResult(model, modified=bool(dropped), count=len(dropped))


def _passes_on(node: ir.Node) -> bool:
    """Let the readers of an Identity read its source; return whether this was possible."""
    if node.op_type != "Identity" or not is_standard(node) or node.outputs[0].is_graph_output():
        return False
    source, result = node.inputs[0], node.outputs[0]
    if source is None or source.dtype != result.dtype:
        return False
    if not is_static(source) and is_static(result):  # what declared the gradient knew more than inference does
        source.shape = result.shape
    result.replace_all_uses_with(source)
    return True
