"""Computes losses of classification."""
# ruff: noqa: A002  # Paddle's signatures

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.paddle.building import accept_name, axis_of, builder_of, choice, emit, size_at, wrap
from amp_transpiler.paddle.nn.functional.loss import REDUCTIONS, reduced
from amp_transpiler.program.program import Variable
from amp_transpiler.program.retyped import is_unchecked, mark_labels

__all__ = ["cross_entropy", "nll_loss", "softmax_with_cross_entropy"]

_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)


def cross_entropy(
    input: Variable,
    label: Variable,
    weight: Variable | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    soft_label: bool = False,
    axis: int = -1,
    use_softmax: bool = True,
    label_smoothing: float = 0.0,
) -> Variable:
    """Return the negative logarithm of the probability of the labels.

    Args:
        input: scores of the classes along `axis`, any numbers; softmax turns them into probabilities.
        label: each sample's class, int64 or int32, in the shape of `input` without `axis`, or with size 1 there; with
            `soft_label` the probabilities of the classes, in the shape of `input`.
        weight: [classes], factor on the samples of a class; the mean is then the weighted one.
        ignore_index: samples with this label do not count. If no sample counts, the mean is 0.
        reduction: `mean` over the samples that count, `sum`, or `none` for the loss of each sample, in the shape of the
            label.
        soft_label: whether labels are probabilities.
        axis: where the classes are.
        use_softmax: False if `input` holds probabilities already.
        label_smoothing: the share of each label that is spread evenly over all classes.

    Raises:
        InputError: shapes or element types do not fit each other.
        OptionError: there is no such reduction, or the share is outside of [0, 1].
    """
    choice("cross_entropy: reduction", reduction, REDUCTIONS)
    if not 0 <= label_smoothing <= 1:
        raise OptionError(f"cross_entropy: label_smoothing must be from 0 to 1, got {label_smoothing}")
    builder_of(input, label, weight)
    axis = axis_of(input, axis)
    if label_smoothing:
        soft = label if soft_label else _probabilities(input, label, axis)
        b, classes = builder_of(input), size_at(input, axis, "cross_entropy with label_smoothing")
        evened = b.add(b.mul(soft.value, 1.0 - label_smoothing), label_smoothing / classes)
        label, soft_label = wrap(label, evened), True
    if soft_label:
        log = emit("LogSoftmax", [input], {"axis": axis}) if use_softmax else emit("Log", [input])
        return _soft(log, label, weight, axis, reduction)
    scores = input if use_softmax else emit("Log", [input])
    operator = "SoftmaxCrossEntropyLoss" if use_softmax else "NegativeLogLikelihoodLoss"
    attributes = {"ignore_index": ignore_index, "reduction": reduction}
    return _hard(operator, scores, label, weight, axis, attributes)


def _probabilities(input: Variable, label: Variable, axis: int) -> Variable:
    """Return 1 for the class of each label, 0 for the others."""
    label = _as_fed(label)
    _check_labels(input, label, axis)
    b = builder_of(input, label)
    numbers = b.squeeze(label.value, [axis]) if label.ndim == input.ndim else label.value
    depth = b.constant(np.array(size_at(input, axis, "cross_entropy"), np.int64))
    ends = b.constant(np.array([0, 1]), input.value.dtype)
    return wrap(input, b.op("OneHot", [numbers, depth, ends], {"axis": axis}))


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Variable | tuple[Variable, Variable]:
    """Return the loss of each sample, with size 1 along `axis`, and the probabilities with `return_softmax`.

    Args:
        logits: scores of the classes along `axis`.
        label: as `cross_entropy` takes it.
        soft_label: whether labels are probabilities.
        ignore_index: samples with this label have a loss of 0.
        numeric_stable_mode: no effect: the computation is always stable.
        return_softmax: whether to return (loss, probabilities).
        axis: where the classes are.

    Raises:
        InputError: shapes or element types do not fit each other.
    """
    del numeric_stable_mode
    axis = axis_of(logits, axis)
    loss = cross_entropy(logits, label, ignore_index=ignore_index, reduction="none", soft_label=soft_label, axis=axis)
    if loss.ndim < logits.ndim:
        loss = wrap(loss, builder_of(loss).unsqueeze(loss.value, [axis]))
    return (loss, emit("Softmax", [logits], {"axis": axis})) if return_softmax else loss


