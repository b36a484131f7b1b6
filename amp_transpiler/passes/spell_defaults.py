"""Defaults of attributes that ONNX's shape inference reads wrongly, written out."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["SpellDefaults"]

# Operator -> attribute and the default that its schema states. The inference of ONNX 1.23 and older takes another one
# where the attribute is left out, and ONNX Runtime refuses a file with the shapes that follow.
_MISREAD = {
    "STFT": ("onesided", 1),  # taken as 0: all frequencies instead of half of them
}


class SpellDefaults(Pass[PassResult]):
    """Writes attributes out that inference misreads when they are left out; counts them."""

    def call(self, model: ir.Model) -> PassResult:
        count = 0
        for node in all_nodes(model):
            if node.op_type in _MISREAD and is_standard(node):
                name, value = _MISREAD[node.op_type]
                if name not in node.attributes:
                    node.attributes[name] = ir.AttrInt64(name, value)
                    count += 1
        return PassResult(model, modified=bool(count), count=count)
