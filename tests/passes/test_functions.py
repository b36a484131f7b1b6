"""Inlining model-local functions keeps values, names and regions, whatever the functions look like."""

import time

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.errors import ModelError
from amp_transpiler.passes.inline_functions import InlineFunctions

X = np.array([[-1.0, 2.0, -3.0], [4.0, -5.0, 6.0]], np.float32)


def parse(graph, *functions, opset=18, function_opset=None):
    imports = f'opset_import: ["": {function_opset or opset}, "local": 1], domain: "local"'
    text = f'<ir_version: 10, opset_import: ["": {opset}, "local": 1]> agraph {graph}'
    return ir.from_proto(onnx.parser.parse_model(text + "".join(f" <{imports}> {f}" for f in functions)))


def inline(model, calls):
    assert InlineFunctions()(model).count == calls
    assert not model.functions
    assert {node.domain for node in model.graph.all_nodes()} <= {""}
    assert "local" not in model.graph.opset_imports
    return model


SCALED = "scaled <factor: float = 2.0> (a) => (b) { f = Constant <value_float: float = @factor> () b = Mul (a, f) }"
LEAKY = "leaky <alpha> (a) => (b) { b = LeakyRelu <alpha: float = @alpha> (a) }"
BOTH = "both (a) => (p, q) { n = Neg (a) p = local.scaled (n) q = local.scaled <factor = 3.0> (p) }"
PICK = """pick (c, a) => (b) {
    n = Neg (a)
    b = If (c) <
        then_branch = t () => (float[A,B] p) { p = Add (n, a) },
        else_branch = e () => (float[A,B] q) { v = local.scaled (n) q = Abs (v) }
    >
}"""
SAME = "same (a) => (b) { b = Identity (a) }"
BARE = "bare (a, b) => (a, b, b) { n = Neg (a) }"
MAYBE = "maybe (a, low, high) => (b) { b = Clip (a, low, high) }"
TWO = "two (a) => (first, second) { first = Neg (a) second = Exp (first) }"

CASES = {
    "default attribute": ("(float[A,B] x) => (float[A,B] y) { y = local.scaled (x) }", [SCALED], 1, 2 * X),
    "given attribute": (
        "(float[A,B] x) => (float[A,B] y) { y = local.scaled <factor = 5.0> (x) }",
        [SCALED],
        1,
        5 * X,
    ),
    "reference without value": (
        "(float[A,B] x) => (float[A,B] y) { y = local.leaky (x) }",
        [LEAKY],
        1,
        np.where(X < 0, np.float32(0.01) * X, X),
    ),
    "reference with value": (
        "(float[A,B] x) => (float[A,B] y) { y = local.leaky <alpha = 0.5> (x) }",
        [LEAKY],
        1,
        np.where(X < 0, np.float32(0.5) * X, X),
    ),
    "nested": ("(float[A,B] x) => (float[A,B] y) { p, q = local.both (x) y = Add (p, q) }", [SCALED, BOTH], 3, -8 * X),
    "called twice": (
        "(float[A,B] x) => (float[A,B] y) { p, q = local.both (x) r, y = local.both (q) }",
        [BOTH, SCALED],
        6,
        36 * X,
    ),
    "bodies": (
        """(float[A,B] x) => (float[A,B] y) <bool yes = {1}, bool no = {0}> {
            p = local.pick (yes, x) q = local.pick (no, x) y = Add (p, q)
        }""",
        [SCALED, PICK],
        4,
        2 * np.abs(X),
    ),
    "called from a body": (
        """(float[A,B] x) => (float[A,B] y) <bool yes = {1}> { y = If (yes) <
            then_branch = t () => (float[A,B] p) { s = local.scaled (x) p = local.scaled (s) },
            else_branch = e () => (float[A,B] q) { q = Identity (x) }
        > }""",
        [SCALED],
        2,
        4 * X,
    ),
    "missing trailing input": (
        "(float[A,B] x) => (float[A,B] y) <float nought = {0.0}> { y = local.maybe (x, nought) }",
        [MAYBE],
        1,
        np.maximum(X, 0),
    ),
    "missing middle input": (
        '(float[A,B] x) => (float[A,B] y) <float nought = {0.0}> { y = local.maybe (x, "", nought) }',
        [MAYBE],
        1,
        np.minimum(X, 0),
    ),
    "missing trailing output": ("(float[A,B] x) => (float[A,B] y) { y = local.two (x) }", [TWO], 1, -X),
    "missing first output": ('(float[A,B] x) => (float[A,B] y) { "", y = local.two (x) }', [TWO], 1, np.exp(-X)),
    "output straight to the graph's": ("(float[A,B] x) => (float[A,B] y) { y = local.same (x) }", [SAME], 1, X),
    "outputs are inputs, and one another": (
        "(float[A,B] x) => (float[A,B] y, float[A,B] z, float[A,B] v) { y, z, v = local.bare (x, x) }",
        [BARE],
        1,
        X,
    ),
}


