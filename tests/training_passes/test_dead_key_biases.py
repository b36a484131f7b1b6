"""Biases of keys that a Softmax takes away."""

import numpy as np
import pytest

from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import DeadKeyBiases
from tests.support import array
from tests.training_passes.training_step import outline, step

INPUTS = "float[16,12] x, float[12,12] w, float[12] b, float[2,3,8,4] q, float[2,3,8,8] g, float[2,1,1,8] mask"
CONSTANTS = """int64[4] heads = {2, 8, 3, 4}, int64[2] flat = {16, 12}, int64[1] last = {3}, int64[1] first = {0},
    float f = {0.5}"""
KEYS = "p = MatMul (x, w) k = Add (p, b) r = Reshape (k, heads) t = Transpose <perm = [0, 2, 3, 1]> (r)"
SCORES = "s = MatMul (q, t) y = Softmax (s)"
SLOPES = "m = Mul (y, g) d = ReduceSum (m, last) e = Sub (g, d) ds = Mul (y, e)"
TO_QUERIES = "u = Transpose <perm = [0, 1, 3, 2]> (t) dq = MatMul (ds, u)"
TO_KEYS = """v = Transpose <perm = [0, 1, 3, 2]> (q) dt = MatMul (v, ds) dr = Transpose <perm = [0, 3, 1, 2]> (dt)
    dk = Reshape (dr, flat) db = ReduceSum (dk, first) dw = Neg (db)"""
BACKWARD = f"{SLOPES} {TO_QUERIES} {TO_KEYS}"

# name: (nodes, biases left out)
STEPS = {
    "scores": (f"{KEYS} {SCORES} {BACKWARD}", 1),
    "scores times a number": (f"{KEYS} n = MatMul (q, t) s = Mul (n, f) y = Softmax (s) {BACKWARD}", 1),
    "scores with a mask": (f"{KEYS} n = MatMul (q, t) s = Add (n, mask) y = Softmax (s) {BACKWARD}", 1),
    "no gradient": (f"{KEYS} {SCORES} dq = Neg (y) dw = Neg (b)", 0),
    "along the queries": (f"{KEYS} s = MatMul (q, t) y = Softmax <axis = 2> (s) {BACKWARD}", 0),
    "the keys are read elsewhere": (f"{KEYS} z = Neg (k) {SCORES} {BACKWARD}", 0),
    "the scores are read elsewhere": (f"{KEYS} {SCORES} z = Neg (s) {BACKWARD}", 0),
    "keys without a bias": (f"k = MatMul (x, w) {KEYS.partition('b) ')[2]} {SCORES} {BACKWARD}", 0),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_bias_of_keys_leaves_the_step(name, run):
    body, count = STEPS[name]
    more = ", float[16,12] z" if " z = Neg (k)" in body else ", float[2,3,8,8] z" if " z = " in body else ""
    gradient = "float[12] dw" if "dw = Neg (b)" in body else "float[1,12] dw"
    queries = "float[2,3,8,8] dq" if "dq = Neg" in body else "float[2,3,8,4] dq"
    model = step(f"({INPUTS}) => (float[2,3,8,8] y, {queries}, {gradient}{more}) <{CONSTANTS}> {{ {body} }}", "m")
    sizes = {"x": (16, 12), "w": (12, 12), "b": (12,), "q": (2, 3, 8, 4), "g": (2, 3, 8, 8), "mask": (2, 1, 1, 8)}
    feeds = {key: array(*size, seed=index) for index, (key, size) in enumerate(sizes.items())}
    before, sums = run(model, feeds), outline(model).split().count("Add")
    assert run_pass(DeadKeyBiases(), model).count == count
    assert outline(model).split().count("Add") == sums - count
    after = run(model, feeds)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)
    if count:
        assert not after[2].any()
