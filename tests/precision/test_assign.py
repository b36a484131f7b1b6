"""Deciding: Paddle's priorities, its gray rule, promotion and regions, on small graphs."""

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.errors import OptionError
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.regions import FP16_GUARD, INCLUDE, REGION_KEY
from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.precision.assign import assign
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.rules import Rules
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.systems.choice import Request, choose_policy
from amp_transpiler.targets import CUDA
from tests import support
from tests.support import Knows, array, parse

W = array(4, 4, seed=1, scale=0.5)
IMAGE = array(3, 3, 3, 3, seed=2, scale=0.3)


def decided(body, level="O1", *, opset=18, head="(float[2,4] x) => (float[2,4] y)", marks=(), **options):
    """Convert `body` and return node name -> precision."""
    weights = {name: W for name in ("w", "v") if f" {name})" in body}
    if "image" in body:
        weights["image"] = IMAGE
    program = amp.load(parse(f"{head} {{ {body} }}", opset=opset, **weights))
    for kind, pattern in marks:
        amp.mark_region(program, kind, nodes=pattern)
    report = amp.transpile(program, level=level, verify=False, **options, prefer="size")
    support.assert_valid(report.program)
    return support.decisions(report)


# ---- O1: the gray rule ----

GRAY = {
    # name: (body, precision of node g)
    "behind white": ("h = MatMul (x, w) [g] y = Relu (h)", "low"),
    "behind black": ("h = Exp (x) [g] y = Relu (h)", "high"),
    "black wins over white": ("h = MatMul (x, w) e = Exp (x) [g] y = Add (h, e)", "high"),
    "black wins over white, in the other order": ("h = MatMul (x, w) e = Exp (x) [g] y = Add (e, h)", "high"),
    "behind an input: left alone": ("[g] y = Relu (x)", "high"),
    "behind a parameter: left alone": ("[g] a = Add (x, v) y = MatMul (a, w)", "high"),
    "behind white and an input": ("h = MatMul (x, w) [g] y = Add (h, x)", "low"),
    "behind white and a parameter": ("h = MatMul (x, w) [g] y = Mul (h, v)", "low"),
    "behind low gray": ("h = MatMul (x, w) r = Relu (h) [g] y = Tanh (r)", "low"),
    "behind gray that was left alone": ("r = Relu (x) [g] y = Tanh (r)", "high"),
    "behind gray that was left alone, and white": ("r = Relu (x) h = MatMul (r, w) [g] y = Add (h, r)", "low"),
    "behind high gray and white": ("e = Exp (x) r = Relu (e) h = MatMul (x, w) [g] y = Add (h, r)", "high"),
    "behind unlisted, which is high": ("e = Gelu (x) [g] y = Relu (e)", "high"),
}


@pytest.mark.parametrize("name", GRAY)
def test_the_gray_rule(name):
    body, expected = GRAY[name]
    head = "(float[4,4] x) => (float[4,4] y)"
    assert decided(body, head=head, opset=20)["g"] == expected


