"""Computes losses of distances, of margins and of distributions."""
# ruff: noqa: A002  # Paddle's argument names

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.paddle.building import accept_name, axis_of, builder_of, in_one_type, wrap
from amp_transpiler.paddle.nn.functional.loss import binary_cross_entropy_with_logits, reduced
from amp_transpiler.paddle.tensor.elementwise import minimum
from amp_transpiler.paddle.tensor.linalg import matmul
from amp_transpiler.paddle.tensor.reduction import norm
from amp_transpiler.program.program import Variable

__all__ = [
    "cosine_embedding_loss",
    "cosine_similarity",
    "dice_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "log_loss",
    "margin_ranking_loss",
    "multi_label_margin_loss",
    "multi_label_soft_margin_loss",
    "multi_margin_loss",
    "npair_loss",
    "pairwise_distance",
    "poisson_nll_loss",
    "sigmoid_focal_loss",
    "soft_margin_loss",
    "square_error_cost",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]

# ---- distances ----


def cosine_similarity(x1: Variable, x2: Variable, axis: int = 1, eps: float = 1e-8) -> Variable:
    """Return the cosine of the angle between vectors along `axis`; lengths of less than `eps` count as `eps`."""
    b = builder_of(x1, x2)
    first, second = in_one_type(x1, x2)
    wide, wider = b.high(first), b.high(second)
    axes = [axis_of(x1 if x1.ndim >= x2.ndim else x2, axis)]
    product = b.sum(b.mul(wide, wider), axes, keepdims=False)
    squares = b.mul(*(b.sum(b.mul(v, v), axes, keepdims=False) for v in (wide, wider)))
    return wrap(x1, b.cast(b.div(product, b.op("Sqrt", [b.maximum(squares, eps * eps)])), first.dtype))


def pairwise_distance(
    x: Variable, y: Variable, p: float = 2.0, epsilon: float = 1e-6, keepdim: bool = False
) -> Variable:
    """Return the `p`-norm of `x - y + epsilon` along the last axis."""
    b = builder_of(x, y)
    first, second = in_one_type(x, y)
    return norm(wrap(x, b.add(b.sub(first, second), epsilon)), float(p), -1, keepdim)


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """Return the squared difference of each element."""
    b = builder_of(input, label)
    difference = b.sub(*in_one_type(input, label))
    return wrap(input, b.mul(difference, difference))


# ---- margins ----


def margin_ranking_loss(
    input: Variable, other: Variable, label: Variable, margin: float = 0.0, reduction: str = "mean"
) -> Variable:
    """Return `max(0, margin - label * (input - other))`; label 1 wants a larger `input`, -1 a larger `other`."""
    b = builder_of(input, other, label)
    first, second, sign = in_one_type(input, other, label)
    return reduced(input, b.op("Relu", [b.add(b.mul(sign, b.sub(second, first)), float(margin))]), reduction)


def hinge_embedding_loss(input: Variable, label: Variable, margin: float = 1.0, reduction: str = "mean") -> Variable:
    """Return `input` where the label is 1, `max(0, margin - input)` where it is -1."""
    b = builder_of(input, label)
    far = b.op("Relu", [b.sub(float(margin), input.value)])
    return reduced(input, b.where(b.compare("Equal", label.value, 1), input.value, far), reduction)


def cosine_embedding_loss(
    input1: Variable, input2: Variable, label: Variable, margin: float = 0, reduction: str = "mean"
) -> Variable:
    """Return `1 - cosine` where the label is 1, `max(0, cosine - margin)` where it is -1.

    Args:
        input1: [batch, size] or [size].
        input2: in the shape of `input1`.
        label: [batch] or [], 1 for pairs that belong together and -1 for others.
        margin: from -1 to 1.
        reduction: `mean`, `sum` or `none`.
    """
    b = builder_of(input1, input2, label)
    cosine = cosine_similarity(input1, input2, -1).value
    apart = b.op("Relu", [b.sub(cosine, float(margin))])
    return reduced(input1, b.where(b.compare("Equal", label.value, 1), b.sub(1.0, cosine), apart), reduction)