def nll_loss(
    input: Variable,
    label: Variable,
    weight: Variable | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Variable:
    """Return the negative log likelihood: minus the value of `input` at each label.

    Args:
        input: logarithms of probabilities, [batch, classes, ...].
        label: each sample's class, int64 or int32, [batch, ...].
        weight: [classes], factor on the samples of a class; the mean is then the weighted one.
        ignore_index: samples with this label do not count.
        reduction: `mean` over the samples that count, `sum` or `none`.

    Raises:
        InputError: shapes or element types do not fit each other.
        OptionError: there is no such reduction.
    """
    choice("nll_loss: reduction", reduction, REDUCTIONS)
    builder_of(input, label, weight)
    attributes = {"ignore_index": ignore_index, "reduction": reduction}
    return _hard("NegativeLogLikelihoodLoss", input, label, weight, axis_of(input, 1), attributes)


def _hard(
    operator: str,
    scores: Variable,
    label: Variable,
    weight: Variable | None,
    axis: int,
    attributes: dict[str, object],
) -> Variable:
    """Return a loss by class numbers; ONNX's operators want the classes at axis 1 of two or more axes."""
    label = _as_fed(label)
    _check_labels(scores, label, axis)
    b = builder_of(scores)
    x, y = scores.value, label.value
    has_axis = label.ndim == scores.ndim
    if has_axis:
        y = b.squeeze(y, [axis])
    sample_shape = b.shape(y)
    last = axis == scores.ndim - 1
    if axis != 1 and last:  # all other axes are samples
        x, y = b.reshape(x, [-1, scores.shape[axis]]), b.reshape(y, [-1])
    elif axis != 1:
        x = b.transpose(x, [0, axis, *(other for other in range(1, scores.ndim) if other != axis)])
    loss = b.op(operator, [x, y, *([] if weight is None else [weight.value])], attributes)
    if attributes["reduction"] == "none":
        if axis != 1 and last:
            loss = b.reshape(loss, sample_shape)
        if has_axis:
            loss = b.unsqueeze(loss, [axis])
    return wrap(scores, loss)


def _as_fed(label: Variable) -> Variable:
    """Return labels as whole numbers where they are declared as floats and what is fed decides."""
    declared = label.value.dtype
    if not is_unchecked(label.value) or declared is None or not declared.is_floating_point():
        return label
    mark_labels(label.value)
    return wrap(label, builder_of(label).cast(label.value, ir.DataType.INT64))


def _check_labels(scores: Variable, label: Variable, axis: int) -> None:
    if scores.ndim < 2:
        raise InputError(f"the scores must have an axis for samples and one for classes, got {scores!r}")
    if label.value.dtype not in _INTEGERS:
        raise InputError(f"labels must be int64 or int32 (or probabilities, with soft_label=True), got {label!r}")
    want = list(scores.shape)
    del want[axis]
    have = list(label.shape)
    if len(have) == scores.ndim and have[axis] in (1, -1):
        del have[axis]
    if len(have) != len(want) or any(-1 not in (a, b) and a != b for a, b in zip(have, want, strict=True)):
        with_one = [*want[:axis], 1, *want[axis:]]
        raise InputError(f"labels of {scores!r} must be of shape {want} or {with_one}, got {label!r}")


def _soft(log: Variable, label: Variable, weight: Variable | None, axis: int, reduction: str) -> Variable:
    """Return a loss by class probabilities; `log` holds the logarithms of the predicted ones."""
    if label.ndim != log.ndim or label.value.dtype != log.value.dtype:
        raise InputError(f"soft labels must be of the shape and element type of the scores {log!r}, got {label!r}")
    b = builder_of(log)
    y = label.value
    loss = b.neg(b.cast(b.sum(b.mul(y, log.value), [axis]), y.dtype))
    if weight is None:
        return reduced(log, loss, reduction)
    # As in Paddle, the weight of a sample is the mean of the class weights under its label.
    by_class = b.reshape(weight.value, [-1, *[1] * (log.ndim - 1 - axis)])
    share = b.cast(b.sum(b.mul(y, by_class), [axis]), y.dtype)
    loss = b.mul(loss, share)
    if reduction != "mean":
        return reduced(log, loss, reduction)
    total = b.sum(share, keepdims=False)
    total = b.where(b.compare("Equal", total, 0.0), 1.0, total)  # 0, not 0 / 0, where no weight counts
    return wrap(log, b.cast(b.div(b.sum(loss, keepdims=False), total), y.dtype))


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