LISTED = {
    # name: (body, level, lists, precision of node n)
    "white at O1": ("[n] y = MatMul (x, w)", "O1", {}, "low"),
    "black at O1": ("[n] y = Softmax (x)", "O1", {}, "high"),
    "unlisted at O1": ("h = MatMul (x, w) [n] y = Gelu (h)", "O1", {}, "high"),
    "1.4: black is lifted at O2": ("[n] y = Softmax (x)", "O2", {}, "low"),
    "1.4: unlisted is low at O2": ("[n] y = Gelu (x)", "O2", {}, "low"),
    "1.4: custom black holds at O2": ("[n] y = MatMul (x, w)", "O2", {"custom_black_list": ["MatMul"]}, "high"),
    "custom black pooling holds at O2": ("[n] y = Relu (x)", "O2", {"custom_black_list": ["relu"]}, "high"),
    "custom white Exp is low at O1": ("[n] y = Exp (x)", "O1", {"custom_white_list": ["Exp"]}, "low"),
    "custom white Tanh": ("[n] y = Tanh (x)", "O1", {"custom_white_list": ["Tanh"]}, "low"),
    "custom black MatMul": ("[n] y = MatMul (x, w)", "O1", {"custom_black_list": ["MatMul"]}, "high"),
    "custom black Tanh": ("h = MatMul (x, w) [n] y = Tanh (h)", "O1", {"custom_black_list": ["Tanh"]}, "high"),
    "1.4: a black name that is read, O1": ("[n] y = MatMul (x, w)", "O1", {"custom_black_varnames": ["w"]}, "high"),
    "1.4: a black name that is read, O2": ("[n] y = MatMul (x, w)", "O2", {"custom_black_varnames": ["x"]}, "high"),
    "1.1: a black name that is written": ("[n] y = MatMul (x, w)", "O1", {"custom_black_varnames": ["y"]}, "high"),
    "a black name wins over custom white": (
        "[n] y = Exp (x)",
        "O1",
        {"custom_white_list": ["Exp"], "custom_black_varnames": ["x"]},
        "high",
    ),
    "another's black name is nothing to it": (
        "[n] h = MatMul (x, w) y = MatMul (h, v)",
        "O1",
        {"custom_black_varnames": ["v"]},
        "low",
    ),
    "OD: white": ("[n] y = MatMul (x, w)", "OD", {}, "low"),
    "OD: gray": ("h = MatMul (x, w) [n] y = Relu (h)", "OD", {}, "high"),
    "OD: custom white": ("h = MatMul (x, w) [n] y = Relu (h)", "OD", {"custom_white_list": ["Relu"]}, "low"),
    "O0: white": ("[n] y = MatMul (x, w)", "O0", {}, "untouched"),
    "O0: custom white": ("[n] y = Relu (x)", "O0", {"custom_white_list": ["Relu"]}, "untouched"),
}


@pytest.mark.parametrize("name", LISTED)
def test_lists_and_levels(name):
    body, level, lists, expected = LISTED[name]
    decisions = decided(
        body, level, opset=20, head="(float[4,4] x) => (float[4,4] y)", amp_lists=amp.AutoMixedPrecisionLists(**lists)
    )
    assert decisions["n"] == expected


def test_a_custom_white_add_leaves_the_black_ones_behind_it():
    lists = amp.AutoMixedPrecisionLists(custom_white_list=["Add"])
    body = "[add] a = Add (x, x) [mean] m = ReduceMean <keepdims = 1> (a) [log] l = Log (m) [sum] y = Mul (x, l)"
    decisions = decided(body, amp_lists=lists)
    assert (decisions["add"], decisions["mean"], decisions["log"], decisions["sum"]) == ("low", "high", "high", "high")


def test_one_convolution_by_the_name_of_its_weight():
    head = "(float[1,3,8,8] x) => (float[1,3,2,2] y)"
    body = "[first] a = Conv (x, image) [second] b = Conv (a, other) [third] y = Conv (b, other)"
    text = f"{head} {{ {body} }}"
    model = parse(text, image=IMAGE, other=IMAGE)
    lists = amp.AutoMixedPrecisionLists(custom_black_varnames=["image"])
    report = support.convert(model, {"x": array(1, 3, 8, 8)}, "O1", amp_lists=lists)
    assert support.decisions(report) == {"first": "high", "second": "low", "third": "low"}


# ---- guard, OD, promotion ----

# A convolution, a cast to float32 and a linear layer.
PROMOTED = """(float[1,3,4,4] x) => (float[1,1] y) {
    [conv] c = Conv (x, image) [bias] a = Add (c, bc) [cast] u = Cast <to = 1> (a) [relu] r = Relu (u)
    [flat] f = Flatten (r) [matmul] m = MatMul (f, w) [bias2] b = Add (m, bm) [softmax] s = Softmax (b) [mean] y
        = ReduceMean (s)
}"""


def promoted(level, *, promote):
    model = parse(PROMOTED, image=IMAGE, bc=array(3, 1, 1), w=array(12, 4, scale=0.3), bm=array(4))
    report = support.convert(model, {"x": array(1, 3, 4, 4)}, level, use_promote=promote)
    decisions = support.decisions(report)
    return {name for name in ("conv", "bias", "relu", "matmul", "bias2", "softmax", "mean") if decisions[name] == "low"}


