"""Puts the results of new nodes in the place of an old node's."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.names import NameAllocator

__all__ = ["take_over"]


def take_over(old: ir.Value, new: ir.Value, names: NameAllocator) -> None:
    """Let `new`, the result of another node, take the readers, name, type, shape and metadata of `old`.

    Args:
        old: a result of a node that is about to be removed.
        new: a value that no graph output or reader outside the rewriting refers to yet.
        names: the model's; gives `old` a name to be removed under.
    """
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if old.type is not None:
        new.type = old.type
    if old.shape is not None:
        new.shape = ir.Shape(old.shape)
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)
    name, old.name = old.name, names.fresh(f"{old.name}__amp_replaced")
    new.name = name
