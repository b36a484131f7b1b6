"""Gradient clipping against numpy, and its place in the order of things."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import OptionError
from amp_transpiler.paddle import static
from amp_transpiler.paddle.nn.clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from amp_transpiler.paddle.optimizer import SGD
from tests.paddle.optimizer.programs import gradient_fed

RANDOM = np.random.default_rng(0)
GRADIENTS = {"a": RANDOM.normal(size=(3, 4)).astype("f") * 5, "b": RANDOM.normal(size=5).astype("f") * 0.1}
WEIGHTS = {name: np.ones_like(value) for name, value in GRADIENTS.items()}


def by_norm(g, limit):
    norm = np.linalg.norm(g.astype(np.float64))
    return g * (limit / max(norm, limit))


def by_global_norm(gradients, limit):
    norm = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in gradients.values()))
    return {name: g * (limit / max(norm, limit)) for name, g in gradients.items()}


CASES = {
    "value": (ClipGradByValue(0.5), lambda all_: {k: np.clip(g, -0.5, 0.5) for k, g in all_.items()}),
    "value, two bounds": (ClipGradByValue(0.5, -0.1), lambda all_: {k: np.clip(g, -0.1, 0.5) for k, g in all_.items()}),
    "norm": (ClipGradByNorm(1.0), lambda all_: {k: by_norm(g, 1.0) for k, g in all_.items()}),
    "norm, large": (ClipGradByNorm(1e3), lambda all_: all_),
    "global norm": (ClipGradByGlobalNorm(1.0), lambda all_: by_global_norm(all_, 1.0)),
    "global norm, large": (ClipGradByGlobalNorm(1e3), lambda all_: all_),
}


@pytest.mark.parametrize(("clip", "want"), CASES.values(), ids=CASES)
def test_clipping_as_numpy(clip, want):
    ours = gradient_fed(SGD(1.0, grad_clip=clip), WEIGHTS)
    ours.run({f"g_{name}": g for name, g in GRADIENTS.items()})
    for name, g in want(GRADIENTS).items():
        np.testing.assert_allclose(1 - ours.scope[name], g, rtol=1e-5, atol=1e-6)


def test_zero_gradients_stay_zero():
    for clip in (ClipGradByNorm(1.0), ClipGradByGlobalNorm(1.0)):
        ours = gradient_fed(SGD(1.0, grad_clip=clip), {"w": np.ones(3, "f")})
        ours.run({"g_w": np.zeros(3, "f")})
        np.testing.assert_array_equal(ours.scope["w"], np.ones(3))


def test_parameters_that_need_no_clipping_are_left_out_of_the_norm_too():
    ours = gradient_fed(SGD(1.0, grad_clip=ClipGradByGlobalNorm(0.05)), WEIGHTS, a={"need_clip": False})
    ours.run({f"g_{name}": g for name, g in GRADIENTS.items()})
    np.testing.assert_allclose(1 - ours.scope["a"], GRADIENTS["a"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(1 - ours.scope["b"], by_norm(GRADIENTS["b"], 0.05), rtol=1e-5, atol=1e-6)
    nobody = gradient_fed(
        SGD(1.0, grad_clip=ClipGradByGlobalNorm(0.05)), {"w": np.ones(3, "f")}, w={"need_clip": False}
    )
    nobody.run({"g_w": np.ones(3, "f")})
    np.testing.assert_array_equal(nobody.scope["w"], np.zeros(3))


def test_weight_decay_is_added_after_clipping():
    ours = gradient_fed(SGD(0.1, grad_clip=ClipGradByNorm(0.5), weight_decay=2.0), {"w": np.ones(4, "f")})
    g = np.full(4, 3.0, "f")
    ours.run({"g_w": g})
    np.testing.assert_allclose(ours.scope["w"], 1 - 0.1 * (by_norm(g, 0.5) + 2.0), rtol=1e-6)


def test_the_norm_of_float16_gradients_does_not_overflow():
    """4096 times 300^2 is far beyond float16, and so is 300^2 itself."""
    g = np.full(4096, 300.0, np.float16)
    clip = ClipGradByGlobalNorm(64.0)
    ours = gradient_fed(
        SGD(1.0, grad_clip=clip, multi_precision=True), {"w": np.ones(4096, "f")}, dtype=ir.DataType.FLOAT16
    )
    ours.run({"g_w": g})
    np.testing.assert_allclose(ours.scope["w_fp32_master_0"], 1 - 64.0 / 64.0, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ClipGradByValue(-1.0), "positive"),
        (lambda: ClipGradByValue(1.0, 2.0), "above max"),
        (lambda: ClipGradByNorm(0.0), "ClipGradByNorm: clip_norm"),
        (lambda: ClipGradByGlobalNorm(-1.0), "ClipGradByGlobalNorm: clip_norm"),
    ],
)
def test_bounds_without_a_meaning_are_refused(make, words):
    with pytest.raises(OptionError, match=words):
        make()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_script_clips_what_append_backward_made(fresh_programs, dtype):
    w = paddle.create_parameter([3, 4], dtype, attr=paddle.ParamAttr(name="w"))
    left = paddle.create_parameter([5], dtype, attr=paddle.ParamAttr(name="b", need_clip=False))
    x, y = static.data("x", [3, 4], dtype), static.data("y", [5], dtype)
    pairs = static.append_backward(paddle.sum(w * x) + paddle.sum(left * y))
    pairs_clipped = ClipGradByNorm(1.0)([*pairs, (x, None)])
    assert [(p.name, g.dtype) for p, g in pairs_clipped] == [("w", dtype), ("b", dtype)]
    executor = static.Executor("cpu")
    executor.run(static.default_startup_program())
    feed = {"x": GRADIENTS["a"].astype(dtype), "y": GRADIENTS["b"].astype(dtype)}
    clipped, unclipped = executor.run(feed=feed, fetch_list=[g for _, g in pairs_clipped])
    np.testing.assert_allclose(clipped, by_norm(GRADIENTS["a"], 1.0), rtol=2e-3, atol=1e-6)
    np.testing.assert_array_equal(unclipped, feed["y"])
    assert ClipGradByNorm(1.0)([(x, None)]) == []