PROMOTION = {
    "O1 with promotion": ("O1", True, {"conv", "matmul"}),
    "O2 with promotion": ("O2", True, {"conv", "bias", "matmul", "bias2", "softmax", "mean"}),
    "O2 without": ("O2", False, {"conv", "bias", "relu", "matmul", "bias2", "softmax", "mean"}),
    "OD": ("OD", False, {"conv", "matmul"}),
    "OD with promotion": ("OD", True, {"conv", "matmul"}),
}


@pytest.mark.parametrize("name", PROMOTION)
def test_promotion(name):
    level, promote, expected = PROMOTION[name]
    assert promoted(level, promote=promote) == expected


PROMOTED_NODES = {
    # name: (body, level, precision of node n)
    "1.4: a float32 feed holds a node": ("[n] y = Add (x, x)", "O2", "high"),
    "a low input does not": ("h = MatMul (x, w) [n] y = Relu (h)", "O2", "low"),
    "one float32 input is enough": ("h = MatMul (x, w) [n] y = Add (h, x)", "O2", "high"),
    "a parameter is low at O2": ("h = MatMul (x, w) [n] y = Add (h, v)", "O2", "low"),
    "a parameter is float32 at O1": ("h = MatMul (x, w) [n] y = Add (h, v)", "O1", "high"),
    "white is not promoted": ("e = Exp (x) [n] y = MatMul (e, w)", "O1", "low"),
    "black is not demoted": ("h = MatMul (x, w) [n] y = Exp (h)", "O1", "high"),
    "behind a float32 path": ("h = MatMul (x, w) u = Cast <to = 1> (h) [n] y = Relu (u)", "O2", "high"),
}


@pytest.mark.parametrize("name", PROMOTED_NODES)
def test_promotion_of_one_node(name):
    body, level, expected = PROMOTED_NODES[name]
    decisions = decided(body, level, head="(float[4,4] x) => (float[4,4] y)", use_promote=True)
    assert decisions["n"] == expected


REGIONS = {
    # name: (level, marks, low nodes of a, b, c)
    "no region": ("O2", [], {"a", "b", "c"}),
    "guard around one": ("O2", [("fp16_guard", "^a$")], {"a"}),
    "1.4: the guard holds white operators, too": ("O1", [("fp16_guard", "^b$")], set()),
    "guard around two": ("O2", [("fp16_guard", "^(a|b)$")], {"a", "b"}),
    "disable_amp around one": ("O2", [("disable_amp", "^c$")], {"a", "b"}),
    "disable_amp wins over a guard": ("O2", [("fp16_guard", "a|b|c"), ("disable_amp", "^a$")], {"b", "c"}),
    "a guard inside disable_amp does not count": ("O2", [("disable_amp", "a|b|c"), ("fp16_guard", "^a$")], set()),
    "guard at auto": ("auto", [("fp16_guard", "^a$")], {"a"}),
}


@pytest.mark.parametrize("name", REGIONS)
def test_regions(name):
    level, marks, expected = REGIONS[name]
    decisions = decided("[a] h = MatMul (x, w) [b] r = Relu (h) [c] y = MatMul (r, w)", level, marks=marks)
    assert {node for node in "abc" if decisions[node] == "low"} == expected


@pytest.mark.parametrize(("option", "expected"), [("guard", {"a"}), ("disable_amp", {"b", "c"})])
def test_regions_by_pattern(option, expected):
    body = "[a] h = MatMul (x, w) [b] r = Relu (h) [c] y = MatMul (r, w)"
    for pattern in ("^a$", ["^a$"]):
        decisions = decided(body, "O2", **{option: pattern})
        assert {node for node in "abc" if decisions[node] == "low"} == expected


# ---- what is not decided ----

UNTOUCHED = {
    "the user's cast": "[n] c = Cast <to = 11> (x) d = Cast <to = 1> (c) y = Relu (d)",
    "Shape": "[n] s = Shape (x) y = Reshape (x, s)",
    "integers": "s = Shape (x) [n] t = Abs (s) y = Reshape (x, t)",
    "a constant": "[n] k = Constant <value_float = 2.0> () y = Mul (x, k)",
}


