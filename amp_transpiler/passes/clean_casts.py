"""Removal of casts that change nothing."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.graph.dtypes import INTEGER_DTYPES, LOW_DTYPES, cast_is_lossless
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.inserted_casts import INSERTED
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["CleanCasts", "Cleaned"]


@dataclasses.dataclass
class Cleaned(PassResult):
    """Casts cleaned.

    Attributes:
        removed: casts removed that no pass had inserted: the source's own.
    """

    removed: int = 0


class CleanCasts(Pass[Cleaned]):
    """Removes casts that change nothing; counts all edits.

    1. A cast to the type that its input already has.
    2. A cast behind a cast, where the two together are one: the first loses nothing, or it turns an integer into
       float32 (ONNX Runtime converts integers to 16-bit floats by way of float32 too).
    3. A second cast of one value to one type in the same graph.
    4. A cast that nothing reads.

    A round trip float32 -> float16 -> float32 is never removed: it rounds. Nor is float32 -> int64 -> float32: it
    truncates.

    Args:
        inserted_only: leave every cast that no pass inserted where it is, with all its readers. Where programs are
            built, users hold such values by name, fetch them, stop gradients at them and ask for their gradients.
    """

    def __init__(self, *, inserted_only: bool = False) -> None:
        self._inserted_only = inserted_only

    def call(self, model: ir.Model) -> Cleaned:
        graphs, edits, removed = [scope.graph for scope in scopes(model)], 0, 0
        for graph in graphs:
            first: dict[tuple[ir.Value, ir.DataType | None], ir.Node] = {}
            for node in [node for node in graph if self._may_go(node)]:
                edits += self._skip_inner_cast(node)
                edits += _remove_if_needless(node, first)
        for graph in reversed(graphs):  # inner graphs first, and readers before the values they read
            for node in reversed([node for node in graph if self._may_go(node)]):
                if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                    edits += 1
                    removed += INSERTED not in node.meta
                    graph.remove(node, safe=True)
        return Cleaned(model, modified=bool(edits), count=edits, removed=removed)

    def _may_go(self, node: ir.Node) -> bool:
        return _is_cast(node) and (INSERTED in node.meta or not self._inserted_only)

    def _skip_inner_cast(self, node: ir.Node) -> bool:
        """Rule 2: read the inner cast's input directly."""
        value = _source_of(node)
        inner = value.producer()
        if inner is None or not self._may_go(inner):
            return False
        source = _source_of(inner)
        if not _compose(source.dtype, value.dtype, node.outputs[0].dtype):
            return False
        node.replace_input_with(0, source)
        return True


def _is_cast(node: ir.Node) -> bool:
    return node.op_type == "Cast" and is_standard(node)


def _source_of(cast: ir.Node) -> ir.Value:
    value = cast.inputs[0]
    assert value is not None  # a Cast has one input
    return value


def _compose(first: ir.DataType | None, middle: ir.DataType | None, last: ir.DataType | None) -> bool:
    assert middle is not None  # the result of a Cast has a type
    if first is not None and cast_is_lossless(first, middle):
        return True
    return first in INTEGER_DTYPES and middle == ir.DataType.FLOAT and last in LOW_DTYPES


def _remove_if_needless(node: ir.Node, first: dict[tuple[ir.Value, ir.DataType | None], ir.Node]) -> bool:
    """Rules 1 and 3: let the readers take the input, or the earlier cast's result."""
    source, result = _source_of(node), node.outputs[0]
    if _has_rounding_option(node):
        return False
    if source.dtype == result.dtype:
        return _replace(result, source)
    earlier = first.setdefault((source, result.dtype), node)
    return earlier is not node and _replace(result, earlier.outputs[0])


def _has_rounding_option(node: ir.Node) -> bool:
    return "saturate" in node.attributes or "round_mode" in node.attributes


def _replace(old: ir.Value, new: ir.Value) -> bool:
    """Let `new` take the place of `old`; a graph output keeps its name, which is why some casts stay."""
    uses = list(old.uses())
    if old.is_graph_output():
        if new.is_graph_output() or new.producer() is None or new.graph is not old.graph:
            for use in uses:
                use.node.replace_input_with(use.idx, new)
            return bool(uses)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.shape = new.shape or old.shape  # an output must have one
        old.name, new.name = f"{old.name}__amp_unused", old.name
        return True
    old.replace_all_uses_with(new)
    return bool(uses)
