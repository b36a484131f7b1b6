"""Computes the loss of connectionist temporal classification: labels without places, along a sequence."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.scanning import scan
from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.graph.regions import disable_amp
from amp_transpiler.paddle.building import accept_name, builder_of, choice, wrap
from amp_transpiler.paddle.nn.functional.loss import REDUCTIONS, reduced
from amp_transpiler.program.program import Variable

__all__ = ["ctc_loss"]

_NEVER = -1e30  # stands for the logarithm of 0: differences of two of them are numbers


def ctc_loss(
    log_probs: Variable,
    labels: Variable,
    input_lengths: Variable,
    label_lengths: Variable,
    blank: int = 0,
    reduction: str = "mean",
    norm_by_times: bool = False,
    zero_infinity: bool = False,
) -> Variable:
    """Return the negative logarithm of the probability of the labels, over all ways to place them along the sequence.

    In float32 throughout, whatever level of mixed precision is asked for.

    Args:
        log_probs: scores of the classes, [steps, batch, classes]; softmax turns them into probabilities, so that
            logarithms of probabilities stay what they are. Where the number of steps is free, they run in a Scan.
        labels: classes without blanks, [batch, longest].
        input_lengths: how many steps of each sample count, [batch].
        label_lengths: how many labels of each sample count, [batch].
        blank: the class between labels.
        reduction: `mean`: of the losses over their label lengths; `sum`, or `none` for the loss of each sample.
        norm_by_times: whether gradients are divided by the number of steps.
        zero_infinity: whether samples that are too short for their labels have a loss of 0.

    Raises:
        InputError: there are no labels.
    """
    choice("ctc_loss: reduction", reduction, REDUCTIONS)
    b = builder_of(log_probs, labels, input_lengths, label_lengths)
    if labels.shape[1] == 0:
        raise InputError(f"ctc_loss: expected at least one label a sample, got {labels!r}")
    with disable_amp():
        wide = b.explicit_cast(log_probs.value, ir.DataType.FLOAT)
        if norm_by_times:
            wide = _with_gradient_over(log_probs, wide, input_lengths)
        states = _with_blanks(b, labels, blank)
        emitted = _emitted(b, b.op("LogSoftmax", [wide], {"axis": 2}), states)
        ends = [b.cast(lengths.value, ir.DataType.INT64) for lengths in (input_lengths, label_lengths)]
        alpha = _run(b, emitted, _may_skip(b, states, blank), b.unsqueeze(ends[0], [1]), log_probs.shape[0])
        last = b.mul(ends[1], 2)
        tails = b.concat([b.unsqueeze(last, [1]), b.unsqueeze(b.maximum(b.sub(last, 1), 0), [1])], 1)
        tail_scores = b.op("GatherElements", [alpha, tails], {"axis": 1})
        none = b.concat(
            [
                b.unsqueeze(b.op("Not", [b.compare("Less", last, 0)]), [1]),
                b.unsqueeze(b.compare("Greater", last, 0), [1]),
            ],
            1,
        )
        loss = b.neg(b.reduce("ReduceLogSumExp", b.where(none, tail_scores, _NEVER), [1], keepdims=False))
        if zero_infinity:
            loss = b.where(b.compare("Greater", loss, -_NEVER / 2), 0.0, loss)
        if reduction == "mean":
            loss = b.div(loss, b.cast(b.maximum(ends[1], 1), ir.DataType.FLOAT))
        return reduced(log_probs, loss, reduction)


def _with_gradient_over(like: Variable, scores: ir.Value, lengths: Variable) -> ir.Value:
    """Return the same scores; their gradients are divided by the lengths."""
    b = builder_of(like)
    share = b.div(1.0, b.reshape(b.cast(lengths.value, ir.DataType.FLOAT), [1, -1, 1]))
    part = b.mul(scores, share)
    rest = wrap(like, b.sub(scores, part))
    rest.stop_gradient = True
    return b.add(part, rest.value)


def _with_blanks(b: GraphBuilder, labels: Variable, blank: int) -> ir.Value:
    """Return blank, label, blank, label, ..., blank: [batch, 2 * longest + 1]."""
    numbers = b.unsqueeze(b.cast(labels.value, ir.DataType.INT64), [2])
    blanks = b.add(b.mul(numbers, 0), blank)
    pairs = b.reshape(b.concat([blanks, numbers], 2), [0, -1])
    return b.concat([pairs, b.slice(b.squeeze(blanks, [2]), [0], [1], [1])], 1)


def _emitted(b: GraphBuilder, scores: ir.Value, states: ir.Value) -> ir.Value:
    """Return the logarithm of the probability of each state at each step, [steps, batch, states]."""
    steps = b.concat([b.slice(b.shape(scores), [0], [1], [0]), b.constant(np.array([1, 1], np.int64))], 0)
    places = b.op("Expand", [b.unsqueeze(b.maximum(states, 0), [0]), steps])
    return b.op("GatherElements", [scores, places], {"axis": 2})


def _may_skip(b: GraphBuilder, states: ir.Value, blank: int) -> ir.Value:
    """Whether a state is reached from the one two before it: a label that is not the one before, too."""
    before = _moved(b, states, 2, -1)
    return b.op("Not", [b.op("Or", [b.compare("Equal", states, blank), b.compare("Equal", states, before)])])


def _run(b: GraphBuilder, emitted: ir.Value, skip: ir.Value, lengths: ir.Value, steps: int) -> ir.Value:
    """Return the logarithm of the probability of all ways to each state, after the last step that counts.

    Before the first step all ways are at the first blank, from which they stay or go on to the first label. A known
    number of steps is written out, a free one, -1, is a Scan.
    """

    def turn(alpha: ir.Value, now: ir.Value, step: ir.Value | int) -> ir.Value:
        jumped = b.where(skip, _moved(b, alpha, 2, _NEVER), _NEVER)
        ways = [b.unsqueeze(way, [2]) for way in (alpha, _moved(b, alpha, 1, _NEVER), jumped)]
        together = b.reduce("ReduceLogSumExp", b.concat(ways, 2), [2], keepdims=False)
        return b.where(b.compare("Greater", lengths, step), b.add(now, together), alpha)

    width = b.slice(b.shape(emitted), [2], [3], [0])
    places = b.op(
        "Range", [b.constant(np.array(0, np.int64)), b.squeeze(width, [0]), b.constant(np.array(1, np.int64))]
    )
    zeros = b.mul(b.cast(skip, ir.DataType.FLOAT), 0.0)
    alpha = b.where(b.compare("Greater", places, 0), _NEVER, zeros)
    if steps > 0:
        ones = b.constant(np.ones(steps, np.int64))
        for step, part in enumerate(b.nodes("Split", [emitted, ones], {"axis": 0}, outputs=steps)):
            alpha = turn(alpha, b.squeeze(part, [0]), step)
        return alpha
    count = b.squeeze(b.slice(b.shape(emitted), [0], [1], [0]), [0])
    numbers = b.op("Range", [b.constant(np.array(0, np.int64)), count, b.constant(np.array(1, np.int64))])
    (last,), _ = scan(
        lambda states, items: ([Expr(turn(states[0].value, items[0].value, items[1].value), b)], []),
        [Expr(alpha, b)],
        [Expr(emitted, b), Expr(numbers, b)],
    )
    return last.value


def _moved(b: GraphBuilder, x: ir.Value, places: int, fill: float) -> ir.Value:
    """Move `x` so many places to the right along axis 1."""
    ends = b.constant(np.array([0, places, 0, -places], np.int64))
    return b.op("Pad", [x, ends, b.constant(fill, x.dtype)])


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
