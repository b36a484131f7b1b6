"""Computes losses for very many classes: in trees and clusters, with margins, over samples of them."""
# ruff: noqa: A002  # Paddle's names

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.graph.regions import disable_amp
from amp_transpiler.paddle.building import accept_name, builder_of, emit, size_at, wrap
from amp_transpiler.paddle.nn.functional.classification import softmax_with_cross_entropy
from amp_transpiler.paddle.nn.functional.common import linear
from amp_transpiler.paddle.nn.functional.loss import reduced
from amp_transpiler.paddle.tensor.logic import where
from amp_transpiler.paddle.tensor.random import rand
from amp_transpiler.paddle.tensor.reduction import sum as sum_of
from amp_transpiler.paddle.tensor.search import searchsorted, sort
from amp_transpiler.program.program import Variable

__all__ = [
    "adaptive_log_softmax_with_loss",
    "class_center_sample",
    "hsigmoid_loss",
    "margin_cross_entropy",
]


def hsigmoid_loss(
    input: Variable,
    label: Variable,
    num_classes: int,
    weight: Variable,
    bias: Variable | None = None,
    path_table: Variable | None = None,
    path_code: Variable | None = None,
    is_sparse: bool = False,
) -> Variable:
    """Return the loss of a tree of binary decisions whose leaves are the classes: hierarchical sigmoid.

    Args:
        input: features, [batch, size].
        label: classes, int64 or int32, [batch] or [batch, 1].
        num_classes: how many there are, at least 2.
        weight: one vector a decision, [num_classes - 1, size]; with a tree of the user's, as many as its tables name.
        bias: one number a decision, [num_classes - 1] or [num_classes - 1, 1].
        path_table: the decisions on the way to each sample's class, [batch, longest], negative behind the last; a
            complete binary tree unless given.
        path_code: the outcomes, 0 or 1, [batch, longest].
        is_sparse: no effect: gradients are dense.

    Returns:
        The loss of each sample, [batch, 1].

    Raises:
        OptionError: there are fewer than two classes, or only one of the tables is given.
    """
    del is_sparse
    if num_classes < 2:
        raise OptionError(f"hsigmoid_loss: expected 2 classes or more, got {num_classes}")
    if (path_table is None) != (path_code is None):
        raise OptionError("hsigmoid_loss: give both path_table and path_code, or neither")
    b = builder_of(input, label, weight, bias, path_table, path_code)
    if path_table is None or path_code is None:
        places, codes = _paths(b, label, num_classes)
    else:
        places, codes = (b.cast(part.value, ir.DataType.INT64) for part in (path_table, path_code))
    there = b.compare("GreaterOrEqual", places, 0)
    rows = b.maximum(places, 0)
    vectors = b.op("Gather", [weight.value, rows], {"axis": 0})  # [batch, longest, size]
    scores = b.squeeze(b.matmul(vectors, b.unsqueeze(input.value, [2])), [2])
    if bias is not None:
        scores = b.add(scores, b.op("Gather", [b.reshape(bias.value, [-1]), rows], {"axis": 0}))
    scores = b.minimum(b.maximum(scores, -40.0), 40.0)
    losses = b.sub(b.op("Softplus", [scores]), b.mul(scores, b.cast(codes, scores.dtype)))
    return sum_of(wrap(input, b.where(there, losses, 0.0)), 1, keepdim=True)


def _paths(b: GraphBuilder, label: Variable, classes: int) -> tuple[ir.Value, ir.Value]:
    """Return decisions and outcomes in a complete binary tree; class c is node `c + classes`, its parent half of it."""
    leaves = np.arange(classes) + classes
    longest = int(leaves[-1]).bit_length() - 1
    parents = leaves[:, None] >> np.arange(1, longest + 1)
    codes = (leaves[:, None] >> np.arange(longest)) & 1
    index = b.reshape(b.cast(label.value, ir.DataType.INT64), [-1])
    tables = (parents - 1, np.where(parents > 0, codes, 0))
    places, outcomes = (b.op("Gather", [b.constant(table), index], {"axis": 0}) for table in tables)
    return places, outcomes


