"""Expressions and the nodes that they match."""

import onnx_ir as ir
import pytest

from amp_transpiler.graph.match import bindings, kind_of_constant, match_at, parse_form
from tests.support import array, parse

TWO, SEVEN, ROWS = array(1) * 0 + 2, array(1) * 0 + 7, array(2, 4)

# form: (nodes, the values that each way binds; empty for no match)
FORMS = {
    "Exp(a)": ("y = Exp (x)", [{"a": "x"}]),
    "Abs(a)": ("y = Exp (x)", []),
    "Exp(Abs(a))": ("b = Abs (x) y = Exp (b)", [{"a": "x"}]),
    "Exp(inner:Abs(a))": ("b = Abs (x) y = Exp (b)", [{"inner": "b", "a": "x"}]),
    "Exp(Neg(a))": ("b = Abs (x) y = Exp (b)", []),
    "Sub(a, a)": ("y = Sub (x, x)", [{"a": "x"}]),
    "Div(a, a)": ("b = Abs (x) y = Div (x, b)", []),
    "Sub(Abs(a), b)": ("c = Abs (x) y = Sub (x, c)", []),
    "Add(Abs(a), b)": ("c = Abs (x) y = Add (x, c)", [{"a": "x", "b": "x"}]),
    "Mul(a, b)": ("c = Abs (x) y = Mul (x, c)", [{"a": "x", "b": "c"}, {"a": "c", "b": "x"}]),
    "Mul(Exp(a), Mul(a, b))": ("c = Exp (x) d = Mul (two, x) y = Mul (c, d)", [{"a": "x", "b": "two"}]),
    "Add(x, c)": ("y = Add (two, x)", [{"x": "x"}]),
    "Add(x, x)": ("y = Add (x, two)", []),
    "Add(y, 2)": ("y = Add (x, two)", [{}]),
    "Add(y, 2.0)": ("y = Add (two, x)", [{}]),
    "Add(y, -2)": ("y = Add (x, two)", []),
    "Sub(y, 2)": ("y = Sub (x, seven)", []),
    "Mul(y, 2)": ("y = Mul (x, rows)", []),
    "Div(y, c)": ("y = Div (x, rows)", []),
    "Div(y, w)": ("y = Div (x, rows)", [{}]),
    "Div(y, scale:w)": ("y = Div (x, rows)", [{"scale": "rows"}]),
    "Div(y, scale:c)": ("y = Div (x, rows)", []),
    "Div(a:x, b:x)": ("y = Div (x, rows)", []),
    "Gemm(a, b)": ("t = Transpose (x) y = Gemm (x, t, two)", [{"a": "x", "b": "t"}]),
    "Gemm(t, r)": ("t = Transpose (x) y = Gemm (x, t, x)", []),
    "Gemm(a, b, bias)": ("t = Transpose (x) y = Gemm (x, t)", []),
    "FusedMatMul(a, b)": ("y = com.microsoft.FusedMatMul (x, x)", []),
}


def last(nodes):
    proto = parse(f"(float[2,4] x) => (float[a,b] y) {{ {nodes} }}", two=TWO, seven=SEVEN, rows=ROWS)
    return list(ir.from_proto(proto).graph)[-1]


@pytest.mark.parametrize(("form", "nodes", "ways"), [(form, *row) for form, row in FORMS.items()], ids=FORMS)
def test_a_form_matches(form, nodes, ways):
    matched = bindings(parse_form(form), last(nodes))
    assert [{name: value.name for name, value in binding.values.items()} for binding in matched] == ways


def test_a_binding_says_which_nodes_are_part_of_it():
    (binding,) = bindings(parse_form("Exp(inner:Abs(a))"), last("b = Abs (x) y = Exp (b)"))
    assert sorted(node.op_type for node in binding.nodes) == ["Abs", "Exp"]
    assert (binding.node("inner").op_type, binding.last.op_type) == ("Abs", "Exp")


@pytest.mark.parametrize(
    ("nodes", "matches"), [("b = Abs (x) y = Exp (b)", True), ("b = Abs (x) z = Neg (b) y = Exp (b)", False)]
)
def test_a_whole_is_read_nowhere_else(nodes, matches):
    assert (match_at(parse_form("Exp(Abs(x))"), last(nodes), kind_of_constant) is not None) == matches