def triplet_margin_with_distance_loss(
    input: Variable,
    positive: Variable,
    negative: Variable,
    distance_function: Callable[[Variable, Variable], Variable] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Variable:
    """Return `max(0, distance to positive - distance to negative + margin)`.

    Args:
        input: [batch, size].
        positive: what `input` should be near to.
        negative: what it should be far from.
        distance_function: of two variables; `pairwise_distance` unless given.
        margin: how much nearer, more than 0.
        swap: whether the distance of `positive` to `negative` counts, if it is the smaller.
        reduction: `mean`, `sum` or `none`.

    Raises:
        OptionError: the margin is not positive.
    """
    if margin <= 0:
        raise OptionError(f"triplet_margin_loss: margin must be positive, got {margin}")
    distance = distance_function or pairwise_distance
    near, far = distance(input, positive), distance(input, negative)
    if swap:
        far = minimum(far, distance(positive, negative))
    b = builder_of(near, far)
    return reduced(near, b.op("Relu", [b.add(b.sub(near.value, far.value), float(margin))]), reduction)


def triplet_margin_loss(
    input: Variable,
    positive: Variable,
    negative: Variable,
    margin: float = 1.0,
    p: float = 2,
    epsilon: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Variable:
    """Return `triplet_margin_with_distance_loss` by `pairwise_distance` with `p` and `epsilon`."""

    def distance(x: Variable, y: Variable) -> Variable:
        return pairwise_distance(x, y, p, epsilon)

    return triplet_margin_with_distance_loss(input, positive, negative, distance, margin, swap, reduction)


def multi_margin_loss(
    input: Variable,
    label: Variable,
    p: int = 1,
    margin: float = 1.0,
    weight: Variable | None = None,
    reduction: str = "mean",
) -> Variable:
    """Return the mean over other classes of `max(0, margin - score of the label + score of the class) ** p`.

    Args:
        input: scores, [batch, classes].
        label: each sample's class, [batch].
        p: 1 or 2.
        margin: by how much the label's score should be the largest.
        weight: [classes], factor on the samples of a class.
        reduction: `mean`, `sum` or `none`.
    """
    b = builder_of(input, label, weight)
    column = b.unsqueeze(b.cast(label.value, ir.DataType.INT64), [1])
    label_scores = b.op("GatherElements", [input.value, column], {"axis": 1})
    loss = b.op("Relu", [b.add(b.sub(input.value, label_scores), float(margin))])
    loss = loss if p == 1 else b.pow(loss, float(p))
    if weight is not None:
        loss = b.mul(loss, b.unsqueeze(b.op("Gather", [weight.value, label.value], {"axis": 0}), [1]))
    classes = b.op("Range", [b.constant(0), _size(input, 1), b.constant(1)])
    others = b.op("Not", [b.compare("Equal", b.unsqueeze(classes, [0]), column)])
    return reduced(input, b.cast(b.mean(b.where(others, loss, 0.0), [1], keepdims=False), input.value.dtype), reduction)


def _size(x: Variable, axis: int) -> ir.Value:
    b = builder_of(x)
    return b.squeeze(b.slice(b.shape(x.value), [axis], [axis + 1], [0]), [0])


def multi_label_margin_loss(input: Variable, label: Variable, reduction: str = "mean") -> Variable:
    """Sum `max(0, 1 - score of a label + score of a class that is none)` over pairs, over the classes.

    Args:
        input: scores, [batch, classes].
        label: classes of each sample, in the shape of `input`; those after the first -1 do not count.
        reduction: `mean`, `sum` or `none`.
    """
    b = builder_of(input, label)
    numbers = b.cast(label.value, ir.DataType.INT64)
    axis = b.constant(np.array(1, np.int64))
    ended = b.op("CumSum", [b.cast(b.compare("Less", numbers, 0), ir.DataType.INT32), axis])
    counts = b.compare("Equal", ended, 0)
    places = b.maximum(numbers, 0)
    label_scores = b.op("GatherElements", [input.value, places], {"axis": 1})
    marks = b.op(
        "ScatterElements",
        [b.zeros_like(input.value, ir.DataType.INT32), places, b.cast(counts, ir.DataType.INT32)],
        {"axis": 1, "reduction": "add"},
    )
    other = b.compare("Equal", marks, 0)
    gap = b.op("Relu", [b.add(b.sub(b.unsqueeze(input.value, [1]), b.unsqueeze(label_scores, [2])), 1.0)])
    pairs = b.op("And", [b.unsqueeze(counts, [2]), b.unsqueeze(other, [1])])
    total = b.sum(b.where(pairs, gap, 0.0), [1, 2], keepdims=False)
    loss = b.div(total, b.cast(_size(input, 1), total.dtype))
    return reduced(input, b.cast(loss, input.value.dtype), reduction)


def multi_label_soft_margin_loss(
    input: Variable, label: Variable, weight: Variable | None = None, reduction: str = "mean"
) -> Variable:
    """Return the mean over classes of the binary cross entropy of `sigmoid(input)`; `weight` is a factor a class."""
    loss = binary_cross_entropy_with_logits(input, label, weight, "none")
    b = builder_of(loss)
    return reduced(input, b.cast(b.mean(loss.value, [input.ndim - 1], keepdims=False), input.value.dtype), reduction)


def soft_margin_loss(input: Variable, label: Variable, reduction: str = "mean") -> Variable:
    """Return `log(1 + exp(-label * input))`, for labels of 1 and -1."""
    b = builder_of(input, label)
    sign = b.cast(label.value, input.value.dtype)
    return reduced(input, b.op("Softplus", [b.neg(b.mul(sign, input.value))]), reduction)


def npair_loss(anchor: Variable, positive: Variable, labels: Variable, l2_reg: float = 0.002) -> Variable:
    """Return the cross entropy of which positive belongs to an anchor, by products, and a quarter of the squares.

    Args:
        anchor: [batch, size].
        positive: [batch, size].
        labels: [batch]; samples of one label belong together.
        l2_reg: factor on the mean squared length of anchors and positives.
    """
    b = builder_of(anchor, positive, labels)
    column = b.reshape(labels.value, [-1, 1])
    same = b.cast(b.compare("Equal", column, b.reshape(labels.value, [1, -1])), ir.DataType.FLOAT)
    share = b.div(same, b.sum(same, [1]))
    scores = b.high(matmul(anchor, positive, transpose_y=True).value)
    loss = b.neg(b.mean(b.sum(b.mul(share, b.op("LogSoftmax", [scores], {"axis": 1})), [1])))
    squares = [b.mul(b.high(x.value), b.high(x.value)) for x in (anchor, positive)]
    lengths = b.add(*(b.mean(b.sum(square, [1])) for square in squares))
    total = b.add(b.reshape(loss, []), b.reshape(b.mul(lengths, 0.25 * l2_reg), []))
    return wrap(anchor, b.cast(total, anchor.value.dtype))


# ---- probabilities ----


def dice_loss(input: Variable, label: Variable, epsilon: float = 1e-5) -> Variable:
    """Return 1 less twice what prediction and label share, over their sum, as its mean over the batch.

    Args:
        input: probabilities, [batch, ..., classes].
        label: classes, [batch, ..., 1].
        epsilon: added to the sum.
    """
    b = builder_of(input, label)
    classes = _size(input, input.ndim - 1)
    ends = b.constant(np.array([0, 1]), input.value.dtype)
    hot = b.op("OneHot", [b.squeeze(label.value, [label.ndim - 1]), classes, ends], {"axis": -1})
    axes = list(range(1, input.ndim))
    shared = b.sum(b.mul(input.value, hot), axes)
    both = b.add(b.sum(input.value, axes), b.sum(hot, axes))
    score = b.sub(1.0, b.div(b.mul(shared, 2.0), b.add(both, epsilon)))
    return wrap(input, b.cast(b.mean(score, keepdims=False), input.value.dtype))


def log_loss(input: Variable, label: Variable, epsilon: float = 1e-4) -> Variable:
    """Return `-label * log(input + epsilon) - (1 - label) * log(1 - input + epsilon)` of each element."""
    b = builder_of(input, label)
    p, y = in_one_type(input, label)
    yes = b.mul(y, b.op("Log", [b.add(p, epsilon)]))
    no = b.mul(b.sub(1.0, y), b.op("Log", [b.add(b.sub(1.0, p), epsilon)]))
    return wrap(input, b.neg(b.add(yes, no)))


def sigmoid_focal_loss(
    logit: Variable,
    label: Variable,
    normalizer: Variable | None = None,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: str = "sum",
) -> Variable:
    """Return the binary cross entropy with less weight on what is predicted well.

    Args:
        logit: any numbers.
        label: 0 or 1, of the same shape.
        normalizer: divides the loss; one element.
        alpha: weight of positive labels; negative ones have `1 - alpha`. Nothing is weighted if it is negative.
        gamma: the power of `1 - probability of the label`, 0 or more.
        reduction: `mean`, `sum` or `none`.
    """
    b = builder_of(logit, label, normalizer)
    y = b.cast(label.value, logit.value.dtype)
    loss = binary_cross_entropy_with_logits(logit, wrap(label, y), reduction="none").value
    p = b.op("Sigmoid", [logit.value])
    missed = b.add(b.mul(p, b.sub(1.0, y)), b.mul(b.sub(1.0, p), y))
    loss = b.mul(loss, missed if gamma == 1 else b.pow(missed, float(gamma)))
    if alpha >= 0:
        loss = b.mul(loss, b.add(b.mul(y, 2 * alpha - 1), 1 - alpha))
    if normalizer is not None:
        loss = b.div(loss, b.cast(normalizer.value, loss.dtype))
    return reduced(logit, loss, reduction)


def poisson_nll_loss(
    input: Variable,
    label: Variable,
    log_input: bool = True,
    full: bool = False,
    epsilon: float = 1e-8,
    reduction: str = "mean",
) -> Variable:
    """Return the negative log likelihood of counts by Poisson's distribution.

    Args:
        input: the logarithm of the rate; the rate itself with `log_input=False`.
        label: counts.
        log_input: whether `input` is a logarithm.
        full: whether Stirling's approximation of the label's factorial is added, for labels above 1.
        epsilon: added to the rate before its logarithm is taken.
        reduction: `mean`, `sum` or `none`.
    """
    b = builder_of(input, label)
    x, y = in_one_type(input, label)
    rate, log = (b.op("Exp", [x]), x) if log_input else (x, b.op("Log", [b.add(x, epsilon)]))
    loss = b.sub(rate, b.mul(y, log))
    if full:
        safe = b.maximum(y, 1.0)
        extra = b.add(
            b.sub(b.mul(safe, b.op("Log", [safe])), safe), b.mul(b.op("Log", [b.mul(safe, 2 * math.pi)]), 0.5)
        )
        loss = b.add(loss, b.where(b.compare("Greater", y, 1.0), extra, 0.0))
    return reduced(input, loss, reduction)


def gaussian_nll_loss(
    input: Variable,
    label: Variable,
    variance: Variable,
    full: bool = False,
    epsilon: float = 1e-6,
    reduction: str = "mean",
) -> Variable:
    """Return the negative log likelihood by normal distributions of means `input`; `variance` is at least `epsilon`.

    `full` adds the constant of the distribution.
    """
    b = builder_of(input, label, variance)
    x, y, spread = in_one_type(input, label, variance)
    if variance.ndim == input.ndim - 1:
        spread = b.unsqueeze(spread, [variance.ndim])
    above = b.compare("GreaterOrEqual", spread, epsilon)
    spread = b.where(above, spread, epsilon)  # no gradient below the bound
    difference = b.sub(x, y)
    loss = b.mul(b.add(b.op("Log", [spread]), b.div(b.mul(difference, difference), spread)), 0.5)
    return reduced(input, b.add(loss, 0.5 * math.log(2 * math.pi)) if full else loss, reduction)


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
