"""Imports of the domains that a model uses."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.schema import runtime_domains
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["ImportDomains"]


class ImportDomains(Pass[PassResult]):
    """Imports version 1 of ONNX Runtime's domains that nodes use and the model does not import; counts the domains.

    ONNX Runtime loads a model that leaves such an import out; ONNX does not allow it.
    """

    def call(self, model: ir.Model) -> PassResult:
        imports = model.graph.opset_imports
        used = dict.fromkeys(node.domain for node in all_nodes(model) if node.domain)
        missing = [domain for domain in used if domain not in imports and domain != "ai.onnx"]
        missing = [domain for domain in missing if domain in runtime_domains()]
        for domain in missing:
            imports[domain] = 1
        notes = tuple(f"fault of the source: it uses {d} without importing it; version 1 is assumed" for d in missing)
        return PassResult(model, modified=bool(missing), count=len(missing), notes=notes)
