"""The reference matcher of written-out operators: forms that exporters write, and what only looks like them."""

import pytest

import count_recognised
from programs.written_out import KINDS, written_out
from tests import fusions
from tests.support import array, parse

_KIND_OF = {"GELU": "Gelu", "LayerNormalization": "LayerNormalization", "RMSNormalization": "RMSNormalization"}
OTHERS = {
    "a deviation that divides nothing of it": "mu = ReduceMean (x, last) d = Sub (x, mu) p = Mul (d, d) "
    "v = ReduceMean (p, last) ve = Add (v, eps) sd = Sqrt (ve) y = Div (w, sd)",
    "over rows": "p = Mul (x, x) v = ReduceMean (p, first) ve = Add (v, eps) sd = Sqrt (ve) y = Div (x, sd)",
    "an error function alone": "e = Erf (x) a = Add (e, one) y = Mul (a, w)",
    "a softmax of scores that weighs nothing": "s = MatMul (x, w) y = Softmax (s)",
}


def kind_of(name):
    known = next((kind for word, kind in _KIND_OF.items() if name.startswith(word)), None)
    return "Attention" if name.startswith("a mask") else known


@pytest.mark.parametrize("name", fusions.FUSIONS)
def test_every_form_is_counted_once(name):
    kind = kind_of(name)
    assert written_out(fusions.model(name)) == {form: int(form == kind) for form in KINDS}


FAST = (
    "s = ReduceSum <keepdims = 0> (x, axis) mu = Mul (s, eighth) ss = Mul (mu, mu) p = Mul (x, x)"
    " t = ReduceSum <keepdims = 0> (p, axis) m2 = Mul (t, eighth) v0 = Sub (m2, ss) v1 = Max (zero, v0)"
    " v = Unsqueeze (v1, axis) ve = Add (v, eps) sd = Sqrt (ve) mean = Unsqueeze (mu, axis) d = Sub (x, mean)"
    " y = Div (d, sd)"
)


@pytest.mark.parametrize(("axis", "count"), [(-1, 1), (1, 1), (0, 0)])
def test_a_variance_as_a_difference_of_means_counts_over_the_last_axis(axis, count):
    numbers = {"eighth": array_of(0.125), "zero": array_of(0.0), "eps": array_of(1e-5), "axis": array_of([axis])}
    proto = parse(f"(float[8,8] x) => (float[8,8] y) {{ {FAST} }}", **numbers)
    assert written_out(proto) == {kind: count * (kind == "LayerNormalization") for kind in KINDS}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_what_only_looks_like_one_is_not_counted(text):
    constants = {"w": array(8, 8, seed=1), "last": [-1], "first": [0], "eps": 1e-5, "one": 1.0}
    numbers = {name: array_of(value) for name, value in constants.items()}
    assert not any(written_out(parse(f"(float[8,8] x) => (float[8,8] y) {{ {text} }}", **numbers)).values())


def array_of(value):
    import numpy as np

    return np.array(value, np.int64 if isinstance(value, list) else np.float32)


def test_a_model_is_held_against_its_conversion(tmp_path):
    import onnx

    name = "LayerNormalization"
    onnx.save(fusions.model(name), tmp_path / "m.onnx")
    row = count_recognised.counted(tmp_path / "m.onnx")
    assert row is not None
    assert (row["written"][name], row["fused"][name]) == (1, 1)
    assert f"{name}: 1 of 1 (100.0%), in 1 models" in count_recognised.summary([row])