@pytest.mark.parametrize("name", UNTOUCHED)
@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_what_is_left_untouched(name, level):
    assert decided(UNTOUCHED[name], level)["n"] == "untouched"


def test_control_flow_with_a_black_operator_and_integers():
    head = "(float[2,4] x, bool c, int64[2] n) => (float[2,4] y, int64[2] m)"
    body = """m = Abs (n) h = MatMul (x, w)
        [branch] y = If (c) <
            then_branch = t () => (float[2,4] p) { [log] p = Log (h) },
            else_branch = e () => (float[2,4] q) { [relu] q = Relu (h) }
        >"""
    decisions = decided(body, head=head, guard=())
    assert (decisions["branch"], decisions["log"], decisions["relu"]) == ("untouched", "high", "low")


def test_a_gray_node_behind_control_flow_follows_what_the_bodies_make():
    head = "(float[2,4] x, bool c) => (float[2,4] y)"
    for last, expected in (("MatMul (h, w)", "low"), ("Exp (h)", "high")):
        body = f"""h = Relu (x)
            b = If (c) <
                then_branch = t () => (float[2,4] p) {{ p = {last} }},
                else_branch = e () => (float[2,4] q) {{ q = MatMul (h, w) }}
            >
            [g] y = Relu (b)"""
        assert decided(body, head=head)["g"] == expected


def test_a_gray_node_in_a_body_follows_what_is_passed_in():
    for first, expected in (("MatMul (x, w)", "low"), ("Exp (x)", "high")):
        head = "(float[2,4] x, int64 n, bool c) => (float[2,4] y)"
        body = f"""h = {first}
            y = Loop (n, c, h) <body = b (int64 i, bool k, float[2,4] a) => (bool k2, float[2,4] a2) {{
                k2 = Identity (k) [g] a2 = Relu (a)
            }}>"""
        assert decided(body, head=head)["g"] == expected


# ---- assign itself ----


def assignment(level="O2", **options):
    model = ir.from_proto(parse("(float[2,4] x) => (float[2,4] y) { [a] h = MatMul (x, w) [b] y = Exp (h) }", w=W))
    propagate_types(model)
    policy = dataclasses.replace(choose_policy(Request(level=level)), **options)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    outcome = assign(model, policy)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before, "deciding edits nothing"
    return model, outcome


def test_deciding_is_pure_and_complete():
    model, chosen = assignment()
    assert list(chosen.decisions) == list(all_nodes(model))
    assert all(str(decision.reason) for decision in chosen.decisions.values())
    assert {value.name for value in chosen.low_values} == {"h", "y"}


def test_nodes_can_be_forced_high_by_name():
    _, chosen = assignment(forced_high={"b": Reason("update")})
    decisions = {node.name: (d.precision, str(d.reason)) for node, d in chosen.decisions.items()}
    assert decisions["b"] == ("high", "part of the update")
    assert decisions["a"][0] == "low"


def test_inputs_and_outputs_become_low_by_name():
    model, chosen = assignment(low_io=frozenset({"x", "y"}))
    assert model.graph.inputs[0] in chosen.low_values
    assert chosen.wanted(model.graph, 0) == "low"
    _, chosen = assignment()
    assert chosen.wanted(model.graph, 0) == "high"


def test_operators_without_a_kernel_are_counted():
    model = parse("(float[2,2] x) => (float y) { [d] d = Det (x) y = Relu (d) }", opset=11)
    report = amp.transpile(model, level="O2", target="cuda", verify=False)
    assert report.missing_kernels == {"Det": 1}
    assert "kernel" in support.reasons(report)["d"]


class Spreads(Rules):
    """A product is low, and so is every node that reads a value which is low somewhere."""

    looks_ahead = True
    lists = UserLists()

    def decide(self, node, form, state):
        low = node.op_type == "MatMul" or any(state.has_low(value) for value in node.inputs if value is not None)
        return Decision("low", Reason("mxnet-widest-low"), form) if low else Decision("high", Reason("gray-neutral"))


