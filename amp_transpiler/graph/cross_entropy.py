"""The cross entropy of scores and labels by the label's margin: nothing as large as the scores is made in float32."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, rank_of

__all__ = ["label_margin", "narrow_scores"]

_LOWEST = -65504.0  # of float16, about: a score that takes no part in a sum of exponentials


def narrow_scores(scores: ir.Value) -> ir.Value | None:
    """Return float16 scores, or those that were cast to float32; None for others, which `label_margin` is not for.

    CUDA's ReduceMax takes no bfloat16. Of float32 scores nothing is gained, and where they become low later, so would
    the numbers of single samples.
    """
    node = scores.producer()
    if node is not None and node.op_type == "Cast" and not node.domain and scores.dtype == ir.DataType.FLOAT:
        scores = node.inputs[0] if node.inputs[0] is not None else scores
    classes = None if scores.shape is None or len(scores.shape) < 2 else scores.shape[1]
    return scores if scores.dtype == ir.DataType.FLOAT16 and isinstance(classes, int) and classes > 1 else None


def label_margin(
    builder: GraphBuilder, scores: ir.Value, labels: ir.Value, left_out: ir.Value | None
) -> tuple[ir.Value, ir.Value]:
    """Compare the label of each sample with all other classes together.

    With `s` the label's score and `m` the logarithm of the sum of the others' exponentials, the cross entropy is
    `softplus(m - s)`, and its gradient `sigmoid(m - s)` times the shares of the others, -1 at the label. Shares among
    the others are of order 1 however sure the label is. So they may be 16-bit, while the small factor is float32: no
    probability near 1 is rounded and then subtracted from 1.

    `m` is the largest of the other scores less the logarithm of its share: the largest share has the most digits.

    Args:
        builder: appends the nodes.
        scores: of `narrow_scores`; classes are axis 1.
        labels: the class of each sample, the axis of the classes of size 1.
        left_out: samples that do not count, in the same shape: their scores are taken as 0, whatever they are.

    Returns:
        The shares of the others with -1 at the label, in the type of the scores; and `m - s` in float32, in the shape
        of `labels`.
    """
    if left_out is not None:
        scores = builder.where(left_out, 0.0, scores)
    own = builder.op("GatherElements", [scores, labels], {"axis": 1})
    others = _write(builder, scores, labels, _LOWEST)
    surplus = builder.sub(_largest(builder, others), builder.high(own))  # at once: nothing reads `others` for long
    shares = _write(builder, builder.op("Softmax", [others], {"axis": 1}), labels, -1.0)
    return shares, builder.sub(surplus, builder.op("Log", [_largest(builder, shares)]))


def _largest(builder: GraphBuilder, values: ir.Value) -> ir.Value:
    return builder.high(builder.reduce("ReduceMax", values, [1], low=True))


def _write(builder: GraphBuilder, data: ir.Value, labels: ir.Value, number: float) -> ir.Value:
    """Write a number at the label of each sample."""
    one = builder.constant(np.full([1] * rank_of(labels), number), data.dtype)
    return builder.op("ScatterElements", [data, labels, builder.expand_like(one, labels)], {"axis": 1})
