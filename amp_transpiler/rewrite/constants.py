"""Constant nodes in one form: whatever attribute held the value, it is in `value` afterwards."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes, is_standard

__all__ = ["unify_constants"]

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
