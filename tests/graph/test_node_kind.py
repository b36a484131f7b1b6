"""Kinds of nodes: which differences count and which do not."""

import onnx_ir as ir
import pytest

from amp_transpiler.graph.node_kind import UNTYPED, kind_of
from amp_transpiler.graph.types import propagate_types
from tests.support import parse


def nodes(text, opset=18):
    model = ir.from_proto(parse(text, opset=opset))
    propagate_types(model)
    return list(model.graph)


def kinds(text, opset=18, **options):
    return [kind_of(node, opset, **options) for node in nodes(text, opset)]


SAME = {
    "names and shapes": "(float[2] x, float[3] z) => (float[2] y, float[3] w) { [a] y = Relu (x) [b] w = Relu (z) }",
    "order of attributes": "(float[4,4] x) => (float[4,4] y, float[4,4] z) "
    "{ y = Gemm <alpha=2.0, transA=1> (x, x) z = Gemm <transA=1, alpha=2.0> (x, x) }",
    "contents of a tensor attribute": "() => (float[1] y, float[1] z) "
    "{ y = Constant <value = float[1] {1.0}> () z = Constant <value = float[1] {2.0}> () }",
}
DIFFERENT = {
    "operator": "(float[2] x) => (float[2] y, float[2] z) { y = Relu (x) z = Neg (x) }",
    "domain": "(float[2] x) => (float[2] y, float[2] z) { y = Gelu (x) z = com.microsoft.Gelu (x) }",
    "input type": "(float[2] x, double[2] w) => (float[2] y, double[2] z) { y = Relu (x) z = Relu (w) }",
    "number of inputs": "(float[2] x) => (float[2] y, float[2] z) { y = Clip (x) z = Clip (x, x) }",
    "missing input": "(float[2] x, float a) => (float[2] y, float[2] z) { y = Clip (x, a, a) z = Clip (x, , a) }",
    "attribute": "(float[4,4] x) => (float[4,4] y, float[4,4] z) { y = Gemm (x, x) z = Gemm <transA=1> (x, x) }",
    "value of an attribute": "(float[2] x) => (float[2] y, int64[2] z) { y = Cast <to=1> (x) z = Cast <to=7> (x) }",
    "list of an attribute": "(float[2,3] x) => (float[3,2] y, float[2,3] z) "
    "{ y = Transpose <perm=[1,0]> (x) z = Transpose <perm=[0,1]> (x) }",
    "element type of a tensor attribute": "() => (float[1] y, double[1] z) "
    "{ y = Constant <value = float[1] {1.0}> () z = Constant <value = double[1] {1.0}> () }",
}


@pytest.mark.parametrize("name", SAME)
def test_nodes_of_one_kind(name):
    first, second = kinds(SAME[name])
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize("name", DIFFERENT)
def test_nodes_of_two_kinds(name):
    first, second = kinds(DIFFERENT[name])
    assert first != second


def test_what_a_kind_says():
    (kind,) = kinds("(float[2] x, float a) => (float[2] y) { y = Clip (x, , a) }")
    assert kind == ("", "Clip", 13, ("tensor(float)", None, "tensor(float)"), ("tensor(float)",), (), False)


def test_the_schema_version_counts_not_the_opset():
    (node,) = nodes("(float[2] x) => (float[2] y) { y = Relu (x) }")
    assert kind_of(node, 14) == kind_of(node, 18)
    assert kind_of(node, 13) != kind_of(node, 14)


def test_both_spellings_of_the_standard_domain_are_one_kind():
    (node,) = nodes("(float[2] x) => (float[2] y) { y = Relu (x) }")
    plain = kind_of(node, 18)
    node.domain = "ai.onnx"
    assert kind_of(node, 18) == plain


def test_without_outputs_their_types_do_not_count():
    (node,) = nodes("(float[2] x) => (float[2] y) { y = Relu (x) }")
    typed = kind_of(node, 18, outputs=False)
    node.outputs[0].type = None
    assert kind_of(node, 18, outputs=False) == typed
    assert kind_of(node, 18).outputs == (UNTYPED,)


def test_an_unknown_operator_has_no_version():
    (kind,) = kinds("(float[2] x) => (float[2] y) { y = custom.Frobnicate (x) }")
    assert (kind.domain, kind.version, kind.outputs) == ("custom", None, ("tensor(float)",))


def test_a_node_with_a_body_says_so():
    branches = "then_branch = t () => (float[2] p) { p = Neg (x) }, else_branch = e () => (float[2] q) { q = Abs (x) }"
    (kind,) = kinds(f"(float[2] x, bool c) => (float[2] y) {{ y = If (c) <{branches}> }}")
    assert kind.has_body
