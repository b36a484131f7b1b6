"""Gradients of the classification losses, in float32."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.graph.builder import rank_of

_NO_CLASS = -1  # a label that no class has


@dataclasses.dataclass(frozen=True)
class _Samples:
    """What both losses share.

    Attributes:
        hit: bool, shape of the scores: whether the class is the label of a sample that counts.
        weight: weight of each sample, 0 for those ignored; a size of 1 stands for the axis of the classes.
        factor: gradient of the target by a sample's unweighted loss is `weight * factor`; broadcasts to `weight`.
    """

    hit: ir.Value
    weight: ir.Value
    factor: ir.Value


@gradient("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(n: NodeGradient) -> list[ir.Value | None]:
    """`factor weight (softmax - hit)`; for the second output `g - softmax sum(g)`."""
    b, scores = n.b, n.b.high(n.x)
    shares = b.op("Softmax", [scores], {"axis": 1})
    parts: list[ir.Value] = []
    dweights = None
    if n.grads[0] is not None:
        samples = _samples(n)
        # A difference, and not a choice between two results: it can take the place of its input in memory.
        missed = b.sub(shares, b.cast(samples.hit, shares.dtype))
        # Where rather than a product with 0: an ignored sample may have scores that are not finite.
        scaled = b.mul(missed, b.mul(samples.weight, samples.factor))
        parts.append(b.where(b.compare("Equal", samples.weight, 0.0), 0.0, scaled))
        dweights = _weights(n, samples, b.op("LogSoftmax", [scores], {"axis": 1})) if n.wants(2) else None
    log_prob = n.grads[1] if len(n.grads) > 1 else None
    if log_prob is not None:
        g = b.high(log_prob)
        parts.append(b.sub(g, b.mul(shares, b.sum(g, [1]))))
    total = parts[0] if len(parts) == 1 else b.add(parts[0], parts[1])
    return [total, None, dweights]


@gradient("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(n: NodeGradient) -> list[ir.Value | None]:
    """`-factor weight` at the labels, zero elsewhere."""
    samples = _samples(n)
    slope = n.b.neg(n.b.mul(samples.weight, samples.factor))
    dx = n.b.where(samples.hit, slope, 0.0) if n.wants(0) else None
    return [dx, None, _weights(n, samples, n.b.high(n.x)) if n.wants(2) else None]


def _samples(n: NodeGradient) -> _Samples:
    """Find the labels among the classes, and how much each sample weighs in the loss."""
    b, labels = n.b, n.b.unsqueeze(n.input(1), [1])
    classes = b.reshape(_class_numbers(n), [-1, *[1] * (rank_of(n.x) - 2)])
    ignored = n.attribute("ignore_index")
    counted = None if ignored is None else b.op("Not", [b.compare("Equal", labels, ignored)])
    # Labels are as many as samples, hits as samples times classes: so what is ignored is sorted out before comparing.
    known = labels if counted is None else b.where(counted, labels, _NO_CLASS)
    hit = b.compare("Equal", known, b.cast(classes, labels.dtype))
    dtype = b.high(n.x).dtype
    if n.optional(2) is not None:
        by_class = b.reshape(b.cast(n.input(2), dtype), [-1, *[1] * (rank_of(n.x) - 2)])
        weight = b.sum(b.where(hit, by_class, 0.0), [1])
    elif counted is not None:
        weight = b.cast(counted, dtype)
    else:
        weight = b.cast(b.compare("Equal", labels, labels), dtype)  # ones
    return _Samples(hit, weight, _factor(n, weight))


def _factor(n: NodeGradient, weight: ir.Value) -> ir.Value:
    b, g = n.b, n.b.high(n.g)
    reduction = n.attribute("reduction", "mean")
    if reduction == "none":
        return b.unsqueeze(g, [1])
    if reduction == "sum":
        return g
    total = _total(n, weight)
    return b.div(g, total)


def _total(n: NodeGradient, weight: ir.Value) -> ir.Value:
    """The sum of the weights, or 1 if no sample counts: then every gradient is zero, not a quotient of zeros."""
    total = n.b.sum(weight, None, keepdims=False)
    return n.b.where(n.b.compare("Equal", total, 0.0), 1.0, total)


def _weights(n: NodeGradient, samples: _Samples, log_prob: ir.Value) -> ir.Value:
    """The gradient of the class weights: the sum of the losses of the samples of a class, less their mean if any."""
    b = n.b
    losses = b.neg(b.sum(b.where(samples.hit, log_prob, 0.0), [1]))
    if n.attribute("reduction", "mean") == "mean":
        mean = b.div(b.sum(b.mul(losses, samples.weight), None, keepdims=False), _total(n, samples.weight))
        losses = b.sub(losses, mean)
    slopes = b.where(samples.hit, b.mul(losses, samples.factor), 0.0)
    return b.sum(slopes, [axis for axis in range(rank_of(n.x)) if axis != 1], keepdims=False)


def _class_numbers(n: NodeGradient) -> ir.Value:
    """0, 1, ... up to the number of classes."""
    size = n.x.shape[1] if n.x.shape is not None else None
    if isinstance(size, int):
        return n.b.constant(np.arange(size))
    sizes = n.b.slice(n.b.shape(n.x), [1], [2], [0])
    return n.b.op("Range", [n.b.constant(0), n.b.squeeze(sizes, [0]), n.b.constant(1)])
