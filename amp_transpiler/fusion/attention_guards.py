"""Guards of attention: rows of scores of which none counts give 0 instead of NaN."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from amp_transpiler.fusion.attention_values import (
    behind_nothing,
    is_standard_op,
    made_by,
    number_of,
    only_reader,
    repeated_number,
)
from amp_transpiler.graph.constness import constant_array

__all__ = ["Guard", "guard_behind"]

_LONGEST_TEST = 8  # nodes between the scores and the truth that a whole row of them is minus infinity


@dataclasses.dataclass(frozen=True, slots=True)
class Guard:
    """How the weights that a Softmax computes reach the product with the values.

    Attributes:
        weights: what the product reads.
        is_there: rows without any score that counts are replaced by 0.
        test: the node that compares the scores for it; None where the weights are asked, or nothing is.
    """

    weights: ir.Value
    is_there: bool = False
    test: ir.Node | None = None


def guard_behind(softmax: ir.Node) -> Guard | None:
    """Return what is behind a Softmax: `Where(test, 0, weights)`, or the weights; None if it is read otherwise.

    Two tests are known: `IsNaN(weights)`, and that no score of the row is more than minus infinity, which torch's
    exporter writes for a decomposed attention.
    """
    weights = behind_nothing(softmax.outputs[0])
    readers = [use.node for use in weights.uses()]
    choice = next((node for node in readers if is_standard_op(node, "Where")), None)
    if choice is None:
        return Guard(weights)
    if weights.is_graph_output() or choice.inputs[2] is not weights or not _is_zero(choice.inputs[1]):
        return None
    is_nan, test = made_by(choice.inputs[0], "IsNaN"), None
    if is_nan is not None:
        fits = is_nan.inputs[0] is weights and only_reader(is_nan.outputs[0]) is choice and len(readers) == 2
    else:
        test = _test_of_rows(choice.inputs[0], softmax.inputs[0])
        fits = test is not None and len(readers) == 1
    return Guard(behind_nothing(choice.outputs[0]), is_there=True, test=test) if fits else None


def _is_zero(value: ir.Value | None) -> bool:
    """Whether all elements of a value are 0."""
    array = constant_array(value)
    return repeated_number(value) == 0.0 if array is None else not array.any()


def _test_of_rows(truth: ir.Value | None, scores: ir.Value | None) -> ir.Node | None:
    """Return the node that compares scores with minus infinity, if `truth` is that they are in the whole row.

    Not(Any(Not(equal))) or All(equal): of truths as numbers, the largest is Any and the smallest is All.
    """
    negated = is_reduced = False
    for _ in range(_LONGEST_TEST):
        node = None if truth is None else truth.producer()
        if truth is None or node is None or only_reader(truth) is None:
            return None
        if is_standard_op(node, "Equal"):
            return node if is_reduced and not negated and _compares(node, scores) else None
        if is_standard_op(node, "Not"):
            negated = not negated
        elif not is_reduced and is_standard_op(node, "ReduceMax" if negated else "ReduceMin") and _is_along_rows(node):
            is_reduced = True
        elif not is_standard_op(node, "Cast"):
            return None
        truth = node.inputs[0]
    return None


def _compares(equal: ir.Node, scores: ir.Value | None) -> bool:
    """Whether a node compares the scores with minus infinity."""
    others = [value for value in equal.inputs if value is not scores]
    return len(others) == 1 and number_of(others[0]) == -math.inf


def _is_along_rows(node: ir.Node) -> bool:
    """Whether a reduction is along the last axis, and keeps it."""
    axes = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
    listed = node.attributes.get_ints("axes", ()) if axes is None else tuple(axes.reshape(-1).tolist())
    shape = node.outputs[0].shape
    last = {-1} if shape is None else {-1, len(shape) - 1}
    return len(listed) == 1 and listed[0] in last and node.attributes.get_int("keepdims", 1) == 1
