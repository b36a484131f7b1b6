"""Poles at zero: which input of an operator meets one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision.pole_operators import input_at_pole
from tests.support import parse

NUMBERS = {
    "two": np.float32(2.0),
    "half": np.float32(0.5),
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
    pole_input = input_at_pole(nodes_of(text)[-1])
    assert (None if pole_input is None else pole_input.name) == expected
