"""One form for float constants: a Constant node holds its numbers in `value`."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["UnifyConstants"]

_FORMS = ("value_float", "value_floats")


class UnifyConstants(Pass[PassResult]):
    """Gives every Constant with `value_float` or `value_floats` a tensor in `value` instead; counts them.

    Only a tensor can be converted to a 16-bit format, and only `value` is looked at by `graph.constness`. Constants of
    integers and strings keep their form: no rule here reads them.
    """

    def call(self, model: ir.Model) -> PassResult:
        changed = 0
        for node in all_nodes(model):
            if node.op_type != "Constant" or not is_standard(node):
                continue
            for name in _FORMS:
                attribute = node.attributes.get(name)
                if attribute is not None and not attribute.is_ref():
                    del node.attributes[name]
                    tensor = ir.Tensor(np.array(attribute.value, np.float32))
                    node.attributes["value"] = ir.AttrTensor("value", tensor)
                    changed += 1
        return PassResult(model, modified=bool(changed), count=changed)