@pytest.mark.parametrize(("graph", "functions", "calls", "expected"), CASES.values(), ids=CASES)
def test_values(run, graph, functions, calls, expected):
    model = parse(graph, *functions)
    names = [value.name for value in model.graph.outputs]
    inline(model, calls)
    assert [value.name for value in model.graph.outputs] == names
    for value in run(model, {"x": X}):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_nodes_are_in_the_regions_of_the_call_and_in_their_own_inside():
    model = parse(CASES["bodies"][0], SCALED, PICK)
    function = model.functions["local", "pick", ""]
    for node in function:
        if node.op_type == "Neg":
            node.metadata_props["amp_transpiler.region"] = "its own"
    for node in model.graph:
        if node.op_type == "pick":
            node.metadata_props["amp_transpiler.region"] = f"of {node.outputs[0].name}"
    inline(model, 4)
    by_name = {}
    for node in model.graph.all_nodes():
        by_name.setdefault(node.op_type, set()).add(node.metadata_props.get("amp_transpiler.region"))
    assert by_name["Neg"] == {"of p;its own", "of q;its own"}
    assert by_name["If"] == by_name["Mul"] == by_name["Abs"] == {"of p", "of q"}
    assert by_name["Add"] == {"of p", "of q", None}  # the one outside was in no region


def test_copies_have_names_of_their_own_in_every_scope(run):
    """The body's names appear in the graph that calls it, once around the call and once after it."""
    model = parse(
        """(float[A,B] x) => (float[A,B] y) <bool yes = {1}> {
            v = Exp (x)
            r = If (yes) <
                then_branch = t () => (float[A,B] p) { f = Neg (x) p = local.pick (yes, f) },
                else_branch = e () => (float[A,B] q) { q = Identity (v) }
            >
            n = local.pick (yes, r)
            y = Add (n, v)
        }""",
        SCALED,
        PICK,
    )
    inline(model, 4)
    np.testing.assert_allclose(run(model, {"x": X})[0], np.exp(X), rtol=1e-6)  # pick(yes, .) is zero

    def check(graph, outer):
        names = [value.name for node in graph for value in node.outputs] + [value.name for value in graph.inputs]
        assert len(names) == len(set(names))
        assert not outer & set(names)
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    check(attribute.as_graph(), outer | set(names))

    check(model.graph, set())


def test_nothing_to_do_changes_nothing():
    model = parse("(float[A,B] x) => (float[A,B] y) { y = Neg (x) }")
    graph, before = model.graph, ir.to_proto(model)
    assert InlineFunctions()(model).count == 0
    assert model.graph is graph
    assert ir.to_proto(model) == before


def test_uncalled_functions_bind_no_opset():
    model = parse("(float[A,B] x) => (float[A,B] y) { y = Neg (x) }", SUM, function_opset=12)
    assert inline(model, 0).graph.opset_imports[""] == 18