INTO_A_LOOP = """[a] p = Relu (x) [d] d = Det (x) [d2] d2 = Det (x)
    l = Loop (n, yes, p) <body = b (int64 i, bool k, float[4,4] s) => (bool k2, float[4,4] s2) {
        k2 = Identity (k) [b] s2 = Tanh (s) }>
    [m] m = MatMul (x, w) [e] e = Add (d, d2) [y] y = Add (l, m)"""
AHEAD = {
    # name: (body, low nodes)
    "nothing is low": ("[a] p = Relu (x) [b] y = Tanh (p)", set()),
    "a reader before the product, and what reads that": (
        "[a] p = Relu (x) [b] q = Tanh (p) [m] m = MatMul (x, w) [y] y = Add (q, m)",
        {"a", "b", "m", "y"},
    ),
    "readers of another value are left alone": (
        "[a] p = Relu (x) [b] q = Tanh (p) [m] m = MatMul (q, w) [y] y = Neg (m)",
        {"m", "y"},
    ),
    "the user's cast ends it": (
        "[a] p = Relu (x) [k] k = Cast <to = 1> (p) [b] q = Tanh (k) [m] m = MatMul (x, w) [y] y = Add (q, m)",
        {"a", "m", "y"},
    ),
    "into the body of a Loop": (INTO_A_LOOP, {"a", "b", "m", "y"}),
}


@pytest.mark.parametrize("name", AHEAD)
def test_rules_that_look_ahead_are_asked_again(name):
    body, low = AHEAD[name]
    text = f"(float[4,4] x, int64 n, bool yes) => (float[4,4] y) {{ {body} }}"
    model = ir.from_proto(parse(text, opset=11, w=W))
    propagate_types(model)
    decided_ahead = assign(model, Policy(rules=Spreads(), low=FLOAT16, target=CUDA))
    assert {str(node.name) for node, decision in decided_ahead.decisions.items() if decision.precision == "low"} == low
    dets = ["d", "d2"] if "Det" in body else []
    assert [node.name for node in decided_ahead.without_form] == dets, "each once, however often it was asked"
    assert decided_ahead.missing_kernels == ({"Det": 2} if dets else {})


WIDENED = {
    # name of the node: (precision, part of the reason)
    "product": ("high", "computed in float16 before"),
    "plain": ("high", "float32 before"),
    "own": ("high", "float32 before"),
    "branch": ("untouched", "no precision of its own"),
    "inner": ("high", "float32 before"),
    "shape": ("untouched", "no precision of its own"),
    "count": ("untouched", "no precision of its own"),
}


def test_a_program_that_only_becomes_float32():
    model = parse(
        """(float16[2,4] x, bool c) => (float[2,4] y, int64[2] s, int64[2] t, float[2,4] o) {
            [product] h = MatMul (x, w) [back] f = Cast <to = 1> (h) [plain] r = Relu (f) [own] o = my.domain.Cast (r)
            [branch] y = If (c) <then_branch = a () => (float[2,4] p) { [inner] p = Exp (r) },
                                 else_branch = b () => (float[2,4] q) { q = Neg (r) }>
            [shape] s = Cast <to = 7> (k) [count] t = Abs (s)
        }""",
        imports=', "my.domain": 1',
        w=W.astype(np.float16),
        k=W[0, :2],
    )
    report = amp.transpile(model, dtype="float32", verify=False)
    decisions, reasons = support.decisions(report), support.reasons(report)
    for name, (precision, reason) in WIDENED.items():
        assert decisions[name] == precision
        assert reason in reasons[name]


def test_constants_that_were_measured_are_not_measured_again():
    class Measured(RangeFaults):
        def of(self, value):
            return Reason("words", {"words": "measured before"}) if constant_of(value) is not None else None

    model = ir.from_proto(parse("(float[2,4] x) => (float[2,4] y) { [a] y = MatMul (x, w) }", w=W))
    propagate_types(model)
    assigned = assign(model, choose_policy(Request(level="O2")), Measured(FLOAT16))
    assert str(assigned.decisions[model.graph[0]].reason) == "measured before"


