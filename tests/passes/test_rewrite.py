"""Rows of patterns and replacements, and what they make of a model."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.passes.manager import Pass, PassResult, run_pass
from amp_transpiler.passes.rewrite import Rewrite, rewrite
from tests.support import array, parse, run

INVERSE = Rewrite("Reciprocal(Exp(a))", "Exp(Neg(a))")
DIVISION = Rewrite("Reciprocal(a)", "Div(1, a)")
TWICE = Rewrite("Neg(Neg(a))", "a")
SQUARE = Rewrite("Pow(a, 2)", "Mul(a, a)", applies=lambda match: match["a"].name == "x")
SWAPPED = Rewrite("Add(a, b)", "Sub(b, a)", applies=lambda match: match["b"].name == "x")
TURNED = Rewrite("Transpose(a)", "Transpose(a)", attributes=lambda match: {"perm": [0, 1]})
SOURCE = Rewrite("Abs(a)", lambda match: match["a"])

# name: (rows, nodes before, nodes after, replacements)
ROWS = {
    "no match": ((INVERSE,), "y = Exp (x)", "y = Exp(x)", 0),
    "new nodes before the last": (
        (INVERSE,),
        "e = Exp (x) y = Reciprocal (e)",
        "y/Neg_output = Neg(x); y = Exp(y/Neg_output)",
        1,
    ),
    "a shared part stays": (
        (INVERSE,),
        "e = Exp (x) i = Reciprocal (e) y = Add (e, i)",
        "e = Exp(x); i/Neg_output = Neg(x); i = Exp(i/Neg_output); y = Add(e, i)",
        1,
    ),
    "the first row that matches": (
        (INVERSE, DIVISION),
        "e = Exp (x) y = Reciprocal (e)",
        "y/Neg_output = Neg(x); y = Exp(y/Neg_output)",
        1,
    ),
    "the next row": (
        (INVERSE, DIVISION),
        "y = Reciprocal (x)",
        "y/Constant_output = Constant(); y = Div(y/Constant_output, x)",
        1,
    ),
    "several": (
        (SQUARE,),
        "a = Pow (x, two) b = Pow (x, two) y = Add (a, b)",
        "a = Mul(x, x); b = Mul(x, x); y = Add(a, b)",
        2,
    ),
    "a condition that fails": ((SQUARE,), "a = Abs (x) y = Pow (a, two)", "a = Abs(x); y = Pow(a, two)", 0),
    "the other order meets the condition": ((SWAPPED,), "a = Exp (x) y = Add (x, a)", "a = Exp(x); y = Sub(x, a)", 1),
    "attributes": ((TURNED,), "y = Transpose <perm = [1, 0]> (x)", "y = Transpose(x)", 1),
    "another value is read": ((TWICE,), "a = Neg (x) b = Neg (a) y = Exp (b)", "y = Exp(x)", 1),
    "a value that a function gives": ((SOURCE,), "a = Abs (x) y = Exp (a)", "y = Exp(x)", 1),
    "an output keeps its node": ((TWICE,), "a = Neg (x) y = Neg (a)", "a = Neg(x); y = Neg(a)", 0),
    "a chain": ((TWICE,), "a = Neg (x) b = Neg (a) c = Neg (b) d = Neg (c) y = Exp (d)", "y = Exp(x)", 2),
    "an odd chain": ((TWICE,), "a = Neg (x) b = Neg (a) c = Neg (b) y = Exp (c)", "c = Neg(x); y = Exp(c)", 1),
}


class Rows(Pass[PassResult]):
    def __init__(self, rows):
        self.rows = rows

    def call(self, model):
        count = rewrite(model, self.rows)
        return PassResult(model, modified=bool(count), count=count)


def written(graph):
    return "; ".join(f"{node.output[0]} = {node.op_type}({', '.join(node.input)})" for node in graph.node)


def program_of(nodes, **constants):
    proto = parse(f"(float[2,4] x) => (float[a,b] y) {{ {nodes} }}", two=np.float32(2), **constants)
    for node in proto.graph.node:
        node.name = node.output[0]
    program = ir.from_proto(proto)
    propagate_types(program)
    return proto, program


@pytest.mark.parametrize(("rows", "before", "after", "count"), ROWS.values(), ids=ROWS)
def test_rows(rows, before, after, count):
    _, program = program_of(before)
    result = run_pass(Rows(rows), program)
    changed = ir.to_proto(program)
    assert (written(changed.graph), result.count) == (after, count)
    onnx.checker.check_model(changed)


def test_the_numbers_stay():
    proto, program = program_of("e = Exp (x) i = Reciprocal (e) z = Reciprocal (e) y = Sub (i, z)")
    rewrite(program, (INVERSE,))
    feeds = {"x": array(2, 4)}
    np.testing.assert_allclose(run(proto, feeds)["y"], run(ir.to_proto(program), feeds)["y"], atol=1e-6)


def test_a_number_takes_the_type_of_the_result():
    proto = parse("(float16[2] x) => (float16[2] y) { y = Reciprocal (x) }")
    program = ir.from_proto(proto)
    propagate_types(program)
    rewrite(program, (DIVISION,))
    node, _ = ir.to_proto(program).graph.node
    assert node.attribute[0].t.data_type == onnx.TensorProto.FLOAT16


def test_without_a_type_no_number_is_written():
    program = ir.from_proto(parse("(float[2] x) => (float[2] y) { a = Reciprocal (x) y = Exp (a) }"))
    assert not rewrite(program, (DIVISION,))


def test_new_nodes_carry_the_metadata_of_the_last():
    _, program = program_of("e = Exp (x) y = Reciprocal (e)")
    list(program.graph)[-1].metadata_props["role"] = "optimize"
    rewrite(program, (INVERSE,))
    assert [node.metadata_props.get("role") for node in program.graph] == ["optimize", "optimize"]


def test_bodies_are_rewritten_too():
    body = "{ e = Exp (x) b = Reciprocal (e) }"
    text = (
        f"y = If (on) <then_branch = then () => (float[2,4] b) {body}, else_branch = other () => (float[2,4] b) {body}>"
    )
    proto = parse(f"(float[2,4] x, bool on) => (float[2,4] y) {{ {text} }}")
    program = ir.from_proto(proto)
    propagate_types(program)
    (main,) = program.graph
    assert rewrite(program, (INVERSE,), program.graph) == 0
    assert rewrite(program, (INVERSE,)) == 2
    branches = [attribute.as_graph() for attribute in main.attributes.values()]
    assert [[node.op_type for node in branch] for branch in branches] == [["Neg", "Exp"], ["Neg", "Exp"]]
    feeds = {"x": array(2, 4), "on": np.array(True)}
    np.testing.assert_allclose(run(proto, feeds)["y"], run(ir.to_proto(program), feeds)["y"], rtol=1e-6)


def test_a_node_that_went_with_another_is_passed_over():
    _, program = program_of("a = Neg (x) b = Neg (a) c = Neg (b) d = Exp (c) e = Neg (d) f = Neg (e) y = Abs (f)")
    node = {str(node.name): node for node in program.graph}
    assert rewrite(program, (TWICE,), [node["c"], node["b"], node["f"]]) == 2
    assert written(ir.to_proto(program).graph) == "a = Neg(x); d = Exp(a); y = Abs(d)"
