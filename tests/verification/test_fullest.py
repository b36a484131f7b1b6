"""Fuller conversions, tried where an engine is built of the file: what a comparison at other levels lets be low."""

import numpy as np
import pytest

import amp_transpiler as amp
from tests.support import array, parse

SOUND = array(1, 2048, seed=4, scale=0.3)
W = array(2048, 64, seed=5, scale=0.05)
IDS = np.arange(12, dtype=np.int64).reshape(1, 12)
BOUND = np.float32(2.0**-19)  # too small for a logarithm by the rules, and a number of float16


def front_end(bound, name="audio"):
    text = f"m = MatMul ({name}, w) q = Mul (m, m) c = Max (q, bound) l = Log (c) y = Div (l, ten)"
    return parse(
        f"(float[1, 2048] {name}) => (float[1, 64] y) {{ {text} }}", w=W, bound=np.float32(bound), ten=np.float32(10.0)
    )


def mean_of_tokens(scale):
    text = "e = Gather (table, ids) s = ReduceSum <keepdims = 0> (e, axes) y = MatMul (s, w)"
    table, w = array(64, 64, seed=6, scale=scale), array(64, 8, seed=7, scale=0.1)
    return parse(f"(int64[1, n] ids) => (float[1, 8] y) {{ {text} }}", table=table, w=w, axes=np.array([1], np.int64))


# name: (model, inputs, target, operators that are float32)
CASES = {
    "a logarithm that keeps the limits at every level": (front_end(BOUND), {"audio": SOUND}, "tensorrt", set()),
    "the same for another target": (front_end(BOUND), {"audio": SOUND}, "any", {"Mul", "Max", "Log", "Div"}),
    "a bound that float16 moves": (front_end(1e-12), {"audio": SOUND}, "tensorrt", {"Mul", "Max", "Log"}),
    "features, which run at no other level": (
        front_end(BOUND, "mask"),
        {"mask": SOUND},
        "tensorrt",
        {"Mul", "Max", "Log"},
    ),
    "a sum of tokens": (mean_of_tokens(1.0), {"ids": IDS}, "tensorrt", set()),
    "a sum that leaves the range for texts 16 times as long": (
        mean_of_tokens(700.0),
        {"ids": IDS},
        "tensorrt",
        {"Gather", "ReduceSum"},
    ),
}


@pytest.mark.parametrize(("model", "inputs", "target", "expected"), CASES.values(), ids=CASES)
def test_what_is_float32(model, inputs, target, expected):
    report = amp.transpile(model, inputs=inputs, target=target, build="no", cache=False, prefer="size")
    assert {row.op for row in report.decisions if row.precision == "float32"} == expected
