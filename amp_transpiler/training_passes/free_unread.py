"""Has the memory of results that nobody reads freed at once."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import is_used
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["FreeUnread"]


class FreeUnread(Pass[PassResult]):
    """Lets a Size read each result that nobody reads, of a node with others that somebody does; counts them.

    A kernel needs memory for such a result, as LayerNormalization does where only mean and deviation are read. ONNX
    Runtime frees memory behind the last reader, and with the settings of a training step, that of a result without one
    at the end of the run. Size looks at the shape alone: nothing is launched or copied.

    Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names: NameAllocator | None = None
        count = 0
        for node in list(model.graph):
            unread = [value for value in node.outputs if value.name and not is_used(value)]
            if not unread or len(unread) == len(node.outputs):
                continue
            names = names or NameAllocator(model)
            for value in unread:
                node.append(_size(value, names))
            count += len(unread)
        return PassResult(model, modified=bool(count), count=count)


def _size(value: ir.Value, names: NameAllocator) -> ir.Node:
    result = ir.Value(name=names.fresh(f"{value.name}_size"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    return ir.Node("", "Size", [value], outputs=[result], name=names.fresh(f"{value.name}_size"))
