"""Dropouts: what they keep, what they make of it, and the gradient that they pass."""

from __future__ import annotations

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler.paddle import static

RANDOM = np.random.default_rng(31)
DROPOUTS = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout of rows": lambda x: F.dropout(x, 0.4, axis=0),
    "dropout1d": lambda x: F.dropout1d(x.flatten(2), 0.4).reshape([20, 4, 3, 2]),
    "dropout2d": lambda x: F.dropout2d(x, 0.4),
    "dropout3d": lambda x: F.dropout3d(x.unsqueeze(4), 0.4).squeeze(4),
}
WHOLE = {"dropout of rows": (1, 2, 3), "dropout1d": (2, 3), "dropout2d": (2, 3), "dropout3d": (2, 3)}


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropouts_scale_what_they_keep_and_pass_its_gradient(run, feed_in, name):
    """What is kept is a whole row, channel or element, times 1 / (1 - p), and so is its gradient."""
    array = RANDOM.uniform(1.0, 2.0, (20, 4, 3, 2)).astype(np.float32)
    x = feed_in("x", array)
    x.stop_gradient = False
    dropped = DROPOUTS[name](x)
    [gradient] = static.gradients([dropped], [x])
    value, slope = run([dropped, gradient], x=array)
    np.testing.assert_allclose(value / array, slope, rtol=1e-6)
    np.testing.assert_allclose(np.unique(np.round(slope, 5)), [0.0, np.float32(1 / 0.6).round(5)], rtol=1e-5)
    axes = WHOLE.get(name, ())
    np.testing.assert_array_equal(slope.max(axes), slope.min(axes))
    assert 0.3 < (slope > 0).mean() < 0.9


@pytest.mark.parametrize("name", ["alpha_dropout", "feature_alpha_dropout"])
def test_alpha_dropouts_keep_mean_and_spread_and_pass_the_gradient_of_what_stays(run, feed_in, name):
    array = RANDOM.normal(size=(400, 20)).astype(np.float32)
    x = feed_in("x", array)
    x.stop_gradient = False
    dropped = getattr(F, name)(x, 0.3)
    [gradient] = static.gradients([dropped], [x])
    value, slope = run([dropped, gradient], x=array)
    stayed = slope > 0
    scale = slope[stayed][0]
    np.testing.assert_allclose(slope[stayed], scale, rtol=1e-6)
    assert 0.65 < stayed.mean() < 0.75
    np.testing.assert_allclose(value[stayed] - scale * array[stayed], (value - scale * array)[stayed][0], atol=1e-5)
    np.testing.assert_allclose(value[~stayed], value[~stayed][0], rtol=1e-5)
    np.testing.assert_allclose([value.mean(), value.std()], [0.0, 1.0], atol=0.05)
