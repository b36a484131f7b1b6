"""Lets Concats read what was split or padded before, without the Split and the Pad."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.training_passes.place_casts import VIEWS
from amp_transpiler.training_passes.zero_pads import ZeroPadding

__all__ = ["SimplifyConcats"]

_MOST = 32  # tensors that one kernel of ONNX Runtime joins without a table in the device's memory
_LARGE = 1 << 20  # zeros that a session keeps instead of writing them in each run


class SimplifyConcats(Pass[PassResult]):
    """Lets a Concat that joins gradients read them before they are split or padded; counts these Concats.

    1. All parts of a Split, side by side, are what was split.
    2. A part that is padded with zeros is that part beside zeros.

    Only what lies in one piece in memory counts: along the first axis, or along one that has only ones before it.

    All values stay the same, to the bit. Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for node in list(model.graph):
            pieces = _simplified(node)
            if pieces is not None:
                _write(model, names, node, pieces)
                count += 1
        if count:
            RemoveUnusedNodesPass()(model)
        return PassResult(model, modified=bool(count), count=count)


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Elements that follow each other.

    Attributes:
        value: the value that they are all of; None for zeros.
        count: how many zeros.
    """

    value: ir.Value | None
    count: int = 0


def _simplified(node: ir.Node) -> list[_Piece] | None:
    """Return what a Concat joins, without Splits and Pads; None if there are none, or if it is no such Concat."""
    if node.op_type != "Concat" or not is_standard(node):
        return None
    values = [value for value in node.inputs if value is not None and is_static(value) and value.dtype is not None]
    if len(values) < len(node.inputs) or not _is_in_one_piece(values[0], node.attributes["axis"].as_int()):
        return None
    pieces: list[_Piece] = []
    at = 0
    while at < len(values):
        source, parts = _split_source(values[at:])
        pieces += _unpadded(values[at]) if source is None else [_Piece(source)]
        at += parts
    plain = [_Piece(value) for value in values]
    return pieces if pieces != plain and len(pieces) <= max(_MOST, len(plain)) else None


def _is_in_one_piece(value: ir.Value, axis: int) -> bool:
    shape = shape_of(value)
    return math.prod(shape[: axis % len(shape)]) == 1


def _split_source(values: Sequence[ir.Value]) -> tuple[ir.Value | None, int]:
    """Return what was split into the values at the front, and how many these are; (None, 1) if they are no such."""
    split = _behind_views(values[0]).producer()
    if split is None or split.op_type != "Split" or not is_standard(split) or len(split.outputs) < 2:
        return None, 1
    source = split.inputs[0]
    if source is None or not is_static(source) or not _is_in_one_piece(source, split.attributes.get_int("axis", 0)):
        return None, 1
    roots = [_behind_views(value) for value in values[: len(split.outputs)]]
    return (source, len(roots)) if roots == list(split.outputs) else (None, 1)


def _unpadded(value: ir.Value) -> list[_Piece]:
    """Return what a padded value is padded from, and the zeros; the value itself if it is not padded."""
    plain = [_Piece(value)]
    root = _behind_views(value, read_once=True)
    padding = ZeroPadding.of(root.producer()) if _is_read_once(root) else None
    if padding is None or not _is_in_one_piece(padding.source, padding.axis) or padding.zeros > _LARGE:
        return plain
    inner = math.prod(shape_of(padding.source)[padding.axis + 1 :])
    zeros = [_Piece(None, padding.before * inner), _Piece(None, padding.after * inner)]
    pieces = [zeros[0], _Piece(padding.source), zeros[1]]
    return [piece for piece in pieces if piece.value is not None or piece.count]


def _behind_views(value: ir.Value, *, read_once: bool = False) -> ir.Value:
    """Return the value that views make another one of; with `read_once`, only through views that are read once."""
    while (node := value.producer()) is not None and node.op_type in VIEWS and is_standard(node):
        if node.inputs[0] is None or (read_once and not _is_read_once(value)):
            break
        value = node.inputs[0]
    return value


def _is_read_once(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _write(model: ir.Model, names: NameAllocator, node: ir.Node, pieces: Sequence[_Piece]) -> None:
    builder = GraphBuilder(model, before=node, names=names, metadata=node.metadata_props, prefix=f"{node.name}/")
    result = node.outputs[0]
    parts = [_flat(builder, piece, result) for piece in pieces]
    joined = builder.concat(parts, 0)
    reshaped = builder.reshape(joined, shape_of(result))
    take_over(result, reshaped, names)
    model.graph.remove(node, safe=True)


def _flat(builder: GraphBuilder, piece: _Piece, like: ir.Value) -> ir.Value:
    """Return a piece as a vector of the type of `like`."""
    if piece.value is not None:
        return builder.reshape(piece.value, [-1])
    assert like.dtype is not None
    shape = builder.constant(np.array([piece.count], np.int64))
    return builder.op("ConstantOfShape", [shape], {"value": ir.tensor(np.zeros(1, like.dtype.numpy()))})
