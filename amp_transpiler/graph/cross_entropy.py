"""The cross entropy of scores and labels by the label's margin: nothing as large as the scores is made in float32."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, rank_of

__all__ = ["Margin", "label_margin", "narrow_scores"]

_LOWEST = -65504.0  # of float16, about: a score that takes no part in a sum of exponentials
_LEAST = 1e-38  # of bfloat16, about: the probability that stands for 0


@dataclasses.dataclass(frozen=True, slots=True)
class Margin:
    """How a label compares with all other classes together, for each sample.

    Attributes:
        value: float32, `m - s`: the logarithm of the sum of the others' exponentials, less the label's score. The cross
            entropy is `softplus` of it.
        slopes: the gradient of the cross entropy by the scores, in their type and shape, but for `factor`.
        factor: float32, what the slopes are to be multiplied with; None for nothing.
    """

    value: ir.Value
    slopes: ir.Value
    factor: ir.Value | None


def narrow_scores(scores: ir.Value) -> ir.Value | None:
    """Return 16-bit scores, or those that were cast to float32; None for others, which `label_margin` is not for.

    Of float32 scores nothing is gained; and where they become low later, so would the numbers of single samples.
    """
    node = scores.producer()
    if node is not None and node.op_type == "Cast" and not node.domain and scores.dtype == ir.DataType.FLOAT:
        scores = node.inputs[0] if node.inputs[0] is not None else scores
    rank = 0 if scores.shape is None else len(scores.shape)
    classes = scores.shape[1] if scores.shape is not None and rank > 1 else None
    if not isinstance(classes, int) or classes < 2:
        return None
    fits = scores.dtype == ir.DataType.FLOAT16 or (scores.dtype == ir.DataType.BFLOAT16 and rank == 2)
    return scores if fits else None


def label_margin(builder: GraphBuilder, scores: ir.Value, labels: ir.Value, left_out: ir.Value | None) -> Margin:
    """Compare the label of each sample with all other classes together.

    No probability near 1 is rounded to 16 bits and then subtracted from 1: what is left of a sure label's loss and
    gradient would be lost.

    Args:
        builder: appends the nodes.
        scores: of `narrow_scores`; classes are axis 1.
        labels: the class of each sample, the axis of the classes of size 1.
        left_out: samples that do not count, in the same shape: their scores are taken as 0, whatever they are.
    """
    if left_out is not None:
        scores = builder.where(left_out, 0.0, scores)
    compare = _by_shares if scores.dtype == ir.DataType.FLOAT16 else _by_probabilities
    return compare(builder, scores, labels)


def _by_shares(builder: GraphBuilder, scores: ir.Value, labels: ir.Value) -> Margin:
    """Compute the margin in float16, where small numbers are lost: shares among the others are always of order 1.

    Their sum's logarithm is the largest score less the logarithm of its share: the largest share has the most digits.
    """
    label_scores = builder.op("GatherElements", [scores, labels], {"axis": 1})
    others = _write(builder, scores, labels, _spread(builder, _LOWEST, scores, labels))
    # At once: nothing reads `others` for long.
    surplus = builder.sub(_largest(builder, others), builder.high(label_scores))
    shares = builder.op("Softmax", [others], {"axis": 1})
    slopes = _write(builder, shares, labels, _spread(builder, -1.0, scores, labels))
    margin = builder.sub(surplus, builder.op("Log", [_largest(builder, slopes)]))
    return Margin(margin, slopes, builder.op("Sigmoid", [margin]))


def _by_probabilities(builder: GraphBuilder, scores: ir.Value, labels: ir.Value) -> Margin:
    """Compute the margin in bfloat16: it has small numbers, but no maximum on CUDA, so a product sums the others."""
    probabilities = builder.op("Softmax", [scores], {"axis": 1})
    label_probabilities = builder.maximum(
        builder.high(builder.op("GatherElements", [probabilities, labels], {"axis": 1})), _LEAST
    )
    others = _write(builder, probabilities, labels, _spread(builder, 0.0, scores, labels))
    assert scores.shape is not None
    ones = builder.constant(np.ones((scores.shape[1], 1)), scores.dtype)
    rest = builder.matmul(others, ones)
    slopes = _write(builder, others, labels, builder.neg(rest))
    margin = builder.sub(builder.op("Log", [builder.high(rest)]), builder.op("Log", [label_probabilities]))
    return Margin(margin, slopes, None)


def _largest(builder: GraphBuilder, values: ir.Value) -> ir.Value:
    return builder.high(builder.reduce("ReduceMax", values, [1], low=True))


def _write(builder: GraphBuilder, data: ir.Value, labels: ir.Value, numbers: ir.Value) -> ir.Value:
    return builder.op("ScatterElements", [data, labels, numbers], {"axis": 1})


def _spread(builder: GraphBuilder, number: float, like: ir.Value, labels: ir.Value) -> ir.Value:
    """Return a number for each sample, in the type of `like`."""
    return builder.expand_like(builder.constant(np.full([1] * rank_of(labels), number), like.dtype), labels)
