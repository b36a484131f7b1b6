"""Poles at zero: which input of an operator meets one, and what keeps it from there."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision.poles import input_at_pole, up_to_bound
from tests import support
from tests.support import array, parse

NUMBERS = {
    "two": np.float32(2.0),
    "half": np.float32(0.5),
    "tiny": np.float32(1e-12),
    "none": np.float32(0.0),
    "several": np.float32([1e-12, 1.0, 1.0, 1.0]),
}


def nodes_of(text):
    proto = parse(f"(float[4] x, float[4] p) => (float[4] y) {{ {text} }}", imports=', "my.domain" : 1', **NUMBERS)
    model = ir.from_proto(proto)
    propagate_types(model)
    return list(model.graph)


POLES = {
    "a logarithm": ("y = Log (x)", "x"),
    "the lower side of a quotient": ("y = Div (p, x)", "x"),
    "a reciprocal": ("y = Reciprocal (x)", "x"),
    "a root": ("y = Pow (x, half)", "x"),
    "a power that is computed": ("y = Pow (x, p)", "x"),
    "no pole: a square": ("y = Pow (x, two)", None),
    "no pole: a product": ("y = Mul (x, p)", None),
    "not ONNX's own": ("y = my.domain.Log (x)", None),
}


@pytest.mark.parametrize(("text", "expected"), POLES.values(), ids=POLES)
def test_where_an_operator_has_a_pole(text, expected):
    found = input_at_pole(nodes_of(text)[-1])
    assert (None if found is None else found.name) == expected


BOUNDS = {
    "by Max": ("[c] a = Max (tiny, x) [l] y = Log (a)", "lc"),
    "by Clip": ("[c] a = Clip (x, tiny) [l] y = Log (a)", "lc"),
    "where numbers only move in between": ("[c] a = Clip (x, tiny) [t] b = Transpose (a) [l] y = Log (b)", "ltc"),
    "on the lower side": ("[c] a = Max (x, tiny) [l] y = Div (p, a)", "lc"),
    "not: on the upper side": ("[c] a = Max (x, tiny) [l] y = Div (a, p)", ""),
    "not: from above": ("[c] a = Clip (x, , two) [l] y = Log (a)", ""),
    "not: by zero": ("[c] a = Clip (x, none) [l] y = Log (a)", ""),
    "not: by numbers of which one may become zero": ("[c] a = Max (x, several) [l] y = Log (a)", ""),
    "not: by what is computed": ("[c] a = Max (x, p) [l] y = Log (a)", ""),
    "not: before arithmetic": ("[c] a = Max (x, tiny) [s] b = Mul (a, p) [l] y = Log (b)", ""),
    "not: nothing before it": ("[l] y = Log (x)", ""),
    "not: no pole": ("[c] a = Max (x, tiny) [l] y = Sqrt (a)", ""),
}


@pytest.mark.parametrize(("text", "expected"), BOUNDS.values(), ids=BOUNDS)
def test_what_keeps_an_input_from_its_pole(text, expected):
    assert "".join(str(node.name) for node in up_to_bound(nodes_of(text)[-1])) == expected


def decided(**options):
    """Return the precisions of a logarithm of numbers down to 1e-7, above a bound that float16 would make zero."""
    model = parse(
        """(float[4, 64] x) => (float[4, 16] y) {
        [product] h = MatMul (x, v) [square] s = Mul (h, h) [bound] c = Max (s, tiny) [log] l = Log (c)
        [after] y = MatMul (l, w) }""",
        **NUMBERS,
        v=np.diag(np.geomspace(3.5e-4, 1.0, 64)).astype(np.float32),
        w=array(64, 16, seed=2),
    )
    report = amp.transpile(model, inputs={"x": np.ones((4, 64), np.float32)}, tolerance=0.05, **options)
    return support.decisions(report)


def test_a_bounded_logarithm_may_be_low_near_zero_on_data():
    assert decided() == dict.fromkeys(("product", "square", "bound", "log", "after"), "low")


def test_it_is_low_only_together_with_its_bound():
    """After a float32 bound a cast could make zero of what it lets pass."""
    found = decided(disable_amp=["bound"])
    assert (found["bound"], found["log"]) == ("high", "high")
