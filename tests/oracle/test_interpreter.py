"""The oracle's emulation, against what numpy and ml_dtypes say by hand."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

from tests.oracle.interpreter import CannotEvaluate, Interpreter

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
X = np.array([0.1, 0.7, 3.3, 12.34], np.float32)
LARGE = np.array([0.0, 1.0, 2.0, 1234.5], np.float32)


def _low(values: np.ndarray, dtype: np.dtype = F16) -> np.ndarray:
    return values.astype(dtype).astype(np.float32)


def _run(body: str, *, result: str = "float[N] y", x: np.ndarray = X):
    text = f'<ir_version: 8, opset_import: ["": 13]> g (float[N] x) => ({result}) {{ {body} }}'
    return Interpreter(onnx.parser.parse_model(text)).run({"x": x})["y"]


@pytest.mark.parametrize(("dtype", "code"), [(F16, 10), (BF16, 16)])
def test_every_low_result_is_rounded(dtype, code):
    body = f"h = Cast <to = {code}> (x) s = Mul (h, h) t = Mul (s, h) y = Cast <to = 1> (t)"
    x = np.linspace(0.1, 3.0, 50, dtype=np.float32)
    h = _low(x, dtype)
    wanted = _low(_low(h * h, dtype) * h, dtype)
    np.testing.assert_array_equal(_run(body, x=x), wanted)
    assert not np.array_equal(wanted, _low(h * h * h, dtype)), "the example does not tell rounding between"


def test_float32_results_are_not_rounded():
    np.testing.assert_array_equal(_run("y = Mul (x, x)"), X * X)


def test_low_values_are_computed_with_in_float32():
    """The sum of squares, 1524000, is beyond float16; its logarithm is not: inside an operator nothing is rounded."""
    low, back = "h = Cast <to = 10> (x)", "y = Cast <to = 1> (l)"
    log = _run(f"{low} l = ReduceLogSumExp <keepdims = 0> (h) {back}", result="float y", x=LARGE)
    assert log == np.float16(1234.5)
    total = _run(f"{low} l = ReduceSumSquare <keepdims = 0> (h) {back}", result="float y", x=LARGE)
    assert np.isinf(total)


def test_a_result_is_of_the_type_of_its_own_variable():
    """The mean of LayerNormalization is float32 beside a low result; Shape and ArgMax have types of their own."""
    body = "h = Cast <to = 10> (x) y, m = LayerNormalization (h, h)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float16[4] y, float[1] m) {{ {body} }}'
    )
    results = Interpreter(model).run({"x": X})
    assert (results["y"].dtype, results["m"].dtype) == (F16, np.float32)
    assert results["m"] == pytest.approx(_low(X).mean(), rel=1e-6)
    assert _run("h = Cast <to = 10> (x) y = ArgMax (h)", result="int64[1] y").dtype == np.int64


def test_low_weights_and_constants():
    model = onnx.parser.parse_model("""
      <ir_version: 8, opset_import: ["": 17]>
      g (float[4] x) => (float[4] y) <float16[1] w = {17050}> {
        h = Cast <to = 10> (x)
        s = Mul (h, w)
        c = Constant <value = float16[1] {11878}> ()
        t = Add (s, c)
        y = Cast <to = 1> (t)
      }""")  # the bits of 3.3 and of 0.1
    got = Interpreter(model).run({"x": X})["y"]
    np.testing.assert_array_equal(got, _low(_low(_low(X) * _low(np.float32(3.3))) + _low(np.float32(0.1))))


def test_low_values_pass_through_control_flow():
    body = """
      h = Cast <to = 10> (x)
      c = Constant <value = bool {1}> ()
      n = Constant <value = int64 {3}> ()
      b = If (c) <then_branch = a () => (float16[4] p) { p = Mul (h, h) },
                  else_branch = e () => (float16[4] q) { q = Identity (h) }>
      f, all = Loop (n, c, b) <body = l (int64 i, bool k, float16[4] v) => (bool o, float16[4] w, float16[4] u) {
        o = Identity (k)  w = Mul (v, h)  u = Identity (v) }>
      y = Cast <to = 1> (all)"""
    h = _low(X)
    turns = [_low(h * h)]
    for _ in range(2):
        turns.append(_low(turns[-1] * h))
    np.testing.assert_array_equal(_run(body), np.stack(turns))


def test_low_values_pass_through_scan():
    body = """
      h = Cast <to = 10> (x)
      z = Constant <value = float16 {0}> ()
      last, all = Scan <num_scan_inputs = 1, body = b (float16 s, float16 v) => (float16 t, float16 u) {
        t = Add (s, v)  u = Identity (t) }> (z, h)
      y = Cast <to = 1> (all)"""
    total, wanted = np.float16(0), []
    for value in X.astype(np.float16):
        total = np.float16(np.float32(total) + np.float32(value))
        wanted.append(np.float32(total))
    np.testing.assert_array_equal(_run(body), wanted)


def test_functions_get_the_attributes_of_their_call():
    model = onnx.parser.parse_model("""
      <ir_version: 8, opset_import: ["": 17, "own": 1]>
      g (float[4] x) => (float[4] y) { h = Cast <to = 10> (x)  l = own.scaled <alpha = 0.3> (h)  y = Cast <to = 1> (l) }
      <domain: "own", opset_import: ["": 17]>
      scaled <alpha: float = 0.5> (a) => (b) { n = Neg (a)  b = LeakyRelu <alpha: float = @alpha> (n) }""")
    np.testing.assert_array_equal(Interpreter(model).run({"x": X})["y"], _low(-_low(X) * np.float32(0.3)))


def test_sequences_keep_the_type_of_their_elements():
    body = """h = Cast <to = 10> (x)  s = SequenceConstruct (h, h)  n = Constant <value = int64 {1}> ()
      e = SequenceAt (s, n)  t = Mul (e, e)  y = Cast <to = 1> (t)"""
    np.testing.assert_array_equal(_run(body), _low(_low(X) * _low(X)))


def test_an_unknown_operator_is_named():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[4] x) => (float[4] y) '
        "{ y = com.microsoft.Unheard (x) }"
    )
    with pytest.raises(CannotEvaluate, match="Unheard"):
        Interpreter(model).run({"x": X})


def test_the_oracle_imports_nothing_of_the_package():
    folder = pathlib.Path(__file__).parent
    modules = [f"tests.oracle.{path.stem}" for path in folder.glob("*.py") if not path.stem.startswith("test_")]
    code = f"import {', '.join(modules)}, sys; print([name for name in sys.modules if name.startswith('amp_')])"
    command, root = [sys.executable, "-c", code], folder.parents[1]
    places = {
        **os.environ,
        "PYTHONPATH": f"{root}{os.pathsep}{root / 'lab'}",
    }  # as pytest is told in pyproject.toml
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=places, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("flags", "left", "right"),
    [
        ("alpha = 0.5", "[2,3,4]", "[2,4,5]"),
        ("transBatchA = 1, transBatchB = 1, transB = 1", "[3,2,5,4]", "[7,2,5,4]"),
        ("transBatchA = 1, transA = 1, transB = 1", "[7,2,5,4]", "[2,5,3,7]"),
        ("transA = 1", "[2,4,3]", "[4,5]"),
    ],
)
def test_products_of_turned_stacks_are_those_of_onnx_runtime(flags, left, right):
    text = (
        f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float{left} x, float{right} y) => (float[] z) '
        f"{{ z = com.microsoft.FusedMatMul <{flags}> (x, y) }}"
    )
    model = onnx.parser.parse_model(text)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    random = np.random.default_rng(0)
    feeds = {
        value.name: random.normal(size=[dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in model.graph.input
    }
    (expected,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    np.testing.assert_allclose(Interpreter(model).run(feeds)["z"], expected, rtol=1e-5, atol=1e-6)
