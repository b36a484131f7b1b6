"""Activations that came later, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
TF = torch.nn.functional

RANDOM = np.random.default_rng(17)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


X = normal(3, 4, 6) * 2

CASES = {
    "celu": case(F.celu, TF.celu, X),
    "celu alpha": case(lambda x: F.celu(x, 0.4), lambda x: TF.celu(x, 0.4), X),
    "glu": case(F.glu, TF.glu, X, fixed=True),
    "glu axis": case(lambda x: F.glu(x, 1), lambda x: TF.glu(x, 1), X),
    "hardshrink": case(F.hardshrink, TF.hardshrink, X),
    "hardtanh": case(F.hardtanh, TF.hardtanh, X),
    "hardtanh bounds": case(lambda x: F.hardtanh(x, -0.3, 2.0), lambda x: TF.hardtanh(x, -0.3, 2.0), X),
    "log_sigmoid": case(F.log_sigmoid, TF.logsigmoid, X * 30),
    "logsigmoid": case(F.logsigmoid, TF.logsigmoid, X),
    "maxout": case(lambda x: F.maxout(x, 2), lambda x: x.unflatten(1, (2, 2)).amax(2), X, fixed=True),
    "maxout last": case(lambda x: F.maxout(x, 3, -1), lambda x: x.unflatten(2, (2, 3)).amax(3), X, fixed=True),
    "rrelu": case(lambda x: F.rrelu(x, training=False), lambda x: TF.rrelu(x, training=False), X),
    "softshrink": case(F.softshrink, TF.softshrink, X),
    "softshrink threshold": case(lambda x: F.softshrink(x, 1.2), lambda x: TF.softshrink(x, 1.2), X),
    "swiglu": case(F.swiglu, lambda x, y: TF.silu(x) * y, X, X + 1),
    "swiglu of halves": case(F.swiglu, lambda x: TF.silu(x[..., :3]) * x[..., 3:], X, fixed=True),
    "tanhshrink": case(F.tanhshrink, TF.tanhshrink, X),
    "thresholded_relu": case(F.thresholded_relu, lambda x: TF.threshold(x, 1.0, 0.0), X),
    "thresholded_relu value": case(lambda x: F.thresholded_relu(x, 0.3, -2.0), lambda x: TF.threshold(x, 0.3, -2.0), X),
    "rms_norm": case(
        lambda x, w: F.rms_norm(x, 6, w), lambda x, w: TF.rms_norm(x, (6,), w, 1e-5), X, normal(6), fixed=True
    ),
    "rms_norm of two axes": case(
        lambda x: F.rms_norm(x, [4, 6], eps=0.1), lambda x: TF.rms_norm(x, (4, 6), eps=0.1), X, fixed=True
    ),
    "local_response_norm": case(
        lambda x: F.local_response_norm(x, 3, 0.1), lambda x: TF.local_response_norm(x, 3, 0.1), X
    ),
    "local_response_norm of four": case(
        lambda x: F.local_response_norm(x, 4, 0.5, 0.6, 2.0), lambda x: TF.local_response_norm(x, 4, 0.5, 0.6, 2.0), X
    ),
    "name": case(lambda x: F.relu(x, name="r"), TF.relu, X),
    "name of a loss": case(lambda x, y: F.mse_loss(x, y, "mean", None), TF.mse_loss, X, X + 1),
}


test_value_and_gradient = family_test(CASES)
