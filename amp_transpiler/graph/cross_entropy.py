"""The cross entropy of 16-bit scores and labels: nothing as large as the scores is made in float32."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, rank_of

__all__ = ["SampleLosses", "label_logarithms", "narrow_scores", "sample_losses"]

_LEAST = 1e-38  # of bfloat16, about: the probability that stands for 0
_PLAIN = (2.0**-17, 0.5)  # float16 probabilities whose logarithm is less off than a rounded logarithm


@dataclasses.dataclass(frozen=True, slots=True)
class SampleLosses:
    """The cross entropy of each sample, and its gradient.

    Attributes:
        value: float32, the axis of the classes of size 1.
        slopes: the gradient of `value` by the scores, in their type and shape.
    """

    value: ir.Value
    slopes: ir.Value


def narrow_scores(scores: ir.Value) -> ir.Value | None:
    """Return 16-bit scores, or those that were cast to float32; None for others, which `sample_losses` is not for.

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


def sample_losses(builder: GraphBuilder, scores: ir.Value, labels: ir.Value, left_out: ir.Value | None) -> SampleLosses:
    """Compute the cross entropy of each sample, with kernels that are fast on CUDA for many classes.

    Args:
        builder: appends the nodes.
        scores: of `narrow_scores`; classes are axis 1.
        labels: the class of each sample, the axis of the classes of size 1.
        left_out: samples that do not count, in the same shape: their scores are taken as 0, whatever they are.
    """
    if left_out is not None:
        scores = builder.where(left_out, 0.0, scores)
    compute = _by_logarithms if scores.dtype == ir.DataType.FLOAT16 else _by_probabilities
    return compute(builder, scores, labels)


def _by_logarithms(builder: GraphBuilder, scores: ir.Value, labels: ir.Value) -> SampleLosses:
    """Compute the losses in float16 from the label's log probability, which has digits where its probability is near 1.

    A loss is rounded to float16, so it is off by 2^-11 of itself, and is 0 below 3e-8. The gradient at the label,
    `exp(-loss) - 1`, is computed in float32 from it. No maximum is asked for: ONNX Runtime's is serial in a row on CUDA
    and makes a float32 copy of the scores.
    """
    likely = builder.op("LogSoftmax", [scores], {"axis": 1})
    label_likely = builder.high(builder.op("GatherElements", [likely, labels], {"axis": 1}))
    slopes = builder.sub(builder.op("Exp", [label_likely]), 1.0)
    probabilities = builder.op("Softmax", [scores], {"axis": 1})
    return SampleLosses(
        builder.neg(label_likely), _write(builder, probabilities, labels, builder.cast(slopes, scores.dtype))
    )


def label_logarithms(builder: GraphBuilder, scores: ir.Value, probabilities: ir.Value, labels: ir.Value) -> ir.Value:
    """Return the log probability of each sample's label as float32, from 16-bit tensors of the size of the scores.

    It is the logarithm of a float16 probability where that has more digits than a float16 logarithm: off by 2^-11 for
    losses from 0.7 to 9.7, and by at most 2^-8 up to 11.8. Other losses are off by 2^-11 of themselves. Which way they
    are off is chance: the mean loss of 1024 samples is off by 1e-5 of itself above 0.5, by 3e-5 above 0.03. Only where
    all samples are alike, as with scores that are all 0, it is off by as much as one of them: 6e-5 for 30,522 classes.

    Args:
        builder: appends the nodes.
        scores: float16; classes are axis 1.
        probabilities: the Softmax of the scores.
        labels: the class of each sample, the axis of the classes of size 1.
    """
    likely = builder.op("LogSoftmax", [scores], {"axis": 1})
    logarithm, chance = (
        builder.high(builder.op("GatherElements", [each, labels], {"axis": 1})) for each in (likely, probabilities)
    )
    is_plain = builder.compare("Equal", chance, builder.op("Clip", [chance, *map(builder.constant, _PLAIN)]))
    return builder.where(is_plain, builder.op("Log", [chance]), logarithm)


def _by_probabilities(builder: GraphBuilder, scores: ir.Value, labels: ir.Value) -> SampleLosses:
    """Compute the losses in bfloat16: it has too few digits for logarithms, and small numbers for all other classes.

    No probability near 1 is subtracted from 1: a product sums those of all other classes.
    """
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
    return SampleLosses(builder.op("Softplus", [margin]), slopes)


def _write(builder: GraphBuilder, data: ir.Value, labels: ir.Value, numbers: ir.Value) -> ir.Value:
    return builder.op("ScatterElements", [data, labels, numbers], {"axis": 1})


def _spread(builder: GraphBuilder, number: float, like: ir.Value, labels: ir.Value) -> ir.Value:
    """Return a number for each sample, in the type of `like`."""
    return builder.expand_like(builder.constant(np.full([1] * rank_of(labels), number), like.dtype), labels)
