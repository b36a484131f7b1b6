"""The precision of what control flow passes on: votes, and both sides alike."""

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from tests import support
from tests.support import array, parse

W = array(4, 4, seed=1, scale=0.5)
X = {"x": array(2, 4)}


def loop(body, before="", after="y = Identity (r)", result="float[2,4] y", start="x"):
    return parse(
        f"""(float[2,4] x) => ({result}) <int64 n = {{3}}, bool c = {{1}}> {{
            {before} r = Loop (n, c, {start}) <body = b (int64 i, bool k, float[2,4] a) => (bool k2, float[2,4] a2) {{
                k2 = Identity (k) {body}
            }}> {after}
        }}""",
        w=W,
        v=array(2, 4, seed=3),
    )


def branch(then, otherwise, before="h = MatMul (x, w)", after="y = MatMul (r, w)", outputs="float[2,4] y"):
    return parse(
        f"""(float[2,4] x, bool c) => ({outputs}) {{
            {before} r = If (c) <then_branch = t () => (float[2,4] p) {{ {then} }},
                                 else_branch = e () => (float[2,4] q) {{ {otherwise} }}> {after}
        }}""",
        w=W,
    )


YES = {**X, "c": np.array(True)}
PORTS = {
    # name: (model, feeds, type of r at O1)
    "made low, read low": (
        loop("a2 = MatMul (a, w)", "h = MatMul (x, w)", "y = MatMul (r, w)", start="h"),
        X,
        "FLOAT16",
    ),
    "made high, read high": (loop("a2 = Softmax (a)", "h = Softmax (x)", "y = Log (r)", start="h"), X, "FLOAT"),
    "a tie: a state accumulates in float32": (
        loop("a2 = MatMul (a, w)", "h = Exp (x)", "y = Log (r)", start="h"),
        X,
        "FLOAT",
    ),
    "branches both low": (branch("p = MatMul (h, w)", "q = Relu (h)"), YES, "FLOAT16"),
    "branches both high, read high": (branch("p = Exp (h)", "q = Exp (x)", after="y = Exp (r)"), YES, "FLOAT"),
    "branches differ, read low: two against one": (branch("p = Exp (h)", "q = MatMul (h, w)"), YES, "FLOAT16"),
    "branches differ, read high: two against one": (
        branch("p = Exp (h)", "q = MatMul (h, w)", after="y = Exp (r)"),
        YES,
        "FLOAT",
    ),
    "an output of the program votes for float32": (
        branch(
            "p = Exp (h)",
            "q = MatMul (h, w)",
            after="t = Shape (r) y = Reshape (h, t)",
            outputs="float[2,4] r, float[2,4] y",
        ),
        YES,
        "FLOAT",
    ),
    "one output of many: a vote each, no more": (
        branch("p = Relu (h)", "q = MatMul (h, w)", after="y = MatMul (r, w)", outputs="float[2,4] r, float[2,4] y"),
        YES,
        "FLOAT16",
    ),
    "two readers of one precision have one vote": (
        branch("p = Relu (h)", "q = MatMul (h, w)", after="a = Exp (r) b = Log (r) y = Add (a, b)"),
        YES,
        "FLOAT16",
    ),
    "a state that begins as a constant": (
        loop("a2 = MatMul (h, w)", "h = MatMul (x, w)", "t = Shape (r) y = Reshape (h, t)", start="v"),
        X,
        "FLOAT16",
    ),
    "a state that begins as an input": (
        loop("a2 = MatMul (h, w)", "h = MatMul (x, w)", "t = Shape (r) y = Reshape (h, t)", start="x"),
        X,
        "FLOAT",
    ),
    "constants that any operator reads: no vote at all": (
        branch(
            "p = Constant <value = float[2,4] {1,2,3,4,5,6,7,8}> ()",
            "q = Constant <value = float[2,4] {8,7,6,5,4,3,2,1}> ()",
            after="t = Shape (r) y = Reshape (h, t)",
        ),
        YES,
        "FLOAT",
    ),
    "states that change places": (
        parse(
            """(float[2,4] x) => (float[2,4] y) <int64 n = {3}, bool c = {1}> {
                h = MatMul (x, w)
                r, s = Loop (n, c, h, h) <body = b (int64 i, bool k, float[2,4] a, float[2,4] d)
                    => (bool k2, float[2,4] d, float[2,4] a) { k2 = Identity (k) }>
                t = Shape (r) y = Reshape (h, t)
            }""",
            w=W,
        ),
        X,
        "FLOAT16",
    ),
    "branches differ, read by any: a tie goes low": (
        branch("p = Exp (h)", "q = MatMul (h, w)", after="s = Shape (r) y = Reshape (h, s)"),
        YES,
        "FLOAT16",
    ),
}


@pytest.mark.parametrize("name", PORTS)
def test_a_port_is_low_where_that_saves_casts(name):
    model, feeds, expected = PORTS[name]
    report = support.convert(model, feeds, "O1")
    (owner,) = [node for node in report.program.model.graph if node.op_type in ("Loop", "If")]
    assert owner.outputs[0].dtype.name == expected


