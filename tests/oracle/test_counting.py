"""Counting of nodes in a file."""

from __future__ import annotations

import onnx.parser

from tests.oracle.counting import folded_nodes, low_nodes

MODEL = """<ir_version: 10, opset_import: ["": 21]> g (float16[2] x, bool c) => (float16[2] y) <float16[2] w = {1, 2}> {
    [one] k = Constant <value = float16[2] {1, 2}> () [two] a = Mul (w, k) [three] b = Mul (x, a) [four] r = Neg (b)
    [five] s = If (c) <then_branch = t () => (float16[2] p) { p = Neg (x) },
                       else_branch = e () => (float16[2] q) { q = Abs (w) }>
    [six] y = Add (r, s) }"""


def test_folded_nodes_read_constants_alone():
    assert folded_nodes(onnx.parser.parse_model(MODEL).graph) == {"one", "two"}


def test_low_nodes_are_those_of_every_scope_but_constants():
    assert sorted(low_nodes(onnx.parser.parse_model(MODEL))) == ["Abs", "Add", "Mul", "Mul", "Neg", "Neg"]
