"""`accuracy` and `auc` are computed inside the program."""
# ruff: noqa: A002  # Paddle's argument names

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.regions import disable_amp
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import builder_of, size_at, wrap
from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Persistable, Program, Variable

__all__ = ["accuracy", "auc", "ctr_metric_bundle"]


def accuracy(
    input: Variable,
    label: Variable,
    k: int = 1,
    correct: Variable | None = None,
    total: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Return the part of the samples whose label is among the `k` highest scores: a float32 scalar.

    Args:
        input: scores, [samples, classes].
        label: classes, int64 or int32, [samples, 1] or [samples].
        k: how many of the highest scores count.
        correct: Paddle's, must be None.
        total: Paddle's, must be None.
        name: Paddle's, no effect.

    Raises:
        InputError: `input` is no matrix, or has fewer than `k` classes.
        OptionError: `correct` or `total` is given.
    """
    del name
    if correct is not None or total is not None:
        raise OptionError("accuracy: correct and total are not available: count in Python, with metric.Accuracy")
    if input.ndim != 2 or k < 1 or k > size_at(input, 1, "accuracy"):
        raise InputError(f"accuracy: input must be [samples, classes] with {k} classes or more, got {input!r}")
    b = builder_of(input, label)
    with disable_amp():
        predicted = b.nodes("TopK", [b.high(input.value), b.constant([k])], {"axis": 1}, outputs=2)[1]
        labels = b.reshape(b.cast(label.value, ir.DataType.INT64), [-1, 1])
        hits = b.cast(b.compare("Equal", predicted, labels), ir.DataType.FLOAT)
        return _without_gradient(wrap(input, b.mean(b.sum(hits, [1], keepdims=False), keepdims=False)))


def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 2**12 - 1,
    topk: int = 1,
    slide_steps: int = 1,
    ins_tag_weight: Variable | None = None,
) -> tuple[Variable, Variable, list[Variable]]:
    """Return the area under the curve of all batches so far, and of the last ones.

    Scores are counted in `num_thresholds + 1` bins; the counts persist in the scope.

    Args:
        input: probabilities; of [samples, 2] the second column counts.
        label: 0 or 1, [samples, 1] or [samples].
        curve: `ROC`.
        num_thresholds: one less than the number of bins.
        topk: Paddle's, no effect.
        slide_steps: how many of the last batches the second area is of; 0 for all.
        ins_tag_weight: must be None.

    Returns:
        The two areas, and the counts of the last `slide_steps` batches (positive, negative) and of all batches
        (positive, negative).

    Raises:
        OptionError: another curve or weights are asked for, or `slide_steps` is negative.
    """
    del topk
    if curve != "ROC" or slide_steps < 0 or ins_tag_weight is not None:
        raise OptionError(
            "auc: curve must be 'ROC', slide_steps 0 or more and ins_tag_weight None; metric.Auc counts in Python"
        )
    with disable_amp():  # counts beyond 2048 are no float16 numbers
        return _areas(input, label, num_thresholds, slide_steps)


def _areas(
    input: Variable, label: Variable, num_thresholds: int, slide_steps: int
) -> tuple[Variable, Variable, list[Variable]]:
    program, b, bins = input.program, builder_of(input, label), num_thresholds + 1
    scores = b.high(input.value)
    if input.ndim == 2 and input.shape[1] == 2:
        scores = b.slice(scores, [1], [2], [1])
    places = b.cast(b.mul(b.reshape(scores, [-1, 1]), float(num_thresholds)), ir.DataType.INT64)
    inside = b.compare("Equal", places, b.constant(np.arange(bins, dtype=np.int64)[None]))
    truth = b.cast(b.reshape(label.value, [-1, 1]), ir.DataType.FLOAT)
    rows = b.cast(inside, ir.DataType.FLOAT)
    batch = [b.sum(b.mul(rows, kind), [0], keepdims=False) for kind in (truth, b.sub(1.0, truth))]
    so_far, latest = [], []
    for counts, kind in zip(batch, ("pos", "neg"), strict=True):
        held = _held(program, f"auc_stat_{kind}", [bins])
        total = b.add(held.value, counts)
        program.updates[held.name] = str(total.name)
        so_far.append(total)
        latest.append(_of_the_last(program, counts, kind, slide_steps) if slide_steps else total)
    areas = [_without_gradient(wrap(input, _area(program, *pair))) for pair in (so_far, latest)]
    return areas[0], areas[1], [wrap(input, value) for value in (*latest, *so_far)]


def ctr_metric_bundle(input: Variable, label: Variable, ins_tag_weight: Variable | None = None) -> tuple[Variable, ...]:
    """Return sums over all batches so far, which persist in the scope, as float32 vectors of one element.

    Args:
        input: probabilities of a click, [samples, 1].
        label: 0 or 1, [samples, 1].
        ins_tag_weight: weights of the samples, [samples, 1]; 1 unless given.

    Returns:
        The sums of squared errors, of absolute errors, of probabilities, of their sigmoids, of labels and of samples.
    """
    with disable_amp():
        return _click_sums(input, label, ins_tag_weight)


def _click_sums(input: Variable, label: Variable, ins_tag_weight: Variable | None) -> tuple[Variable, ...]:
    program, b = input.program, builder_of(input, label, ins_tag_weight)
    scores, truth = b.reshape(b.high(input.value), [-1]), b.reshape(b.cast(label.value, ir.DataType.FLOAT), [-1])
    error, ones = b.sub(scores, truth), b.add(b.zeros_like(scores), 1.0)
    weights = ones if ins_tag_weight is None else b.reshape(b.cast(ins_tag_weight.value, ir.DataType.FLOAT), [-1])
    parts = {
        "sqrerr": b.mul(error, error),
        "abserr": b.op("Abs", [error]),
        "prob": scores,
        "q": b.op("Sigmoid", [scores]),
        "pos_num": truth,
        "ins_num": ones,
    }
    sums = []
    for kind, part in parts.items():
        held = _held(program, f"ctr_{kind}", [1])
        total = b.add(held.value, b.sum(b.mul(part, weights), [0]))
        program.updates[held.name] = str(total.name)
        sums.append(_without_gradient(wrap(input, total)))
    return tuple(sums)


def _held(program: Program, label: str, shape: list[int]) -> Variable:
    return create_persistable(Persistable(unique_name.generate(label), "statistic"), shape, 0.0, main=program)


def _of_the_last(program: Program, counts: ir.Value, kind: str, steps: int) -> ir.Value:
    """Return the sum of the counts of this batch and of those before it, `steps` in all."""
    if steps == 1:
        return counts
    b = program.builder()
    held = _held(program, f"auc_batch_{kind}", [steps - 1, int((counts.shape or [0])[0])])  # type: ignore[arg-type]  # bins
    rows = b.concat([held.value, b.unsqueeze(counts, [0])], 0)
    program.updates[held.name] = str(b.slice(rows, [1], [steps], [0]).name)
    return b.sum(rows, [0], keepdims=False)


def _area(program: Program, positive: ir.Value, negative: ir.Value) -> ir.Value:
    """Return the area under the curve of counts by rising score: pairs that are in order, ties half."""
    b = program.builder()
    below = b.op("CumSum", [negative, b.constant(0)])
    ordered = b.sum(b.mul(positive, b.sub(below, b.mul(negative, 0.5))), keepdims=False)
    pairs = b.mul(b.sum(positive, keepdims=False), b.sum(negative, keepdims=False))
    some = b.compare("Greater", pairs, 0.0)
    return b.where(some, b.div(ordered, b.where(some, pairs, 1.0)), 0.0)


def _without_gradient(x: Variable) -> Variable:
    x.stop_gradient = True
    return x


check_arguments(globals(), __all__)
