"""Gradients of the classification losses, in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient
from amp_transpiler.autodiff.rules.placing import counting

_NO_CLASS = -1  # a label that no class has


@dataclasses.dataclass(frozen=True, slots=True)
class _Samples:
    """The samples of a loss.

    Attributes:
        labels: the class of each sample, class 0 for ignored ones; the axis of the classes has size 1.
        counted: whether each sample counts, in the shape of `labels`; None if all do.
        weight: weight of each sample, 0 for ignored ones, in the shape of `labels`.
        factor: the gradient by a sample's unweighted loss is `weight * factor`; broadcasts to `weight`.
        mean: whether the loss is the weighted mean over the samples.
    """

    labels: Expr
    counted: Expr | None
    weight: Expr
    factor: Expr
    mean: bool

    def hit(self, scores: Expr) -> Expr:
        """Return whether a class is the label of a sample that counts: bool, in the shape of the scores."""
        by_class = [-1, *[1] * (scores.rank - 2)]
        # There are fewer labels than hits, by the number of classes: so ignored ones are replaced before comparing.
        known = self.labels if self.counted is None else self.counted.where(self.labels, _NO_CLASS)
        return known.equals(_class_numbers(scores).reshape(by_class).cast(known.dtype))


@gradient("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    gs: Sequence[Expr | None],
    scores: Expr,
    labels: Expr,
    weights: Expr | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> Gradients:
    """`factor weight (softmax - hit)`; for the second output, the log probabilities, `g - softmax sum(g)`."""
    g, of_log = gs[0], gs[1] if len(gs) > 1 else None
    scores = scores.wide()
    shares = scores.op("Softmax", axis=1)
    parts: list[Expr] = []
    samples = None
    if g is not None:
        samples = _samples(g, scores, labels, weights, reduction, ignore_index)
        scaled = _less_one_at(shares, samples.labels) * (samples.weight * samples.factor)
        if weights is None and ignore_index is None:
            parts.append(scaled)
        else:  # a Where, not a product with 0: an ignored sample may have scores that are not finite
            parts.append(samples.weight.equals(0).where(0, scaled))
    if of_log is not None:
        of_log = of_log.wide()
        parts.append(of_log - shares * of_log.sum([1]))
    total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    if samples is None:
        return total
    return total, None, lambda: _to_class_weights(samples, scores.op("LogSoftmax", axis=1))


def _less_one_at(shares: Expr, labels: Expr) -> Expr:
    """Return `shares` less 1 at the labels. Only there: a tensor of ones and zeros would be as large as the scores."""
    missed = shares.op("GatherElements", labels, axis=1) - 1
    return shares.op("ScatterElements", labels, missed, axis=1)


@gradient("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    g: Expr,
    log_prob: Expr,
    labels: Expr,
    weights: Expr | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> Gradients:
    """`-factor weight` at the labels, zero elsewhere."""
    samples = _samples(g, log_prob, labels, weights, reduction, ignore_index)
    slope = -(samples.weight * samples.factor)
    return (
        lambda: samples.hit(log_prob).where(slope, 0),
        None,
        lambda: _to_class_weights(samples, log_prob.wide()),
    )


def _samples(
    g: Expr, scores: Expr, labels: Expr, weights: Expr | None, reduction: str, ignore_index: int | None
) -> _Samples:
    """Find the labels among the classes, and the weight of each sample in the loss."""
    labels = labels.unsqueeze(1)
    counted = None if ignore_index is None else ~labels.equals(ignore_index)
    known = labels if counted is None else counted.where(labels, 0)
    dtype = scores.wide().dtype
    if weights is not None:
        weight = weights.cast(dtype).op("Gather", known)
        weight = weight if counted is None else counted.where(weight, 0)
    elif counted is not None:
        weight = counted.cast(dtype)
    else:
        weight = labels.equals(labels).cast(dtype)  # ones
    return _Samples(known, counted, weight, _factor(g.wide(), weight, reduction), reduction == "mean")


def _factor(g: Expr, weight: Expr, reduction: str) -> Expr:
    if reduction == "none":
        return g.unsqueeze(1)
    return g if reduction == "sum" else g / _total(weight)


def _total(weight: Expr) -> Expr:
    """The sum of the weights, or 1 if no sample counts: then every gradient is 0 and not 0 / 0."""
    total = weight.sum(keepdims=False)
    return total.equals(0).where(1, total)


def _to_class_weights(samples: _Samples, log_prob: Expr) -> Expr:
    """The gradient of the class weights: the sum of the losses of a class's samples, less their mean if any."""
    hit = samples.hit(log_prob)
    losses = -(hit.where(log_prob, 0).sum([1]))
    if samples.mean:
        losses -= (losses * samples.weight).sum(keepdims=False) / _total(samples.weight)
    slopes = hit.where(losses * samples.factor, 0)
    return slopes.sum([axis for axis in range(log_prob.rank) if axis != 1], keepdims=False)


def _class_numbers(scores: Expr) -> Expr:
    """0, 1, ... up to the number of classes."""
    size = scores.size(1)
    if size is not None:
        return scores.constant(np.arange(size))
    return counting(scores.shape_tensor().slice([1], [2], [0]).squeeze(0))
