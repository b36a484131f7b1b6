"""Recognises outputs that are places: boxes of detectors, and embeddings, which are compared by who lies next to whom.

Boxes are recognised by what reads them (NonMaxSuppression, RoiAlign), by the head of a detector (four coordinates
joined to scores that end in a Sigmoid), or by their name; embeddings by their name, or by rows that all have the length
one. What the data contradict is none: corners that are not ordered, sizes below zero, few columns.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.ops.names import is_standard
from amp_transpiler.verification.output_kind import NUMBERS, OutputKind, output_kinds

__all__ = ["EMBEDDINGS", "are_corners", "by_data", "coordinates", "read_outputs"]

EMBEDDINGS = OutputKind("embeddings")

_COORDINATES = 4  # of a box
_FEWEST_COLUMNS = 16  # of an embedding; shorter vectors of length one are directions and rotations
_LENGTH_ONE = 1e-3  # by so much may the length of a row differ from one
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_BOXES = frozenset("box boxes bbox bboxes roi rois proposals".split())
_NO_BOXES = frozenset(
    "delta deltas offset offsets reg regression score scores class classes cls label labels prob probs logit logits "
    "count num number mask masks index indices".split()
)
_EMBEDDINGS = frozenset("embed embeds embedding embeddings".split())
_NO_EMBEDDINGS = frozenset("pos position positions positional token tokens type types".split())
_KEPT = ("Identity", "Cast", "CastLike")  # operators whose results are read as their inputs are


def read_outputs(model: ir.Model, feeds: Mapping[str, Any]) -> dict[str, OutputKind]:
    """Return how to read each output of a graph, boxes and embeddings among them, as far as the graph says it.

    Args:
        model: a model with types and shapes.
        feeds: the inputs of one sample, for their shapes.
    """
    kinds = output_kinds(model, feeds)
    for output in model.graph.outputs:
        if output.dtype is not None and output.dtype.is_floating_point():
            words = {word.lower() for word in _WORD.findall(str(output.name))}
            kind = _boxes(output, words)
            if kind is None and words & _EMBEDDINGS and not words & _NO_EMBEDDINGS:
                kind = EMBEDDINGS
            if kind is not None:
                kinds[str(output.name)] = kind
    return kinds


def _boxes(output: ir.Value, words: set[str]) -> OutputKind | None:
    origin = _origin(output)
    maker = origin.producer()
    for node, index in (*output.uses(), *_uses(origin)):
        if is_standard(node) and (node.op_type, index) == ("NonMaxSuppression", 0):
            return _kind(-1, centred=node.attributes.get_int("center_point_box", 0) == 1)
        if is_standard(node) and (node.op_type, index) == ("RoiAlign", 1):
            return _kind(-1)
    if maker is not None and is_standard(maker):
        read = maker.inputs[0] if maker.op_type == "Transpose" else None
        if read is not None and (head := _detector_head(_origin(read))) is not None:
            order = maker.attributes.get_ints("perm", None)
            return None if order is None else dataclasses.replace(head, axis=order.index(head.axis % len(order)))
        if (head := _detector_head(origin)) is not None:
            return head
    if words & _BOXES and not words & _NO_BOXES:
        return _kind(-1, centred=maker is not None and maker.op_type == "Sigmoid")
    return None


def _kind(axis: int, *, centred: bool = False) -> OutputKind:
    return OutputKind("boxes", axis=axis, classes=_COORDINATES, centred=centred)


def _detector_head(value: ir.Value) -> OutputKind | None:
    """Return the kind of what joins four coordinates and scores that end in a Sigmoid, as one-stage detectors do."""
    node = value.producer()
    if node is None or not is_standard(node) or node.op_type != "Concat" or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    scores = None if second is None else _origin(second).producer()
    axis = node.attributes.get_int("axis", 0)
    shape = None if first is None else first.shape
    if scores is None or scores.op_type != "Sigmoid" or shape is None or not -len(shape) <= axis < len(shape):
        return None
    if shape[axis] != _COORDINATES:
        return None
    return OutputKind("boxes", axis=axis % len(shape), centred=True)


def _origin(value: ir.Value) -> ir.Value:
    """Return the value that a value is a recast of; itself if it is none."""
    while (node := value.producer()) is not None and node.op_type in _KEPT and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _uses(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """Return the readers of a value, those behind recasts too."""
    readers = []
    for node, index in value.uses():
        readers += _uses(node.outputs[0]) if node.op_type in _KEPT and index == 0 else [(node, index)]
    return readers


# ---- what the data say ----


def by_data(kind: OutputKind, array: np.ndarray) -> OutputKind:
    """Return how to read an array, given how the graph says to: numbers where the data contradict that.

    Args:
        kind: what the graph says.
        array: the float32 program's, floats.
    """
    if kind.reading == "boxes":
        return kind if _are_boxes(kind, array) else NUMBERS
    if kind.reading == "embeddings":
        return kind if array.ndim == 2 and array.shape[1] >= _FEWEST_COLUMNS else NUMBERS
    if kind.reading == "numbers" and _have_length_one(array):
        return EMBEDDINGS
    return kind


def coordinates(kind: OutputKind, array: np.ndarray) -> np.ndarray:
    """Return the four coordinates of each box, float64, of shape [boxes, 4]."""
    table = np.moveaxis(array, kind.axis, -1)
    return table.reshape(-1, table.shape[-1])[:, :_COORDINATES].astype(np.float64)


def are_corners(boxes: np.ndarray) -> bool:
    """Whether coordinates are corners: of none the second one lies before the first."""
    return bool((boxes[:, :2] <= boxes[:, 2:]).all())


def _are_boxes(kind: OutputKind, array: np.ndarray) -> bool:
    if not -array.ndim <= kind.axis < array.ndim or not array.size:
        return False
    size = array.shape[kind.axis]
    if size != kind.classes if kind.classes is not None else size <= _COORDINATES:
        return False
    boxes = coordinates(kind, array)
    boxes = boxes[np.isfinite(boxes).all(axis=1)]
    return are_corners(boxes) or (kind.centred and bool((boxes[:, 2:] >= 0.0).all()))


def _have_length_one(array: np.ndarray) -> bool:
    """Whether an array is rows of length one, as only a normalization makes them; one-hot rows have no sign."""
    if array.dtype.kind != "f" or array.ndim != 2 or array.shape[1] < _FEWEST_COLUMNS or not array.shape[0]:
        return False
    lengths = np.sqrt(np.einsum("rc,rc->r", array, array, dtype=np.float64))
    return bool((np.abs(lengths - 1.0) < _LENGTH_ONE).all() and (array < 0).any())
