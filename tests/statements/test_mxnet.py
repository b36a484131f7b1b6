"""Statements of MXNet's pull request 20753 that no other test shows."""

import inspect

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import amp_transpiler as amp
from tests.support import array, casts, constant, dtype_of, dtypes, parse

W = array(4, 4, seed=1, scale=0.5)


def test_arguments_and_defaults_are_those_of_the_document():
    """Those of its three functions that an ONNX model has a use for."""
    parameters = list(inspect.signature(amp.convert_model).parameters.values())[1:]
    named = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    assert {parameter.name: parameter.default for parameter in named} == {
        "input_dtypes": None,
        "target_dtype": "float16",
        "target_dtype_ops": None,
        "fp32_ops": None,
        "conditional_fp32_ops": None,
        "excluded_sym_names": (),
        "cast_params_offline": False,
    }


def test_a_model_is_converted_without_running_it(monkeypatch):
    """Before the request, a block had to run once so that there was a graph."""

    def refuse(*_args, **_kwargs):
        raise AssertionError("a session was opened")

    monkeypatch.setattr(ort, "InferenceSession", refuse)
    program = amp.convert_model(parse("(float[n,4] x) => (float[n,4] y) { y = MatMul (x, w) }", w=W))
    assert dtypes(program, "MatMul") == ["FLOAT16"]


def test_nothing_is_taken_to_be_a_float():
    """Integers, doubles and what is low already in one model: each value keeps the type that it has."""
    model = parse(
        """(float[2,4] x, float16[2,4] h, double[2,4] d, int64[2] i)
            => (float[2,4] y, float16[2,4] g, double[2,4] e, int64[2] j, float[2,4] t) {
            y = MatMul (x, w) g = Add (h, h) e = Add (d, d) j = Add (i, i) t = Gather (y, i)
        }""",
        w=W,
    )
    program = amp.convert_model(model, {"x": "float32", "h": "float16", "d": "float64", "i": "int64"})
    onnx.checker.check_model(program.to_onnx(), full_check=True)
    assert [dtype_of(program, name) for name in "xhdigej"] == [
        "FLOAT",
        "FLOAT16",
        "DOUBLE",
        "INT64",
        "FLOAT16",
        "DOUBLE",
        "INT64",
    ]
    assert {source for _, source, _ in casts(program)} <= {"FLOAT", "FLOAT16"}


A_PLUS_B = """(float[2,4] x, float[2,4] c) => (float[2,4] y) {{
    a = MatMul (x, w) b = MatMul (x, v) y = Add ({0}, {1})
}}"""


@pytest.mark.parametrize(
    ("terms", "expected", "widened"),
    [(("a", "b"), "FLOAT16", []), (("a", "c"), "FLOAT", ["a"]), (("c", "b"), "FLOAT", ["b"])],
    ids=["both low", "the second float32", "the first float32"],
)
def test_a_plus_b(terms, expected, widened):
    """The discussion's example of the widest type: no cast among equals, and the low one goes up to the other."""
    program = amp.convert_model(parse(A_PLUS_B.format(*terms), w=W, v=array(4, 4, seed=2)))
    assert dtypes(program, "Add") == [expected]
    up = [name for name, _, to in casts(program) if to == "FLOAT" and name != "y"]
    assert [name for name in up if name in terms] == widened


@pytest.mark.parametrize("data", ["x", "r"], ids=["all float32", "beside a low one"])
def test_a_parameter_of_an_operator_of_the_widest_type_is_not_cast_offline(data):
    """The old option cast such parameters whatever came beside them. (Behind a product it would be its bias.)"""
    text = f"(float[2,4] x) => (float[2,4] y, float[2,4] r) {{ h = MatMul (x, w) r = Relu (h) y = Add ({data}, p) }}"
    program = amp.convert_model(parse(text, w=W, p=array(4)), cast_params_offline=True)
    assert constant(program, "w").dtype == np.float16
    assert constant(program, "p").dtype == np.float32
    assert dtypes(program, "Add") == ["FLOAT"]


def test_the_whole_model_is_cast_by_another_door():
    """Who wants all of it in float16 casts it: level O2, inputs and outputs too, leaves no cast."""
    model = parse("(float[2,4] x) => (float[2,4] y) { h = MatMul (x, w) e = Exp (h) y = Add (e, p) }", w=W, p=array(4))
    program = amp.transpile(model, level="O2", keep_io_types=False, verify=False).program
    assert casts(program) == []
    assert {constant(program, name).dtype for name in "wp"} == {np.dtype(np.float16)}
