"""The IR version that the content of a model needs."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.limits import NEWEST_IR
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["SetIrVersion"]

_FIRST_IR_WITH_NODE_METADATA = 10


class SetIrVersion(Pass[PassResult]):
    """Raises the IR version to what the opsets and the metadata of nodes need, and lowers it to what can be loaded.

    ONNX Runtime refuses an IR version newer than the one it was built with, whatever the model uses of it.

    Args:
        at_least: a version to raise the model to in any case.
        newest: the newest version that the ONNX Runtime in question reads.
    """

    def __init__(self, at_least: int = 0, newest: int = NEWEST_IR) -> None:
        self._at_least = at_least
        self._newest = newest

    def call(self, model: ir.Model) -> PassResult:
        before = model.ir_version
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in model.graph.opset_imports.items()]
        needed = max(self._at_least, onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True))
        if any(node.metadata_props for node in all_nodes(model)):
            needed = max(needed, _FIRST_IR_WITH_NODE_METADATA)
        model.ir_version = min(max(before, needed), self._newest)
        return PassResult(model, modified=model.ir_version != before)
