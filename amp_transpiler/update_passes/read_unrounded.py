"""Lets updates read gradients before these are rounded to 16 bits."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, elements_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.match import bindings, parse_form
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.roles import role_of
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.update_passes.update_chains import is_widened

__all__ = ["ReadUnrounded"]

_CHOSEN = parse_form("Cast(low:Where(condition, y, gradient))")
_LARGE = 1 << 20


class ReadUnrounded(Pass[PassResult]):
    """Lets the update of a large tensor read its gradient before that is rounded to 16 bits; counts them.

    A gradient has its parameter's element type. That of a look-up is summed up in float32, and rounded at the end, just
    for the update to cast it back: two casts of a whole table of words. The update gets the float32 sum instead, which
    is the more exact one; where all else that reads the gradient is the check for infinity, no cast is left. Where
    nothing is checked, as in bfloat16, the update reads the sum itself.

    Small ones are rounded: their gradients are joined with others that are in 16 bits.

    The values of the model must be typed. Only the main graph is edited.

    Args:
        least: the elements of a large tensor.
    """

    def __init__(self, least: int = _LARGE) -> None:
        self._least = least

    def call(self, model: ir.Model) -> PassResult:
        names = NameAllocator(model)
        widened = [node for node in model.graph if role_of(node) == "optimize" and is_widened(node)]
        widened = [node for node in widened if (elements_of(node.outputs[0]) or 0) >= self._least]
        count = sum(_read_unrounded(model, node, names) for node in widened)
        return PassResult(model, modified=bool(count), count=count)


def _read_unrounded(model: ir.Model, cast: ir.Node, names: NameAllocator) -> bool:
    """Let what follows a cast read the float32 value of a gradient, chosen between it and zeros as it is."""
    low = cast.inputs[0]
    if low is None or len(low.uses()) != 1 or low.is_graph_output():
        return False
    rounded = next(bindings(_CHOSEN, cast), None)
    if rounded is None:
        return _leave_out(cast, _unrounded(low))
    source, chosen = _unrounded(rounded["gradient"]), rounded.node("low")
    if source is None:
        return False
    builder = GraphBuilder(model, before=chosen, names=names, metadata=chosen.metadata_props, prefix=f"{cast.name}/")
    cast.outputs[0].replace_all_uses_with(builder.where(rounded["condition"], 0.0, source))
    remove_unread(cast)
    return True


def _leave_out(cast: ir.Node, source: ir.Value | None) -> bool:
    """Let what follows a cast read the float32 value of a gradient that nothing is chosen for."""
    if source is None or source.shape != cast.outputs[0].shape:
        return False
    cast.outputs[0].replace_all_uses_with(source)
    remove_unread(cast)
    return True


def _unrounded(value: ir.Value) -> ir.Value | None:
    """Return the float32 value that a gradient of the backward pass was rounded from."""
    node = value.producer()
    while node is not None and is_standard(node) and node.op_type == "Identity" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type != "Cast" or not is_standard(node) or node.outputs[0].dtype not in LOW_DTYPES:
        return None
    source = node.inputs[0]
    return source if source is not None and source.dtype == ir.DataType.FLOAT else None