@pytest.mark.parametrize("name", PORTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_both_sides_of_a_port_have_one_type(name, dtype, level):
    model, feeds, _ = PORTS[name]
    program = support.convert(model, feeds, level, dtype).program
    (owner,) = [node for node in program.model.graph if node.op_type in ("Loop", "If")]
    result = owner.outputs[0].dtype
    for attribute in owner.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            assert attribute.as_graph().outputs[-1].dtype == result
            assert all(value.dtype == result for value in attribute.as_graph().inputs[2:])
    if owner.op_type == "Loop":
        assert owner.inputs[2].dtype == result


SECOND = {
    # name: (states at the start, body, second result at O1)
    "behind one that is no float": ("n, h", "int64 j", "int64 j2", "j2 = Identity (j) a2 = MatMul (a, w)", "FLOAT16"),
    "its source was decided float32 before": ("e, h", "float[2,4] d", "float[2,4] d2, ", "d2 = Exp (d)", "FLOAT"),
}


@pytest.mark.parametrize("name", SECOND)
def test_the_second_of_two_states(name):
    start, first, out, body, expected = SECOND[name]
    second = "float[2,4] a2" if "a2" in body else "float[2,4] d"
    model = parse(
        f"""(float[2,4] x) => (float[2,4] y) <int64 n = {{3}}, bool c = {{1}}> {{
            h = MatMul (x, w) e = Exp (x)
            r, s = Loop (n, c, {start}) <body = b (int64 i, bool k, {first}, float[2,4] a)
                => (bool k2, {out.rstrip(", ")}, {second}) {{ k2 = Identity (k) {body} }}>
            t = Shape (s) y = Reshape (h, t)
        }}""",
        w=W * 0.1,
    )
    program = support.convert(model, X, "O1").program
    (owner,) = support.nodes(program, "Loop")
    assert owner.outputs[1].dtype.name == expected


def test_a_port_that_only_leaves_its_body_is_no_output_of_the_program():
    model = branch(
        """p = If (c) <then_branch = t2 () => (float[2,4] p2) { p2 = MatMul (h, w) },
                       else_branch = e2 () => (float[2,4] q2) { q2 = Exp (h) }>""",
        "q = MatMul (h, w)",
    )
    assert support.dtype_of(support.convert(model, YES, "O1").program, "p") == "FLOAT16"


def test_a_format_that_control_flow_does_not_know_stays_outside():
    """If passes bfloat16 on from opset 16 on."""
    for opset, expected in ((13, "FLOAT"), (16, "BFLOAT16")):
        model = branch("p = MatMul (h, w)", "q = MatMul (h, w)")
        model.opset_import[0].version = opset
        program = amp.transpile(model, level="O1", dtype="bfloat16", verify=False).program
        assert support.dtype_of(program, "r") == expected


def test_an_accumulating_state_stays_float32_at_o1():
    """A sum over many steps in float16 stops growing: 2049 ones give 2048."""
    model = parse(
        """(float[1,4] x) => (float[1,4] y) <int64 n = {2100}, bool c = {1}, float[1,4] z = {0,0,0,0}> {
            h = MatMul (x, w)
            y = Loop (n, c, z) <body = b (int64 i, bool k, float[1,4] a) => (bool k2, float[1,4] a2) {
                k2 = Identity (k) e = Exp (h) l = Log (e) a2 = Add (a, l)
            }>
        }""",
        w=np.eye(4, dtype=np.float32),
    )
    report = support.convert(model, {"x": np.ones((1, 4), np.float32)}, "O1", limit=1e-3)
    assert support.dtype_of(report.program, "y") == "FLOAT"


def test_a_scan_output_is_low_where_it_is_made_and_read_low():
    model = parse(
        """(float[2,4] x) => (float[N,2,4] y) <int64 n = {3}, bool c = {1}> {
            f, s = Loop (n, c, x) <body = b (int64 i, bool k, float[2,4] a) => (bool k2, float[2,4] a2, float[2,4] o) {
                k2 = Identity (k) a2 = Tanh (a) o = MatMul (a, w)
            }>
            y = MatMul (s, w)
        }""",
        w=W,
    )
    assert support.dtype_of(support.convert(model, X, "O1").program, "s") == "FLOAT16"


def test_inner_ports_are_settled_before_outer_ones():
    model = branch(
        """p = If (c) <then_branch = t2 () => (float[2,4] p2) { p2 = MatMul (h, w) },
                       else_branch = e2 () => (float[2,4] q2) { q2 = MatMul (x, w) }>""",
        "q = MatMul (h, w)",
    )
    program = support.convert(model, YES, "O2").program
    assert (support.dtype_of(program, "r"), support.dtype_of(program, "p")) == ("FLOAT16", "FLOAT16")
    assert [(source, target) for source, _, target in support.casts(program)] == [
        ("x", "FLOAT16"),
        ("y__amp_before_fp32", "FLOAT"),
    ]
