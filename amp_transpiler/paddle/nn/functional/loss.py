"""Computes losses of regression and of probabilities; `classification` has those of classes."""
# ruff: noqa: A002  # Paddle's argument names

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.origins import mark_functions
from amp_transpiler.graph.regions import FUNCTION_KEY
from amp_transpiler.paddle.building import accept_name, builder_of, choice, wrap
from amp_transpiler.program.program import Variable

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "smooth_l1_loss",
]

REDUCTIONS = ("mean", "sum", "none")
_TINY = float(np.finfo(np.float32).tiny)
_LEAST_LOG = -100.0  # stands for the logarithm of 0, in Paddle as in torch


def mse_loss(input: Variable, label: Variable, reduction: str = "mean") -> Variable:
    """Return the squared difference, its mean or sum over all elements, or `none` for each."""
    b = builder_of(input, label)
    difference = b.sub(input.value, label.value)
    return reduced(input, b.mul(difference, difference), reduction)


def l1_loss(input: Variable, label: Variable, reduction: str = "mean") -> Variable:
    """Return the absolute difference, its mean or sum over all elements, or `none` for each."""
    b = builder_of(input, label)
    return reduced(input, b.op("Abs", [b.sub(input.value, label.value)]), reduction)


def smooth_l1_loss(
    input: Variable, label: Variable, reduction: str = "mean", delta: float = 1.0, is_huber: bool = True
) -> Variable:
    """Return `difference**2 / 2` where `|difference|` is below `delta`, else `delta * (|difference| - delta / 2)`.

    Without `is_huber`, all of that over `delta`.

    Raises:
        OptionError: `delta` is not positive, or there is no such reduction.
    """
    if delta <= 0:
        raise OptionError(f"smooth_l1_loss: delta must be positive, got {delta}")
    b = builder_of(input, label)
    size = b.op("Abs", [b.sub(input.value, label.value)])
    inner = b.minimum(size, delta)
    loss = b.mul(inner, b.sub(size, b.mul(inner, 0.5)))
    return reduced(input, loss if is_huber or delta == 1 else b.div(loss, float(delta)), reduction)


def binary_cross_entropy(
    input: Variable, label: Variable, weight: Variable | None = None, reduction: str = "mean"
) -> Variable:
    """Return `-label * log(input) - (1 - label) * log(1 - input)`; a logarithm is at least -100.

    Its nodes carry the function's name in their metadata: policy `torch` refuses them outside of `disable_amp`.

    Args:
        input: probabilities.
        label: probabilities, of the same shape and element type.
        weight: factor on each element's loss; broadcasts.
        reduction: `mean`, `sum` or `none`.
    """
    b = builder_of(input, label, weight)
    p, y = input.value, label.value
    with _marked(b, "binary_cross_entropy"):
        yes, no = (_log(input, value) for value in (p, b.sub(1.0, p)))
        loss = b.neg(b.add(b.mul(y, yes), b.mul(b.sub(1.0, y), no)))
        return reduced(input, loss if weight is None else b.mul(loss, weight.value), reduction)


@contextmanager
def _marked(b: GraphBuilder, function: str) -> Iterator[None]:
    """Mark nodes built inside with the function's name: ONNX has no operator for it that rules could name."""
    saved, b.metadata = b.metadata, {**b.metadata, FUNCTION_KEY: function}
    try:
        yield
    finally:
        b.metadata = saved


def _log(like: Variable, x: ir.Value) -> ir.Value:
    """Return the logarithm of a number that may be 0, where its gradient is 0."""
    b = builder_of(like)
    wide = b.high(x)  # the bound is too small for float16
    log = b.op("Log", [b.maximum(wide, _TINY)])
    return b.cast(b.where(b.compare("Greater", wide, 0.0), log, _LEAST_LOG), x.dtype)


def binary_cross_entropy_with_logits(
    logit: Variable,
    label: Variable,
    weight: Variable | None = None,
    reduction: str = "mean",
    pos_weight: Variable | None = None,
) -> Variable:
    """Return the binary cross entropy of `sigmoid(logit)`, without overflow.

    Args:
        logit: any numbers.
        label: probabilities, of the same shape and element type.
        weight: factor on each element's loss; broadcasts.
        reduction: `mean`, `sum` or `none`.
        pos_weight: factor on the loss of positive labels; broadcasts.
    """
    b = builder_of(logit, label, weight, pos_weight)
    x, y = logit.value, label.value
    soft = b.op("Softplus", [b.neg(x)])  # -log(sigmoid(x))
    if pos_weight is not None:
        soft = b.mul(soft, b.add(b.mul(b.sub(pos_weight.value, 1.0), y), 1.0))
    loss = b.add(b.mul(b.sub(1.0, y), x), soft)
    return reduced(logit, loss if weight is None else b.mul(loss, weight.value), reduction)


def kl_div(input: Variable, label: Variable, reduction: str = "mean", log_target: bool = False) -> Variable:
    """Return `label * (log(label) - input)`, 0 where `label` is not positive.

    Args:
        input: logarithms of probabilities.
        label: probabilities, of the same shape and element type.
        reduction: `mean`, `sum` or `none` over the elements, or `batchmean`: the sum over the size of axis 0.
        log_target: whether `label` holds logarithms of probabilities, too.
    """
    choice("kl_div: reduction", reduction, (*REDUCTIONS, "batchmean"))
    b = builder_of(input, label)
    y = label.value
    if log_target:
        loss = b.mul(b.op("Exp", [y]), b.sub(y, input.value))
    else:
        positive = b.compare("Greater", y, 0.0)
        log = b.op("Log", [b.where(positive, y, 1.0)])
        loss = b.where(positive, b.mul(y, b.sub(log, input.value)), 0.0)
    if reduction != "batchmean":
        return reduced(input, loss, reduction)
    batch = b.slice(b.shape(input.value), [0], [1], [0])
    total = b.sum(loss, keepdims=False)
    return wrap(input, b.cast(b.div(total, b.cast(b.squeeze(batch, [0]), total.dtype)), loss.dtype))


def reduced(like: Variable, loss: ir.Value, reduction: str) -> Variable:
    """Return the mean or the sum of a loss over all its elements, or with `none` itself, in its element type.

    Raises:
        OptionError: there is no such reduction.
    """
    choice("reduction", reduction, REDUCTIONS)
    b = builder_of(like)
    if reduction == "mean":
        loss = b.cast(b.mean(loss, keepdims=False), loss.dtype)
    elif reduction == "sum":
        loss = b.cast(b.sum(loss, keepdims=False), loss.dtype)
    return wrap(like, loss)


accept_name(globals(), __all__)
mark_functions(globals(), __all__)