MUST_STAY = {
    # name: (options of the policy, role of the node, reason of node a, a MatMul; None if it may be low)
    "nothing": ({}, None, None),
    "forced": ({"forced_high": {"a": Reason("update")}}, None, "part of the update"),
    "another is forced": ({"forced_high": {"b": Reason("update")}}, None, None),
    "forced comes first": ({"forced_high": {"a": Reason("update")}}, "optimize", "part of the update"),
    "the optimizer's": ({}, "optimize", "part of the optimizer, which works in float32"),
    "the backward pass's": ({}, "backward", None),
}


@pytest.mark.parametrize("name", MUST_STAY)
def test_why_a_node_must_stay_float32(name):
    options, role, reason = MUST_STAY[name]
    model = ir.from_proto(parse("(float[2,4] x) => (float[2,4] y) { [a] h = MatMul (x, w) [b] y = Exp (h) }", w=W))
    propagate_types(model)
    if role is not None:
        model.graph[0].metadata_props[ROLE_KEY] = role
    decision = assign(model, dataclasses.replace(choose_policy(Request(level="O2")), **options)).decisions[
        model.graph[0]
    ]
    assert (decision.precision, decision.form is None) == (("high", True) if reason else ("low", False))
    assert reason is None or str(decision.reason) == reason


REASONS = {
    # name: (body, options, part of the reason of node n)
    "a constant": (
        "[n] k = Constant <value_float = 2.0> () y = Mul (x, k)",
        {},
        "a constant: converted as its readers",
    ),
    "no float": ("s = Shape (x) [n] t = Abs (s) y = Reshape (x, t)", {}, "no float32 tensor goes in or out"),
    "Shape": ("[n] s = Shape (x) y = Reshape (x, s)", {}, "it takes its input in any precision"),
    "the user's cast": ("[n] c = Cast <to = 11> (x) d = Cast <to = 1> (c) y = Relu (d)", {}, "the user's own cast"),
    "folded": ("[n] c = Add (v, v) y = MatMul (x, c)", {}, "computed only from constants"),
    "disable_amp": ("[n] y = Relu (x)", {"disable_amp": "n"}, "inside a disable_amp region"),
    "outside of the guard": ("[g] h = Relu (x) [n] y = Tanh (h)", {"guard": "g"}, "outside every fp16_guard region"),
    "black names: the first in order": (
        "[n] y = Mul (x, x)",
        {"amp_lists": amp.AutoMixedPrecisionLists(custom_black_varnames=["y", "x", "w"])},
        "reads or writes black variable 'x'",
    ),
    "out of range": ("[n] y = Mul (x, big)", {}, "65504"),
    "low by force": ("[n] y = MatMul (x, big)", {"include": "n"}, "low by force (--include)"),
}


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_of_a_node(name):
    body, options, reason = REASONS[name]
    weights = {key: values for key, values in {"v": W, "big": W * 1e7}.items() if f" {key})" in body}
    model = parse(f"(float[4,4] x) => (float[4,4] y) {{ {body} }}", **weights)
    report = amp.transpile(model, level="O2", verify=False, **options)
    assert reason in support.reasons(report)["n"]


def test_force_asks_for_a_kernel_anywhere_and_for_a_schema():
    celu = parse("(float[2] x) => (float[2] y) { [n] y = Celu (x) }", opset=12)
    with pytest.raises(OptionError, match=r"node 'n' \(Celu\) cannot be float16: .*narrow the pattern"):
        amp.transpile(celu, include="n", verify=False, prefer="size")
    none = parse("(float[2] x) => (int64[1] y) { [n] y = Shape (x) }")
    with pytest.raises(OptionError, match="--include matches no node with a float32 tensor"):
        amp.transpile(none, include="n", verify=False, prefer="size")
    both = parse("(float[4,4] x) => (float[4,4] y) { [n] y = MatMul (x, w) }", w=W)
    with pytest.raises(OptionError, match="inside a disable_amp region as well"):
        amp.transpile(both, include="n", disable_amp="n", verify=False, prefer="size")


