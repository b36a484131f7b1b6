"""Gradients of the classification losses, in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient
from amp_transpiler.autodiff.rules.placing import counting
from amp_transpiler.graph.cross_entropy import narrow_scores, sample_losses

_NO_CLASS = -1  # a label that no class has


@dataclasses.dataclass(frozen=True, slots=True)
class _Samples:
    """The samples of a loss.

    Attributes:
        labels: the class of each sample, class 0 for ignored ones; the axis of the classes has size 1.
        ignored: whether each sample is ignored, in the shape of `labels`; None if none is.
        left_out: whether its weight is 0, in the same shape; None if none's is.
        weight: weight of each sample, 0 for ignored ones, in the shape of `labels`.
        factor: the gradient by a sample's unweighted loss is `weight * factor`; broadcasts to `weight`.
        mean: whether the loss is the weighted mean over the samples.
    """

    labels: Expr
    ignored: Expr | None
    left_out: Expr | None
    weight: Expr
    factor: Expr
    mean: bool

    def hit(self, scores: Expr) -> Expr:
        """Return whether a class is the label of a sample that counts: bool, in the shape of the scores."""
        by_class = [-1, *[1] * (scores.rank - 2)]
        # There are fewer labels than hits, by the number of classes: so ignored ones are replaced before comparing.
        known = self.labels if self.ignored is None else self.ignored.where(_NO_CLASS, self.labels)
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
    if g is not None and of_log is None and (narrow := narrow_scores(scores.value)) is not None:
        loss_samples = _samples(g, scores, labels, weights, reduction, ignore_index)
        to_scores = _of_narrow(Expr(narrow, scores.builder), loss_samples).cast(scores.dtype)
        return to_scores, None, lambda: _to_class_weights(loss_samples, scores.wide().op("LogSoftmax", axis=1))
    samples = None if g is None else _samples(g, scores, labels, weights, reduction, ignore_index)
    if samples is not None and samples.left_out is not None and of_log is None:
        scores = samples.left_out.where(0, scores)  # no product with 0 later: a score there may not be finite
        samples = dataclasses.replace(samples, left_out=None)
    likely = scores.wide().op("LogSoftmax", axis=1)  # the forward pass needs it too, and then it is computed once
    shares = likely.exp()
    parts: list[Expr] = []
    if samples is not None:
        dtype = scores.dtype if of_log is None else shares.dtype
        parts.append(_scaled_difference(shares, likely, samples, dtype))
    if of_log is not None:
        of_log = of_log.wide()
        parts.append(of_log - shares * of_log.sum([1]))
    total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    if samples is None:
        return total
    return total, None, lambda: _to_class_weights(samples, likely)


def _of_narrow(scores: Expr, samples: _Samples) -> Expr:
    """Return the gradient by 16-bit scores, rounded once more: see `sample_losses`."""
    left_out = None if samples.left_out is None else samples.left_out.value
    losses = sample_losses(scores.builder, scores.value, samples.labels.value, left_out)
    return Expr(losses.slopes, scores.builder).wide() * (samples.weight * samples.factor)


def _scaled_difference(shares: Expr, likely: Expr, samples: _Samples, dtype: ir.DataType | None) -> Expr:
    """Return `factor weight (softmax - hit)`, rounded once.

    The hits are written over the rest: a tensor of ones and zeros would be as large as the scores.
    """
    slope = samples.weight * samples.factor
    hits = likely.op("GatherElements", samples.labels, axis=1).exp() - 1
    if shares.dtype == dtype:  # a factor of whole rows behind all else can move to the products that read them
        scaled = shares.op("ScatterElements", samples.labels, hits, axis=1) * slope
    else:
        hits = (hits * slope).cast(dtype)
        scaled = (shares * slope).cast(dtype).op("ScatterElements", samples.labels, hits, axis=1)
    if samples.left_out is None:
        return scaled
    return samples.left_out.where(0, scaled)  # no product with 0: a score there may not be finite


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
    ignored = None if ignore_index is None else labels.equals(ignore_index)
    known = labels if ignored is None else ignored.where(0, labels)
    weight = _weight_of(known, ignored, weights, scores.wide().dtype)
    left_out = ignored if weights is None else weight.equals(0)
    factor = _factor(g.wide(), weight, reduction, counts=weights is None)
    return _Samples(known, ignored, left_out, weight, factor, reduction == "mean")


def _weight_of(known: Expr, ignored: Expr | None, weights: Expr | None, dtype: ir.DataType | None) -> Expr:
    """Return the weight of each sample, 0 for ignored ones."""
    if weights is not None:
        weight = weights.cast(dtype).op("Gather", known)
        return weight if ignored is None else ignored.where(0, weight)
    if ignored is None:
        return known.equals(known).cast(dtype)  # ones
    return ignored.where(known.constant(0.0, dtype), known.constant(1.0, dtype))


def _factor(g: Expr, weight: Expr, reduction: str, *, counts: bool) -> Expr:
    if reduction == "none":
        return g.unsqueeze(1)
    return g if reduction == "sum" else g / _total(weight, counts=counts)


def _total(weight: Expr, *, counts: bool) -> Expr:
    """The sum of the weights, or 1 if no sample counts: then every gradient is 0 and not 0 / 0.

    With `counts` every weight is 0 or 1.
    """
    total = weight.sum(keepdims=False)
    return total.maximum(1) if counts else total.equals(0).where(1, total)


def _to_class_weights(samples: _Samples, log_prob: Expr) -> Expr:
    """The gradient of the class weights: the sum of the losses of a class's samples, less their mean if any."""
    hit = samples.hit(log_prob)
    losses = -(hit.where(log_prob, 0).sum([1]))
    if samples.mean:
        losses -= (losses * samples.weight).sum(keepdims=False) / _total(samples.weight, counts=False)
    slopes = hit.where(losses * samples.factor, 0)
    return slopes.sum([axis for axis in range(log_prob.rank) if axis != 1], keepdims=False)


def _class_numbers(scores: Expr) -> Expr:
    """0, 1, ... up to the number of classes."""
    size = scores.size(1)
    if size is not None:
        return scores.constant(np.arange(size))
    return counting(scores.shape_tensor().slice([1], [2], [0]).squeeze(0))
