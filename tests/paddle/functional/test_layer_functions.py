"""Convolutions, pools, norms, activations, resizing and losses: values and gradients against torch's."""

from __future__ import annotations

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
TF = torch.nn.functional

RANDOM = np.random.default_rng(29)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


X, LINE, CUBE, ROWS = normal(2, 4, 6, 5), normal(2, 4, 7), normal(2, 3, 4, 5, 6), normal(3, 6)
SCALE, BIAS, MEAN = normal(4), normal(4), normal(4)
SPREAD = RANDOM.uniform(0.5, 2.0, 4).astype(np.float32)
CHANCES = RANDOM.uniform(0.1, 0.9, (3, 6)).astype(np.float32)
TRUTHS = RANDOM.integers(0, 2, (3, 6)).astype(np.float32)
LABELS = np.array([1, 0, 5])

SAME = "elu gelu hardsigmoid hardswish leaky_relu mish relu6 selu sigmoid silu softplus softsign".split()
CASES = {name: case(getattr(F, name), getattr(TF, name), ROWS) for name in SAME}
CASES |= {
    "swish": case(F.swish, TF.silu, ROWS),
    "relu": case(F.relu, TF.relu, ROWS),
    "tanh": case(F.tanh, torch.tanh, ROWS),
    "hardtanh": case(lambda x: F.hardtanh(x, -0.5, 0.7), lambda x: TF.hardtanh(x, -0.5, 0.7), ROWS),
    "softmax": case(lambda x: F.softmax(x, 0), lambda x: x.softmax(0), ROWS),
    "log_softmax": case(F.log_softmax, lambda x: x.log_softmax(-1), ROWS),
    "thresholded_relu": case(lambda x: F.thresholded_relu(x, 0.4), lambda x: TF.threshold(x, 0.4, 0.0), ROWS),
    "prelu": case(F.prelu, TF.prelu, X, SCALE),
    "conv1d": case(
        lambda x, w, b: F.conv1d(x, w, b, 2, 1, groups=2),
        lambda x, w, b: TF.conv1d(x, w, b, 2, 1, groups=2),
        LINE,
        normal(6, 2, 3),
        normal(6),
        fixed=True,
        tolerance=1e-4,
    ),
    "conv2d": case(
        lambda x, w, b: F.conv2d(x, w, b, 1, [1, 2], 2),
        lambda x, w, b: TF.conv2d(x, w, b, 1, [1, 2], 2),
        X,
        normal(3, 4, 3, 3),
        normal(3),
        fixed=True,
        tolerance=1e-4,
    ),
    "conv2d_transpose": case(
        lambda x, w, b: F.conv2d_transpose(x, w, b, 2, 1, 1),
        lambda x, w, b: TF.conv_transpose2d(x, w, b, 2, 1, 1),
        X,
        normal(4, 3, 3, 3),
        normal(3),
        fixed=True,
        tolerance=1e-4,
    ),
    "avg_pool1d": case(lambda x: F.avg_pool1d(x, 3, 2), lambda x: TF.avg_pool1d(x, 3, 2), LINE, fixed=True),
    "avg_pool2d": case(
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: TF.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        X,
        fixed=True,
    ),
    "adaptive_avg_pool2d": case(
        lambda x: F.adaptive_avg_pool2d(x, [3, 2]), lambda x: TF.adaptive_avg_pool2d(x, (3, 2)), X, fixed=True
    ),
    "max_unpool3d": case(
        lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, 2, return_mask=True), 2, 2, output_size=[4, 5, 6]),
        lambda x: TF.max_unpool3d(*TF.max_pool3d(x, 2, 2, return_indices=True), 2, 2, output_size=(4, 5, 6)),
        CUBE,
        fixed=True,
    ),
    "batch_norm": case(
        lambda x, w, b: F.batch_norm(x, paddle.to_tensor(MEAN), paddle.to_tensor(SPREAD), w, b),
        lambda x, w, b: TF.batch_norm(x, torch.tensor(MEAN), torch.tensor(SPREAD), w, b),
        X,
        SCALE,
        BIAS,
        fixed=True,
        tolerance=1e-4,
    ),
    "layer_norm": case(
        lambda x, w, b: F.layer_norm(x, 7, w, b),
        lambda x, w, b: TF.layer_norm(x, (7,), w, b),
        LINE,
        normal(7),
        normal(7),
        fixed=True,
        tolerance=1e-4,
    ),
    "group_norm": case(
        lambda x, w, b: F.group_norm(x, 2, weight=w, bias=b),
        lambda x, w, b: TF.group_norm(x, 2, w, b),
        X,
        SCALE,
        BIAS,
        fixed=True,
        tolerance=1e-4,
    ),
    "instance_norm": case(
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        lambda x, w, b: TF.instance_norm(x, weight=w, bias=b),
        X,
        SCALE,
        BIAS,
        fixed=True,
        tolerance=1e-4,
    ),
    "normalize": case(F.normalize, TF.normalize, ROWS),
    "interpolate": case(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda x: TF.interpolate(x, scale_factor=2, mode="bilinear"),
        X,
        fixed=True,
    ),
    "pad": case(
        lambda x: F.pad(x, [1, 2, 0, 3], mode="reflect"), lambda x: TF.pad(x, (1, 2, 0, 3), "reflect"), X, fixed=True
    ),
    "one_hot": case(lambda i: F.one_hot(i, 7), lambda i: TF.one_hot(i, 7).float(), LABELS),
    "l1_loss": case(F.l1_loss, TF.l1_loss, ROWS, CHANCES),
    "nll_loss": case(lambda x, y: F.nll_loss(x.log(), y), lambda x, y: TF.nll_loss(x.log(), y), CHANCES, LABELS),
    "binary_cross_entropy": case(
        lambda x, y: F.binary_cross_entropy(x, y.detach()),
        lambda x, y: TF.binary_cross_entropy(x, y.detach()),
        CHANCES,
        TRUTHS,
    ),
    "binary_cross_entropy_with_logits": case(
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.detach()),
        lambda x, y: TF.binary_cross_entropy_with_logits(x, y.detach()),
        ROWS,
        TRUTHS,
    ),
    "softmax_with_cross_entropy": case(
        lambda x, y: F.softmax_with_cross_entropy(x, y.unsqueeze(1)),
        lambda x, y: TF.cross_entropy(x, y, reduction="none")[:, None],
        ROWS,
        LABELS,
    ),
}
test_beside_torch = family_test(CASES)
