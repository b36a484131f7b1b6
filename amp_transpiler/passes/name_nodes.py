"""A name of its own for every node."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.names import NameAllocator, name_nodes
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["NameNodes"]


class NameNodes(Pass[PassResult]):
    """Names nodes that have no name, or one that another node has before them; counts them.

    Reports, patterns of the user and the repair of a conversion refer to nodes by name.
    """

    def call(self, model: ir.Model) -> PassResult:
        names = [node.name for node in all_nodes(model)]
        missing = len(names) - len({name for name in names if name})
        if missing:
            name_nodes(model, NameAllocator(model))
        return PassResult(model, modified=bool(missing), count=missing)