def test_uncalled_functions_go():
    model = parse("(float[A,B] x) => (float[A,B] y) { y = Neg (x) }", SCALED)
    inline(model, 0)


def _nested(depth):
    """A model whose one call stands for `depth` functions, each of which calls the next."""
    functions = [f"n{index} (a) => (b) {{ q = Neg (a) b = local.n{index + 1} (q) }}" for index in range(depth - 1)]
    functions.append(f"n{depth - 1} (a) => (b) {{ b = Neg (a) }}")
    return parse("(float[A,B] x) => (float[A,B] y) { y = local.n0 (x) }", *functions)


def test_calls_nested_deeper_than_python_s_recursion(run):
    model = inline(_nested(1200), 1200)
    assert [node.op_type for node in model.graph] == ["Neg"] * 1200
    assert len({value.name for node in model.graph for value in node.outputs}) == 1200
    np.testing.assert_array_equal(run(model, {"x": X})[0], X)


def _called_often(calls):
    names = ["x", *(f"v{index}" for index in range(calls - 1)), "y"]
    nodes = " ".join(f"{names[index + 1]} = local.same ({names[index]})" for index in range(calls))
    return parse(f"(float[A,B] x) => (float[A,B] y) {{ {nodes} }}", SAME)


@pytest.mark.slow
@pytest.mark.parametrize("model", [_nested, _called_often], ids=["nested", "one after the other"])
def test_time_is_linear_in_the_number_of_calls(model):
    seconds = []
    for calls in (500, 4000):
        source = model(calls)
        start = time.process_time()
        InlineFunctions()(source)
        seconds.append(time.process_time() - start)
    assert seconds[1] < 3 * 8 * seconds[0]  # quadratic: 64


@pytest.mark.parametrize(("function_opset", "opset"), [(17, 18), (18, 17), (13, 21)])
def test_other_opset_without_a_difference(run, function_opset, opset):
    model = parse(CASES["nested"][0], SCALED, BOTH, opset=opset, function_opset=function_opset)
    inline(model, 3)
    assert model.graph.opset_imports[""] == opset
    np.testing.assert_allclose(run(model, {"x": X})[0], -8 * X, rtol=1e-6)


def test_domains_of_functions_are_imported(run):
    model = parse(
        "(float[A,B] x) => (float[A,B] y) { y = local.f (x) }", "f (a) => (b) { b = com.microsoft.QuickGelu (a) }"
    )
    model.functions["local", "f", ""].opset_imports["com.microsoft"] = 1
    assert InlineFunctions()(model).count == 1
    assert dict(model.graph.opset_imports) == {"": 18, "com.microsoft": 1}
    np.testing.assert_allclose(run(model, {"x": X})[0], X / (1 + np.exp(-1.702 * X)), rtol=1e-5)


SUM = "f (a) => (b) { b = ReduceSum <axes = [0]> (a) }"
LOOPING = ["f (a) => (b) { b = local.g (a) }", "g (a) => (b) { b = local.f (a) }"]
REFUSED = {
    "opset": ([SUM], 12, r"local::f.*12.*18.*ReduceSum"),
    "newer opset": (["f (a) => (b) { b = Gelu (a) }"], 20, r"local::f.*20.*18.*Gelu"),
    "outputs": (["f (a) => (b) { b = Neg (a) }"], 18, "calls function 'local::f' with 2 outputs, and it has 1"),
    "cycle": (LOOPING, 18, "in a circle: local::f -> local::g -> local::f"),
}


@pytest.mark.parametrize(("functions", "function_opset", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_and_left_as_it_was(functions, function_opset, message):
    outputs = "y, z" if "outputs" in message else "y"
    graph = f"(float[A,B] x) => (float[P,Q] y) {{ {outputs} = local.f (x) }}"
    model = parse(graph, *functions, function_opset=function_opset)
    before = ir.to_proto(model)
    with pytest.raises(ModelError, match=message):
        InlineFunctions()(model)
    assert ir.to_proto(model) == before