def margin_cross_entropy(
    logits: Variable,
    label: Variable,
    margin1: float = 1.0,
    margin2: float = 0.5,
    margin3: float = 0.0,
    scale: float = 64.0,
    group: Any = None,
    return_softmax: bool = False,
    reduction: str | None = "mean",
) -> Any:
    """Return the cross entropy with a margin around the label's class, as ArcFace, CosFace and SphereFace have it.

    The cosine `c` of the label's class becomes `cos(margin1 * acos(c) + margin2) - margin3`; then all are multiplied by
    `scale`. In float32 throughout.

    Args:
        logits: cosines between features and classes, [batch, classes], from -1 to 1.
        label: classes, int64 or int32, [batch] or [batch, 1].
        margin1: factor on the angle.
        margin2: added to the angle.
        margin3: taken off the cosine.
        scale: factor on all.
        group: Paddle's; the classes are not spread over ranks here.
        return_softmax: whether to return (loss, probabilities).
        reduction: `mean`, `sum`, or None for the loss of each sample, [batch, 1].
    """
    del group
    b = builder_of(logits, label)
    classes = size_at(logits, 1, "margin_cross_entropy")
    with disable_amp():
        cosines = logits.astype("float32")
        index = b.reshape(b.cast(label.value, ir.DataType.INT64), [-1, 1])
        is_label = wrap(logits, b.compare("Equal", index, b.constant(np.arange(classes))))
        inner = 1 - 2.0**-20  # the angle has no derivative at -1 and 1
        safe = wrap(logits, b.minimum(b.maximum(cosines.value, -inner), inner))
        angle = emit("Acos", [safe]) * margin1 + margin2
        moved = where(is_label, emit("Cos", [angle]) - margin3, cosines) * scale
        loss, shares = softmax_with_cross_entropy(moved, wrap(label, index), return_softmax=True)
        reduced_loss = reduced(logits, loss.value, reduction or "none")
    return (reduced_loss, shares) if return_softmax else reduced_loss


def adaptive_log_softmax_with_loss(
    input: Variable,
    label: Variable,
    head_weight: Variable,
    tail_weights: Sequence[Sequence[Variable]],
    cutoffs: Sequence[int],
    head_bias: Variable | None = None,
) -> tuple[Variable, Variable]:
    """Return logarithms of the probabilities of labels; rare classes are in clusters with smaller vectors.

    Every cluster is computed for every sample, so that sizes do not depend on the data.

    Args:
        input: features, [batch, size].
        label: classes, int64 or int32, [batch].
        head_weight: [size, cutoffs[0] + clusters].
        tail_weights: two matrices a cluster: [size, inner size] and [inner size, classes of the cluster].
        cutoffs: the first class of each cluster, and at the end the number of classes.
        head_bias: [cutoffs[0] + clusters].

    Returns:
        The logarithm of the probability of each label, [batch], and minus its mean.

    Raises:
        InputError: there are not as many clusters as cutoffs say.
    """
    if len(tail_weights) != len(cutoffs) - 1:
        raise InputError(
            f"adaptive_log_softmax_with_loss: {len(cutoffs)} cutoffs say {len(cutoffs) - 1} clusters, got "
            f"{len(tail_weights)} pairs of tail_weights"
        )
    b = builder_of(input, label)
    index = b.reshape(b.cast(label.value, ir.DataType.INT64), [-1, 1])
    head = b.op("LogSoftmax", [linear(input, head_weight, head_bias).value], {"axis": 1})

    def taken(scores: ir.Value, places: ir.Value, last: int) -> ir.Value:
        inside = b.minimum(b.maximum(places, 0), last)
        return b.op("GatherElements", [scores, inside], {"axis": 1})

    chosen = taken(head, index, cutoffs[0] - 1)
    for number, (first, last) in enumerate(itertools.pairwise(cutoffs)):
        inner, outer = tail_weights[number]
        scores = b.op("LogSoftmax", [linear(linear(input, inner), outer).value], {"axis": 1})
        place = cutoffs[0] + number
        joined = b.add(b.slice(head, [place], [place + 1], [1]), taken(scores, b.sub(index, first), last - first - 1))
        chosen = b.where(b.compare("GreaterOrEqual", index, first), joined, chosen)
    output = b.squeeze(chosen, [1])
    return wrap(input, output), reduced(input, b.neg(output), "mean")


def class_center_sample(
    label: Variable, num_classes: int, num_samples: int, group: Any = None
) -> tuple[Variable, Variable]:
    """Fill the classes of the labels up with others drawn at random; return them, and the labels as places among them.

    Args:
        label: classes, int64 or int32, [batch].
        num_classes: how many there are.
        num_samples: how many classes to return, if the labels have no more.
        group: Paddle's; the classes are not spread over ranks here.

    Returns:
        The places of the labels, and the classes in ascending order.

    Raises:
        OptionError: more classes are asked for than there are.
    """
    del group
    if num_samples > num_classes:
        raise OptionError(f"class_center_sample: {num_samples} cannot be drawn of {num_classes} classes")
    b = builder_of(label)
    numbers = b.constant(np.arange(num_classes))
    index = b.cast(label.value, ir.DataType.INT64)
    same = b.cast(b.compare("Equal", b.unsqueeze(numbers, [1]), index), ir.DataType.INT64)
    there = b.reduce("ReduceMax", same, [1], keepdims=False)
    order = b.add(b.cast(there, ir.DataType.FLOAT), b.cast(rand([num_classes], "float32").value, ir.DataType.FLOAT))
    count = b.maximum(b.reduce("ReduceSum", there, [0]), num_samples)
    _, chosen = b.nodes("TopK", [order, count], {"axis": 0}, outputs=2)
    classes = sort(wrap(label, chosen))
    places = searchsorted(classes, wrap(label, index))
    return wrap(label, b.cast(places.value, label.value.dtype)), wrap(label, b.cast(classes.value, label.value.dtype))


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
