"""Constants in one form: Constant nodes hold their value in `value`, and no Identity stands before a reader."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes, constant_of, is_standard

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


def skip_identities(model: ir.Model) -> int:
    """Let readers of an Identity of a constant read the constant itself; return how many Identities go.

    Exporters write them for parameters that layers share. They would hide from every rule that it is a parameter.
    """
    skipped = 0
    for node in list(all_nodes(model)):
        if node.op_type != "Identity" or not is_standard(node) or constant_of(node.inputs[0]) is None:
            continue
        result, graph = node.outputs[0], node.graph
        if result.is_graph_output() or not isinstance(graph, ir.Graph):
            continue
        result.replace_all_uses_with(node.inputs[0])  # type: ignore[arg-type]  # a constant is a value
        graph.remove(node, safe=True)
        skipped += 1
    return skipped
