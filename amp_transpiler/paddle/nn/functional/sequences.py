"""Computes what runs along two sequences, the loss of transducers, or back along one, the beams of a search."""
# ruff: noqa: A002  # Paddle's names

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.graph.regions import disable_amp
from amp_transpiler.paddle.building import accept_name, builder_of, choice, size_at, wrap
from amp_transpiler.paddle.nn.functional.loss import REDUCTIONS, reduced
from amp_transpiler.program.program import Variable

__all__ = ["gather_tree", "rnnt_loss"]

_NEVER = -1e30  # stands for the logarithm of 0: differences of two of them are numbers


def rnnt_loss(
    input: Variable,
    label: Variable,
    input_lengths: Variable,
    label_lengths: Variable,
    blank: int = 0,
    fastemit_lambda: float = 0.001,
    reduction: str = "mean",
) -> Variable:
    """Return the loss of recurrent transducers: minus the log probability of the labels, over all alignments.

    In float32 throughout, whatever level of mixed precision is asked for.

    Args:
        input: scores of the classes, [batch, steps, longest + 1, classes]; softmax turns them into probabilities. The
            numbers of steps and labels must be known.
        label: classes without blanks, [batch, longest].
        input_lengths: how many steps of each sample count, [batch].
        label_lengths: how many labels of each sample count, [batch].
        blank: the class that goes to the next step.
        fastemit_lambda: the gradients of labels, not of blanks, are multiplied by 1 plus this (FastEmit). The loss
            stays the same.
        reduction: `mean` over the samples, `sum`, or `none` for the loss of each sample.

    Raises:
        InputError: the number of steps or labels is not known, or the two do not fit each other.
    """
    choice("rnnt_loss: reduction", reduction, REDUCTIONS)
    b = builder_of(input, label, input_lengths, label_lengths)
    steps, places = size_at(input, 1, "rnnt_loss"), size_at(input, 2, "rnnt_loss")
    if label.ndim != 2 or label.shape[1] not in (-1, places - 1):
        raise InputError(f"rnnt_loss: labels must be of shape [batch, {places - 1}] for {input!r}, got {label!r}")
    with disable_amp():
        scores = b.op("LogSoftmax", [b.explicit_cast(input.value, ir.DataType.FLOAT)], {"axis": 3})
        waited = b.squeeze(b.slice(scores, [blank], [blank + 1], [3]), [3])
        said = _of_labels(b, scores, label, steps, places)
        if fastemit_lambda:
            still = wrap(input, b.mul(said, float(fastemit_lambda)))
            still.stop_gradient = True
            said = b.sub(b.mul(said, 1 + float(fastemit_lambda)), still.value)
        ends = [b.cast(lengths.value, ir.DataType.INT64) for lengths in (input_lengths, label_lengths)]
        last = _by_diagonals(b, waited, said, steps, places, ends)
        return reduced(input, b.neg(last), reduction)


def _of_labels(b: GraphBuilder, scores: ir.Value, label: Variable, steps: int, places: int) -> ir.Value:
    """Return the scores of the next label at each step and place, [batch, steps, places]; the last place has none."""
    numbers = b.unsqueeze(b.cast(label.value, ir.DataType.INT64), [1, 3])
    index = b.add(numbers, b.constant(np.zeros([1, steps, 1, 1], np.int64)))
    taken = b.op("GatherElements", [b.slice(scores, [0], [places - 1], [2]), index], {"axis": 3})
    return b.op("Pad", [b.squeeze(taken, [3]), b.constant(np.array([0, 0, 0, 0, 0, 1])), b.constant(_NEVER)])


def _by_diagonals(
    b: GraphBuilder, waited: ir.Value, said: ir.Value, steps: int, places: int, ends: list[ir.Value]
) -> ir.Value:
    """Return the logarithm of the probability of all ways to each sample's end, [batch].

    All cells of one diagonal (step plus place) depend only on the diagonal before, so they are computed at once.
    """
    count = steps + places - 1
    step = np.arange(count)[:, None] - np.arange(places)
    inside = (step >= 0) & (step < steps)
    cells = b.constant((np.clip(step, 0, steps - 1) * places + np.arange(places)).ravel())

    def skewed(x: ir.Value) -> list[ir.Value]:
        taken = b.op("Gather", [b.reshape(x, [0, steps * places]), cells], {"axis": 1})
        taken = b.where(b.constant(inside), b.reshape(taken, [0, count, places]), _NEVER)
        parts = b.nodes("Split", [taken], {"axis": 1, "num_outputs": count}, outputs=count)
        return [b.squeeze(part, [1]) for part in parts]

    blanks, labels = skewed(waited), skewed(said)
    alpha = b.where(b.constant(np.arange(places) == 0), b.mul(blanks[0], 0.0), _NEVER)
    reached = []
    for diagonal in range(count):
        if diagonal:
            stayed = b.add(alpha, blanks[diagonal - 1])
            spoke = b.slice(b.add(alpha, labels[diagonal - 1]), [0], [places - 1], [1])
            spoke = b.op("Pad", [spoke, b.constant(np.array([0, 1, 0, 0])), b.constant(_NEVER)])
            both = b.concat([b.unsqueeze(stayed, [2]), b.unsqueeze(spoke, [2])], 2)
            alpha = b.reduce("ReduceLogSumExp", both, [2], keepdims=False)
            alpha = b.where(b.constant(inside[diagonal]), alpha, _NEVER)
        reached.append(b.unsqueeze(b.add(alpha, blanks[diagonal]), [1]))
    last_step, last_place = b.sub(ends[0], 1), ends[1]
    index = b.add(b.mul(b.add(last_step, last_place), places), last_place)
    flat = b.reshape(b.concat(reached, 1), [0, count * places])
    return b.squeeze(b.op("GatherElements", [flat, b.unsqueeze(index, [1])], {"axis": 1}), [1])


def gather_tree(ids: Variable, parents: Variable) -> Variable:
    """Return the sequences that a beam search ended in, from its choices and the beams that they came from.

    Args:
        ids: the chosen, [steps, batch, beams], integers; the number of steps must be known.
        parents: the beams that they go on from, likewise.

    Returns:
        The full sequences, in the shape of `ids`.
    """
    steps = size_at(ids, 0, "gather_tree")
    b = builder_of(ids, parents)
    chosen = b.nodes("Split", [ids.value], {"axis": 0, "num_outputs": steps}, outputs=steps)
    before = b.nodes("Split", [parents.value], {"axis": 0, "num_outputs": steps}, outputs=steps)
    sequences = [chosen[-1]]
    place = b.cast(before[-1], ir.DataType.INT64)
    for step in range(steps - 2, -1, -1):
        sequences.append(b.op("GatherElements", [chosen[step], place], {"axis": 2}))
        place = b.op("GatherElements", [b.cast(before[step], ir.DataType.INT64), place], {"axis": 2})
    return wrap(ids, b.concat(sequences[::-1], 0))


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
