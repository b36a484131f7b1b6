"""Carrying an assignment out: which casts go where, which names stay, what becomes of constants."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.graph.walk import all_nodes, bodies
from amp_transpiler.passes.apply_assignment import ApplyAssignment
from amp_transpiler.passes.inserted_casts import INSERTED, add_cast
from amp_transpiler.precision.assignment import Assignment, Decision
from amp_transpiler.precision.constraints import LowForm, is_float32
from amp_transpiler.precision.ports import settle_ports
from tests import support
from tests.support import array, parse

W = np.array([[1.0001, 2.0003], [3.0007, -1.0009]], np.float32)


def carried_out(text, low, **weights):
    """Make the nodes named in `low` low, whole, and return the model and the names of converted constants."""
    proto, model, applied = applied_to(text, low, Assignment(FLOAT16), **weights)
    return proto, model, applied.converted


def applied_to(text, low, assignment, rounded="", **weights):
    """The same with an assignment to fill; results of the nodes named in `rounded` are stored low."""
    proto = parse(text, **{"w": W, **weights} if " w)" in text or "(w," in text or "(w)" in text else weights)
    model = ir.from_proto(proto)
    propagate_types(model)
    for node in all_nodes(model):
        if any(True for _ in bodies(node)):
            assignment.decisions[node] = Decision("untouched", "control flow")
        elif node.name in low:
            inputs = frozenset(i for i, value in enumerate(node.inputs) if is_float32(value))
            outputs = frozenset(i for i, value in enumerate(node.outputs) if is_float32(value))
            assignment.decisions[node] = Decision("low", "asked for", LowForm(inputs, outputs))
            assignment.low_values.update(node.outputs[i] for i in outputs)
        else:
            assignment.decisions[node] = Decision("high", "asked for", takes_any=node.op_type in ("Shape", "Cast"))
        if node.name and node.name in rounded:
            assignment.rounded_values.update(node.outputs)
    settle_ports(assignment)
    before = ir.to_proto(model)
    result = ApplyAssignment(assignment)(model)
    assert result.modified == (result.count > 0) == (ir.to_proto(model) != before)
    verify(model, "carrying out")
    support.assert_valid(ir.to_proto(model))
    return proto, model, result


# name: (graph, low nodes, casts (input, type), constants converted)
CASES = {
    "nothing low": ("(float[2,2] x) => (float[2,2] y) { [a] y = MatMul (x, w) }", "", [], set()),
    "all low": (
        "(float[2,2] x) => (float[2,2] y) { [a] h = MatMul (x, w) [b] y = Relu (h) }",
        "ab",
        [("x", "FLOAT16"), ("y__amp_before_fp32", "FLOAT")],
        {"w"},
    ),
    "low, then high": (
        "(float[2,2] x) => (float[2,2] y) { [a] h = MatMul (x, w) [b] y = Exp (h) }",
        "a",
        [("x", "FLOAT16"), ("h", "FLOAT")],
        {"w"},
    ),
    "high, then low": (
        "(float[2,2] x) => (float[2,2] y) { [a] h = Exp (x) [b] y = MatMul (h, w) }",
        "b",
        [("h", "FLOAT16"), ("y__amp_before_fp32", "FLOAT")],
        {"w"},
    ),
    "one input, many low readers: one cast": (
        "(float[2,2] x) => (float[2,2] y) { [a] p = Relu (x) [b] q = Tanh (x) [c] y = MatMul (p, q) }",
        "abc",
        [("x", "FLOAT16"), ("y__amp_before_fp32", "FLOAT")],
        set(),
    ),
    "one low value, many high readers: one cast": (
        "(float[2,2] x) => (float[2,2] y) { [a] h = Relu (x) [b] p = Exp (h) [c] q = Log (h) [d] y = Add (p, q) }",
        "a",
        [("x", "FLOAT16"), ("h", "FLOAT")],
        set(),
    ),
    "a low output that is read low": (
        "(float[2,2] x) => (float[2,2] y, float[2,2] z) { [a] y = Relu (x) [b] z = Neg (y) }",
        "ab",
        [("x", "FLOAT16"), ("y__amp_before_fp32", "FLOAT"), ("z__amp_before_fp32", "FLOAT")],
        set(),
    ),
    "a low output that is read high: one cast for both": (
        "(float[2,2] x) => (float[2,2] y, float[2,2] z) { [a] y = Relu (x) [b] z = Exp (y) }",
        "a",
        [("x", "FLOAT16"), ("y__amp_before_fp32", "FLOAT")],
        set(),
    ),
    "one low value as two outputs: one cast": (
        "(float[2,2] x) => (float[2,2] y, float[2,2] y) { [a] y = Relu (x) }",
        "a",
        [("x", "FLOAT16"), ("y__amp_before_fp32", "FLOAT")],
        set(),
    ),
    "an input that is an output": (
        "(float[2,2] x) => (float[2,2] x, float[2,2] y) { [a] y = Relu (x) }",
        "a",
        [("x", "FLOAT16"), ("y__amp_before_fp32", "FLOAT")],
        set(),
    ),
    "a reader of any type takes the low value": (
        "(float[2,2] x) => (float[2,2] y, int64[2] s) { [a] h = Relu (x) [b] s = Shape (h) [c] y = Neg (h) }",
        "ac",
        [("x", "FLOAT16"), ("y__amp_before_fp32", "FLOAT")],
        set(),
    ),
    "a constant with two kinds of readers is copied": (
        "(float[2,2] x) => (float[2,2] y, float[2,2] z) { [a] y = MatMul (x, w) [b] z = Exp (w) }",
        "a",
        [("x", "FLOAT16"), ("y__amp_before_fp32", "FLOAT")],
        {"w__amp_fp16"},
    ),
    "a constant that is an output is copied": (
        "(float[2,2] x) => (float[2,2] y, float[2,2] w) { [a] y = MatMul (x, w) }",
        "a",
        [("x", "FLOAT16"), ("y__amp_before_fp32", "FLOAT")],
        {"w__amp_fp16"},
    ),
    "a constant that nothing low reads stays": (
        "(float[2,2] x) => (float[2,2] y) { [a] h = Relu (x) [b] y = MatMul (h, w) }",
        "a",
        [("x", "FLOAT16"), ("h", "FLOAT")],
        set(),
    ),
    "an initializer that is an input is cast at run time": (
        "(float[2,2] x, float[2,2] w) => (float[2,2] y) { [a] y = MatMul (x, w) }",
        "a",
        [("x", "FLOAT16"), ("w", "FLOAT16"), ("y__amp_before_fp32", "FLOAT")],
        set(),
    ),
    "a captured value is cast in its own scope": (
        """(float[2,2] x, bool c) => (float[2,2] y) {
            [a] h = Exp (x)
            y = If (c) <then_branch = t () => (float[2,2] p) { [b] p = MatMul (h, w) },
                        else_branch = e () => (float[2,2] q) { [d] q = MatMul (h, w) }>
        }""",
        "bd",
        [("h", "FLOAT16"), ("y__amp_before_fp32", "FLOAT")],
        {"w"},
    ),
    "branches that differ": (
        """(float[2,2] x, bool c) => (float[2,2] y) {
            y = If (c) <then_branch = t () => (float[2,2] p) { [b] p = Relu (x) }, else_branch = e () =>
                (float[2,2] q) { [d] q = Exp (x) }>
        }""",
        "b",
        [("x", "FLOAT16"), ("p", "FLOAT")],
        set(),
    ),
    "an input of a body": (
        """(float[2,2] x) => (float[2,2] y) <int64 n = {2}, bool c = {1}> {
            y = Loop (n, c, x) <body = b (int64 i, bool k, float[2,2] s) => (bool k2, float[2,2] s2) {
                k2 = Identity (k) [a] r = Relu (s) [b] s2 = Exp (r)
            }>
        }""",
        "a",
        [("s", "FLOAT16"), ("r", "FLOAT")],
        set(),
    ),
    "a body that hands its input through": (
        """(float[2,2] x) => (float[2,2] y, float[N,2,2] z) <int64 n = {2}, bool c = {1}> {
            [a] h = Relu (x)
            y, z = Loop (n, c, h) <body = b (int64 i, bool k, float[2,2] s) => (bool k2, float[2,2] s, float[2,2] o) {
                k2 = Identity (k) [b] o = MatMul (s, w)
            }>
        }""",
        "ab",
        None,
        {"w"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_casts_and_constants(name):
    text, low, expected, constants = CASES[name]
    proto, model, converted = carried_out(text, low)
    if expected is not None:
        assert sorted((source, target) for source, _, target in support.casts(model)) == sorted(expected)
    assert converted == constants
    assert all(INSERTED in node.meta for node in support.nodes(model, "Cast"))
    assert [(v.name, v.dtype) for v in model.graph.outputs] == [
        (v.name, v.type.tensor_type.elem_type) for v in proto.graph.output
    ]
    feeds = {"x": np.abs(array(2, 2)) / 4, "c": np.array(True)}
    feeds = {value.name: feeds.get(value.name, W) for value in proto.graph.input}
    support.assert_close(support.run(proto, feeds), support.run_emulated(ir.to_proto(model), feeds), 0.01)


BOTH_READ = "(float[2,2] x) => (float[2,2] y, float[2,2] z) { [a] y = MatMul (x, w) [b] z = Exp (w) }"
LOW_READS = "(float[2,2] x) => (float[2,2] y) { [a] y = MatMul (x, w) }"
NUMBER = "(float[2,2] x) => (float[2,2] y, float[2,2] z) { [a] y = Mul (x, k) [b] z = Exp (x) }"
STORED = {
    # name: (graph, where constants are converted, constants converted, whether w or k is cast, edits)
    "offline, two kinds of readers: a copy": (BOTH_READ, "offline", {"w__amp_fp16"}, False, 4),
    "offline, low readers": (LOW_READS, "offline", {"w"}, False, 4),
    "whole, two kinds of readers: a cast": (BOTH_READ, "whole", set(), True, 4),
    "whole, low readers": (LOW_READS, "whole", {"w"}, False, 4),
    "runtime": (LOW_READS, "runtime", set(), True, 4),
    "runtime, one element: an attribute elsewhere": (NUMBER, "runtime", {"k"}, False, 4),
    "Shape does not see the rounding": (
        "(float[2,2] x) => (float[2,2] y, int64[2] z) { [a] y = MatMul (x, w) [b] z = Shape (w) }",
        "offline",
        {"w"},
        False,
        4,
    ),
    "the user's own cast to another type does": (
        "(float[2,2] x) => (float[2,2] y, double[2,2] z) { [a] y = MatMul (x, w) [b] z = Cast <to = 11> (w) }",
        "offline",
        {"w__amp_fp16"},
        False,
        4,
    ),
    "the user's own cast to the same type does not": (
        "(float[2,2] x) => (float[2,2] y, float16[2,2] z) { [a] y = MatMul (x, w) [b] z = Cast <to = 10> (w) }",
        "offline",
        {"w"},
        False,
        4,
    ),
    "an output of the program does, whatever its type": (
        "(float[2,2] x) => (float[2,2] y, float[2,2] w) { [a] h = MatMul (x, w) [b] y = Exp (h) }",
        "offline",
        {"w__amp_fp16"},
        False,
        4,
    ),
    "nothing": ("(float[2,2] x) => (float[2,2] y) { [b] y = MatMul (x, w) }", "offline", set(), False, 0),
}


@pytest.mark.parametrize("as_computed", [False, True])
@pytest.mark.parametrize("name", STORED)
def test_where_constants_are_converted(name, as_computed):
    text, storage, constants, cast, count = STORED[name]
    assignment = Assignment(
        FLOAT16,
        constants=storage,
        outputs_as_computed=as_computed and "(float[2,2] x) => (float[2,2] y, float[2,2] w)" in text,
    )
    _, model, result = applied_to(text, "a", assignment, k=np.float32(3))
    assert result.converted == constants
    assert any(source in ("w", "k") for source, _, target in support.casts(model) if target == "FLOAT16") is (
        cast or "Cast <to = 10>" in text
    )
    assert result.count == count


ROUNDED = {
    # name: (graph, low nodes, casts, edits), where the result of r is stored low
    "a low reader": (
        "(float[2,2] x) => (float[2,2] y) { [r] h = Exp (x) [a] l = Relu (h) [b] y = Exp (l) }",
        "a",
        [("h", "FLOAT16"), ("l", "FLOAT")],
        3,
    ),
    "a float32 reader reads the rounded numbers": (
        "(float[2,2] x) => (float[2,2] y) { [r] h = Exp (x) [b] y = Exp (h) }",
        "",
        [("h", "FLOAT16"), ("h__amp_fp16", "FLOAT")],
        2,
    ),
    "both, and an output": (
        "(float[2,2] x) => (float[2,2] y, float[2,2] h) { [r] h = Exp (x) [a] l = Relu (h) [b] y = Add (l, h) }",
        "a",
        [("h__amp_before_fp32", "FLOAT16"), ("h__amp_fp16", "FLOAT"), ("l", "FLOAT")],
        4,
    ),
    "Shape takes the stored value": (
        "(float[2,2] x) => (int64[2] y) { [r] h = Exp (x) [s] y = Shape (h) }",
        "",
        [("h", "FLOAT16")],
        1,
    ),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_results_of_float32_nodes_that_are_stored_low(name):
    text, low, expected, count = ROUNDED[name]
    proto, model, result = applied_to(text, low, Assignment(FLOAT16), rounded="r")
    assert sorted((source, target) for source, _, target in support.casts(model)) == sorted(expected)
    assert result.count == count
    feeds = {"x": np.array([[0.1, -0.2], [0.3, 0.7]], np.float32)}
    exact, results_stored = support.run(proto, feeds), support.run_emulated(ir.to_proto(model), feeds)
    support.assert_close(exact, results_stored, 0.01)
    stored = np.exp(feeds["x"]).astype(np.float16).astype(np.float32)
    if "h" in results_stored:
        np.testing.assert_array_equal(results_stored["h"], stored)
    if low == "" and "Shape" not in text:
        np.testing.assert_allclose(results_stored["y"], np.exp(stored), rtol=1e-6)


def test_an_assignment_of_another_model_is_refused():
    model, other = (ir.from_proto(parse("(float[2] x) => (float[2] y) { [only] y = Relu (x) }")) for _ in range(2))
    assignment = Assignment(FLOAT16, decisions={other.graph[0]: Decision("high", "asked for")})
    with pytest.raises(ir.passes.PreconditionError, match="'only' is not of this one"):
        ApplyAssignment(assignment)(model)
    empty = ir.from_proto(parse("(float[2] x) => (float[2] x) { }"))
    assert not ApplyAssignment(Assignment(FLOAT16))(empty).modified


def test_a_shared_constant_is_exact_for_its_high_reader():
    _, model, _ = carried_out(*CASES["a constant with two kinds of readers is copied"][:2])
    np.testing.assert_array_equal(support.constant(model, "w"), W)
    np.testing.assert_array_equal(support.constant(model, "w__amp_fp16"), W.astype(np.float16))


def test_values_keep_their_names_and_documentation():
    text = "(float[2,2] x) => (float[2,2] y) { [a] h = MatMul (x, w) [b] y = Relu (h) }"
    model = ir.from_proto(parse(text, w=W))
    propagate_types(model)
    model.graph.outputs[0].doc_string = "the result"
    model.graph.outputs[0].metadata_props["unit"] = "metre"
    assignment = Assignment(FLOAT16)
    for node in model.graph:
        assignment.decisions[node] = Decision("low", "", LowForm(frozenset(range(len(node.inputs))), frozenset((0,))))
        assignment.low_values.update(node.outputs)
    ApplyAssignment(assignment)(model)
    output = model.graph.outputs[0]
    assert (output.name, output.doc_string, output.metadata_props["unit"]) == ("y", "the result", "metre")
    assert {"x", "h", "y"} <= {value.name for node in model.graph for value in (*node.inputs, *node.outputs)}


@pytest.mark.parametrize("name", CASES)
def test_a_cast_stands_right_behind_what_it_converts(name):
    text, low, _, _ = CASES[name]
    _, model, _ = carried_out(text, low)
    for cast in support.nodes(model, "Cast"):
        source = cast.inputs[0]
        scope = list(cast.graph)
        if source.producer() is None:
            before = [node for node in scope[: scope.index(cast)] if node.op_type != "Cast"]
            assert not before or source.graph is not cast.graph
        else:
            assert source.producer().graph is cast.graph
            between = scope[scope.index(source.producer()) + 1 : scope.index(cast)]
            assert all(node.op_type == "Cast" for node in between)


def test_a_cast_of_an_input_of_an_empty_graph():
    model = ir.from_proto(parse("(float[2] x) => (float[2] x) { }"))
    result = add_cast(model.graph.inputs[0], ir.DataType.FLOAT16, "fp16", NameAllocator(model))
    assert [node.op_type for node in model.graph] == ["Cast"]
    assert (result.dtype, list(result.shape)) == (ir.DataType.FLOAT16, [2])


def test_a_value_of_no_graph_cannot_be_cast():
    model = ir.from_proto(parse("(float[2] x) => (float[2] x) { }"))
    with pytest.raises(ValueError, match="'stray' belongs to no graph"):
        add_cast(ir.Value(name="stray"), ir.DataType.FLOAT16, "fp16", NameAllocator(model))


def test_keep_high_slots_stay_high():
    """One node, one slot of it low: what the assignment says, no more."""
    model = ir.from_proto(parse("(float[1,1,2,2] x, float[4] s) => (float[1,1,2,2] y) { [a] y = Resize (x, , s) }"))
    propagate_types(model)
    assignment = Assignment(FLOAT16)
    node = model.graph[0]
    assignment.decisions[node] = Decision("low", "", LowForm(frozenset((0,)), frozenset((0,))))
    assignment.low_values.update(node.outputs)
    ApplyAssignment(assignment)(model)
    verify(model, "carrying out")
    assert [value.dtype.name if value else None for value in node.inputs] == ["FLOAT16", None, "FLOAT"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
