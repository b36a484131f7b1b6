"""Skipping of Identities between a constant and its readers."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["SkipIdentities"]


class SkipIdentities(Pass[PassResult]):
    """Lets readers of an Identity of a constant read the constant itself; counts the Identities.

    A cast of a float32 constant to float32 is treated the same. Exporters write both for parameters that layers share,
    and they would hide from every rule that the value is a parameter.

    Args:
        keep: leave the nodes in place, since their results may be fetched by name, and leave all casts: users wrote
            them.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep

    def call(self, model: ir.Model) -> PassResult:
        skipped = sum(self._skip(node) for node in list(all_nodes(model)))
        return PassResult(model, modified=bool(skipped), count=skipped)

    def _skip(self, node: ir.Node) -> bool:
        source, graph = node.inputs[0] if node.inputs else None, node.graph
        tensor = constant_of(source)
        if source is None or tensor is None or not isinstance(graph, ir.Graph) or not _changes_nothing(node, tensor):
            return False
        if self._keep and node.op_type == "Cast":
            return False
        result = node.outputs[0]
        uses = list(result.uses())
        for use in uses:
            use.node.replace_input_with(use.idx, source)
        removable = not self._keep and not result.is_graph_output()
        if removable:
            graph.remove(node, safe=True)
        return bool(uses) or removable


def _changes_nothing(node: ir.Node, tensor: ir.TensorProtocol) -> bool:
    if not is_standard(node):
        return False
    to = node.attributes.get("to")
    is_cast = node.op_type == "Cast" and to is not None and not to.is_ref()
    return node.op_type == "Identity" or (is_cast and tensor.dtype == ir.DataType.FLOAT == to.as_int())  # type: ignore[union-attr]  # is_cast says so
