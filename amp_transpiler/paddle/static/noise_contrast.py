"""`static.nn.nce` builds noise contrastive estimation, a loss for very many classes."""
# ruff: noqa: A002  # Paddle's argument names

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import builder_of, choice, program_of, size_at, wrap
from amp_transpiler.paddle.framework.parameters import ParameterMaker
from amp_transpiler.paddle.initial_values import XavierUniform
from amp_transpiler.paddle.param_attr import Attr
from amp_transpiler.paddle.tensor.random import fractions_like
from amp_transpiler.program.program import Variable

__all__ = ["nce"]


def nce(
    input: Variable,
    label: Variable,
    num_total_classes: int,
    sample_weight: Variable | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: Sequence[float] | None = None,
    seed: int = 0,
    is_sparse: bool = False,
) -> Variable:
    """Return a loss that tells the labels of each sample from classes that are drawn in each run.

    With `s` the sigmoid of a class's score and `q` how often it is expected among the drawn ones, a label costs
    `-log(s / (s + q))` and a drawn class `-log(q / (s + q))`.

    Args:
        input: [samples, features].
        label: classes, [samples, labels].
        num_total_classes: the number of classes.
        sample_weight: factors of the samples, [samples, 1] or [samples].
        param_attr: of the weight `nce_0.w_0`, [classes, features].
        bias_attr: of the bias `nce_0.b_0`, [classes, 1]; False for none.
        num_neg_samples: how many classes are drawn for each sample; 10 unless given.
        name: the layer's name instead of `nce_0`.
        sampler: how they are drawn: `uniform`, `log_uniform` (class `c` in proportion to `log((c + 2) / (c + 1))`) or
            `custom_dist`.
        custom_dist: the probability of each class.
        seed: a seed of its own, unless 0.
        is_sparse: no effect: gradients are dense.

    Returns:
        The costs, [samples, 1].

    Raises:
        InputError: `input` or `label` is no matrix.
        OptionError: a count is not positive, the layer has no weight, or `custom_dist` is missing or no distribution.
    """
    del is_sparse
    drawn = 10 if num_neg_samples is None else num_neg_samples
    choice("nce: sampler", sampler, ("uniform", "log_uniform", "custom_dist"))
    if input.ndim != 2 or label.ndim != 2:
        raise InputError(f"nce takes [samples, features] and [samples, labels], got {input!r} and {label!r}")
    if num_total_classes < 2 or drawn < 1:
        raise OptionError(f"nce: expected 2 classes or more and 1 drawn or more, got {num_total_classes} and {drawn}")
    shares = _shares(sampler, num_total_classes, custom_dist)
    layer = ParameterMaker("nce", name, program_of(input, label, sample_weight))
    size = [num_total_classes, size_at(input, 1, "nce")]
    weight = layer.weight(param_attr, size, input.value.dtype, XavierUniform())
    if weight is None:
        raise OptionError("nce: the layer needs its weight: give None or a ParamAttr, not False")
    bias = layer.bias(bias_attr, [num_total_classes, 1], input.value.dtype)
    b, dtype = builder_of(input), input.value.dtype
    ones = b.cast(b.mul(b.slice(input.value, [0], [1], [1]), 0.0), ir.DataType.FLOAT)
    numbers = fractions_like(wrap(input, b.add(ones, b.constant(np.zeros((1, drawn), np.float32)))), seed)
    bounds = b.constant(np.cumsum(shares)[:-1].astype(np.float32)[None, None])
    above = b.cast(b.compare("GreaterOrEqual", b.unsqueeze(numbers.value, [2]), bounds), ir.DataType.INT64)
    classes = b.concat([b.cast(label.value, ir.DataType.INT64), b.sum(above, [2], keepdims=False)], 1)
    rows = b.op("Gather", [weight.value, classes], {"axis": 0})
    scores = b.sum(b.mul(rows, b.unsqueeze(input.value, [1])), [2], keepdims=False)
    if bias is not None:
        scores = b.add(scores, b.op("Gather", [b.reshape(bias.value, [-1]), classes], {"axis": 0}))
    expected = b.op("Gather", [b.constant(shares * drawn, dtype), classes], {"axis": 0})
    likely = b.op("Sigmoid", [scores])
    true = size_at(label, 1, "nce")
    is_label = b.constant(np.arange(true + drawn)[None] < true)
    costs = b.sub(b.op("Log", [b.add(likely, expected)]), b.op("Log", [b.where(is_label, likely, expected)]))
    total = b.sum(costs, [1])
    return wrap(input, total if sample_weight is None else b.mul(total, b.reshape(sample_weight.value, [-1, 1])))


def _shares(sampler: str, count: int, custom_dist: Sequence[float] | None) -> np.ndarray:
    """Return the probability of each class to be drawn."""
    if sampler == "uniform":
        return np.full(count, 1 / count)
    if sampler == "log_uniform":  # as in Paddle, the last class is never drawn
        return np.append(np.diff(np.log(np.arange(1, count + 1))) / math.log(count), 0.0)
    shares = np.asarray([] if custom_dist is None else custom_dist, np.float64)
    if shares.shape != (count,) or (shares < 0).any() or not math.isclose(shares.sum(), 1, abs_tol=1e-3):
        raise OptionError(f"nce: custom_dist must be {count} probabilities whose sum is 1, got {custom_dist!r:.80}")
    return shares


check_arguments(globals(), __all__)
