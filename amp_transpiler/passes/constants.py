"""Constants in one form: Constant nodes hold their value in `value`, and no Identity stands before a reader."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes, constant_of
from amp_transpiler.ops.names import is_standard

__all__ = ["skip_identities", "unify_constants"]

_FORMS = ("value_float", "value_floats")


def unify_constants(model: ir.Model) -> int:
    """Give every Constant with `value_float` or `value_floats` a tensor in `value` instead; return how many."""
    changed = 0
    for node in all_nodes(model):
        if node.op_type != "Constant" or not is_standard(node):
            continue
        for name in _FORMS:
            attribute = node.attributes.get(name)
            if attribute is not None and not attribute.is_ref():
                del node.attributes[name]
                node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(np.array(attribute.value, np.float32)))
                changed += 1
    return changed


def skip_identities(model: ir.Model, *, keep: bool) -> int:
    """Let readers of an Identity of a constant read the constant itself; return how many there were.

    A cast of a float32 constant to float32 is one, too. Exporters write them, for parameters that layers share; they
    would hide from every rule that it is a parameter.

    Args:
        model: the model.
        keep: leave the nodes there: their results may be asked for by name.
    """
    skipped = 0
    for node in list(all_nodes(model)):
        source, graph = node.inputs[0] if node.inputs else None, node.graph
        tensor = constant_of(source)
        if source is None or tensor is None or not isinstance(graph, ir.Graph) or not _changes_nothing(node, tensor):
            continue
        result = node.outputs[0]
        for use in list(result.uses()):
            use.node.replace_input_with(use.idx, source)
        if not keep and not result.is_graph_output():
            graph.remove(node, safe=True)
        skipped += 1
    return skipped


def _changes_nothing(node: ir.Node, tensor: ir.TensorProtocol) -> bool:
    if not is_standard(node):
        return False
    to = node.attributes.get("to")
    is_cast = node.op_type == "Cast" and to is not None and not to.is_ref()
    return node.op_type == "Identity" or (is_cast and tensor.dtype == ir.DataType.FLOAT == to.as_int())  # type: ignore[union-attr]  # is_cast says so