def test_force_takes_a_kernel_of_the_fallback():
    target, fallback = Knows(), Knows()
    target.fallback, target.operators, fallback.operators = fallback, ("Relu",), ("Erf",)
    target.float32_alone = ("Erf",)
    model = ir.from_proto(parse("(float[2] x) => (float[2] y) { [a] h = Relu (x) [b] k = Erf (h) [c] y = Neg (k) }"))
    propagate_types(model)
    policy = Policy(rules=Spreads(), low=FLOAT16, target=target, included=True)
    for node in list(model.graph)[:2]:
        node.metadata_props[REGION_KEY] = INCLUDE
    decisions = list(assign(model, policy).decisions.values())
    assert [decision.precision for decision in decisions] == ["low", "low", "high"]
    assert [decision.forced for decision in decisions] == [True, True, False]
    assert str(decisions[0].reason) == "low by force (--include)"
    assert "though there is no float16 kernel for Erf-13 on knows: another provider runs it" in str(decisions[1].reason)
    assert decisions[1].form is not None
    model.graph[2].metadata_props[REGION_KEY] = INCLUDE
    with pytest.raises(OptionError, match=r"'c' .Neg. cannot be float16: no float16 kernel"):
        assign(model, policy)


class Rounds(Spreads):
    """Nodes that cannot be low store their results low."""

    looks_ahead = False

    def decide_without_form(self, _):
        return Decision("high", Reason("mixed-softmax"), rounded=frozenset({0}))


STORES = {
    # name: (format, opset, whether the format can be stored there)
    "float16 has a Cast everywhere": (FLOAT16, 11, True),
    "bfloat16 has none at opset 12": (BFLOAT16, 12, False),
    "bfloat16 has one at opset 13": (BFLOAT16, 13, True),
}


@pytest.mark.parametrize("name", STORES)
def test_results_are_stored_low_where_a_cast_can_make_them(name):
    low, opset, possible = STORES[name]
    model = ir.from_proto(parse("(float[2,2] x) => (float y) { [a] y = Det (x) }", opset=opset))
    propagate_types(model)
    assigned = assign(model, Policy(rules=Rounds(), low=low, target=CUDA))
    assert (assigned.decisions[model.graph[0]].reason.code == "mixed-softmax") is possible
    assert (model.graph[0].outputs[0] in assigned.rounded_values) is possible
    assert bool(assigned.without_form) is not possible


@pytest.mark.parametrize("counts", [False, True])
def test_a_guard_counts_where_the_policy_says_so(counts):
    model = ir.from_proto(parse("(float[2,4] x) => (float[2,4] y) { [a] h = MatMul (x, w) [b] y = Exp (h) }", w=W))
    propagate_types(model)
    model.graph[1].metadata_props[REGION_KEY] = FP16_GUARD
    policy = dataclasses.replace(choose_policy(Request(level="O2")), use_guard=counts)
    assert assign(model, policy).decisions[model.graph[0]].precision == ("high" if counts else "low")


def test_a_constant_out_of_range_holds_its_reader_at_every_level():
    model = parse("(float[2,4] x) => (float[2,4] y) { [n] y = MatMul (x, w) }", w=W * 1e7)
    for level in ("OD", "O1", "O2", "auto"):
        report = amp.transpile(model, level=level, verify=False, prefer="size")
        assert support.decisions(report)["n"] == "high"
        assert "65504" in support.reasons(report)["n"]


CAPPED = ["Clip (h, lo, hi)", "Min (h, hi)", "Max (h, lo)"]


@pytest.mark.parametrize("call", CAPPED)
@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_bound_beyond_the_range_is_no_reason_to_stay_float32(call, level):
    model = parse(
        f"(float[2,4] x) => (float[2,4] y) {{ h = MatMul (x, w) [n] c = {call} y = MatMul (c, w) }}",
        w=W,
        lo=np.float32(-3.4e38),
        hi=np.float32(1e5),
    )
    report = support.convert(model, {"x": array(2, 4)}, level)
    assert support.decisions(report)["n"] == "low"
