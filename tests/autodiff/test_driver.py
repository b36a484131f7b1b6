"""The driver, apart from operators: sums, stops, types, and errors that say where a rule goes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.autodiff import differentiate, registered
from amp_transpiler.autodiff.context import low_weight_sums
from amp_transpiler.autodiff.driver import Driver
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.types import propagate_types
from tests.autodiff.gradient_check import check_by_differences, gradient_model, run_gradients
from tests.autodiff.graph_text import graph

RANDOM = np.random.default_rng(5)


def some(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype("f")


def loaded(text: str) -> tuple[ir.Model, dict[str, ir.Value]]:
    """The model, typed, and its values by name."""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    values = {v.name: v for v in model.graph.inputs}
    values.update({v.name: v for node in model.graph for v in node.outputs})
    return model, values


@pytest.mark.parametrize("first", [2, "N"])
def test_a_value_used_twice_gets_the_sum(first):
    check_by_differences(graph(f"float[{first},3] x", "m = Mul(x, x) s = Add(m, x) y = Mul(s, m)"), {"x": some(2, 3)})


def test_several_targets_and_a_target_that_is_read():
    text = graph("float[N,3] x, float[3] b", "y = Mul(x, b) z = Mul(y, y)", outputs="float y, float z")
    check_by_differences(text, {"x": some(2, 3), "b": some(3)})


def test_no_gradient_passes_integers():
    """The largest element is chosen by an index: its gradient is that of the product alone."""
    text = graph("float[2,3] x", "i = ArgMax<axis=1>(x) c = CastLike(i, x) y = Mul(x, c)")
    check_by_differences(text, {"x": some(2, 3)})


def test_a_value_that_leaves_twice_from_a_branch():
    body = """y, z = If (c) <then_branch = t () => (float[3] p, float[3] p) { p = Mul(x, x) },
                             else_branch = e () => (float[3] q, float[3] r) { q = Neg(x) r = Abs(x) }>"""
    text = graph("bool c, float[3] x", body, outputs="float y, float z")
    for condition in (True, False):
        check_by_differences(text, {"c": np.array(condition), "x": some(3)})


def test_a_symbolic_batch_is_summed_over():
    backward, _ = gradient_model(
        onnx.parser.parse_model(graph("float[N,3] x, float[3] b, float[1,3] c", "m = Add(x, b) y = Mul(m, c)"))
    )
    shapes = {o.name: [d.dim_value for d in o.type.tensor_type.shape.dim] for o in backward.graph.output}
    assert shapes["grad_b"] == [3]
    assert shapes["grad_c"] == [1, 3]


@pytest.mark.parametrize("bias", ["1,K,2", "K,2"])
def test_sizes_of_other_names_are_compared_at_run_time(bias):
    text = graph(f"float[N,M,2] x, float[{bias}] b", "y = Add(x, b)")
    lead = (1,) if bias.startswith("1") else ()
    for size in (3, 1):  # equal, and broadcast
        check_by_differences(text, {"x": some(4, 3, 2), "b": some(*lead, size, 2)})


def test_nothing_passes_a_stop():
    model, values = loaded(graph("float[3] x", "m = Mul(x, x) y = Add(m, x)", outputs="float[3] y"))
    builder = GraphBuilder(model)
    seed = builder.constant(np.ones(3, np.float32))
    grads = differentiate(builder, {values["y"]: seed}, [values["x"]], stop=[values["m"]])
    assert grads[values["x"]] is seed  # d(m + x) / dx without m


def test_a_stopped_value_has_no_gradient_itself():
    model, values = loaded(graph("float[3] x", "m = Mul(x, x) y = Add(m, x)", outputs="float[3] y"))
    builder = GraphBuilder(model)
    seed = builder.constant(np.ones(3, np.float32))
    assert differentiate(builder, {values["y"]: seed}, [values["m"], values["x"]], stop=[values["m"]]).keys() == {
        values["x"]
    }


def test_the_gradient_of_a_value_inside_the_graph():
    model, values = loaded(graph("float[3] x", "m = Mul(x, x) y = Add(m, x)", outputs="float[3] y"))
    builder = GraphBuilder(model)
    seed = builder.constant(np.ones(3, np.float32))
    assert differentiate(builder, {values["y"]: seed}, [values["m"]]) == {values["m"]: seed}


def test_what_the_target_does_not_depend_on_has_no_gradient():
    model, values = loaded(
        graph("float[3] x, float[3] z", "u = Mul(z, z) y = Add(x, x)", outputs="float[3] y, float[3] u")
    )
    builder = GraphBuilder(model)
    before = len(model.graph)
    grads = differentiate(builder, {values["y"]: builder.constant(np.ones(3, np.float32))}, [values["x"], values["z"]])
    assert grads.keys() == {values["x"]}
    assert [node.op_type for node in list(model.graph)[before:]] == ["Add"]


def test_nothing_is_written_for_what_nobody_wants():
    backward, _ = gradient_model(onnx.parser.parse_model(graph("float[3] x, float[3] z", "y = Mul(x, z)")), wrt=["x"])
    assert [node.op_type for node in backward.graph.node] == ["Mul", "Mul", "Identity"]


def test_an_operator_without_a_rule():
    text = """<ir_version: 10, opset_import: ["" : 21, "acme" : 1]> g (float[3] x) => (float[3] y)
        { [strange] y = acme.Strange(x) }"""
    model, values = loaded(text)
    values["y"].type = ir.TensorType(ir.DataType.FLOAT)
    builder = GraphBuilder(model)
    seed = builder.constant(np.ones(3, np.float32))
    with pytest.raises(ModelError) as caught:
        differentiate(builder, {values["y"]: seed}, [values["x"]])
    for part in ("'strange'", "acme::Strange", "opset", "amp_transpiler/autodiff/rules/", "stop_gradient"):
        assert part in str(caught.value)


def test_an_operator_without_a_rule_in_the_way_of_nobody():
    text = """<ir_version: 10, opset_import: ["" : 21, "acme" : 1]> g (float[3] x, float[3] z) => (float[3] y)
        { s = acme.Strange(z) y = Mul(x, s) }"""
    model, values = loaded(text)
    for name in ("s", "y"):
        values[name].type, values[name].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([3])
    builder = GraphBuilder(model)
    seed = builder.constant(np.ones(3, np.float32))
    assert differentiate(builder, {values["y"]: seed}, [values["x"]]).keys() == {values["x"]}


def test_two_rules_for_one_operator_are_an_error():
    assert ("", "Add") in registered()
    with pytest.raises(ValueError, match=r"two gradient rules for ai\.onnx::Add"):
        gradient("Add")(lambda g: (g, g))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize(("number", "operator", "summed"), [(2, "Add", "low"), (4, "Sum", "low"), (5, "Sum", "float")])
def test_many_contributions_of_a_low_value_are_summed_in_float32_and_few_as_they_are(kind, number, operator, summed):
    copies = [f"a{index}" for index in range(number)]
    body = " ".join(f"{copy} = Identity(x)" for copy in copies) + f" y = Sum({', '.join(copies)})"
    text = graph(f"{kind}[3] x", body, outputs=f"{kind}[3] y")
    backward, _ = gradient_model(onnx.parser.parse_model(text))
    types = {v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(backward).graph.value_info}
    low = onnx.TensorProto.DataType.Value(kind.upper())
    types |= {value.name: value.type.tensor_type.elem_type for value in backward.graph.output}
    sums = [node for node in backward.graph.node if node.op_type == operator and node.name.startswith("grad/")]
    assert [types[node.output[0]] for node in sums] == [low if summed == "low" else onnx.TensorProto.FLOAT]
    assert backward.graph.output[-1].type.tensor_type.elem_type == low


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_the_sum_over_a_broadcast_of_a_low_value_is_in_float32(kind):
    text = graph(f"{kind}[N,3] x, {kind}[3] b", "y = Add(x, b)", outputs=f"{kind} y")
    backward, _ = gradient_model(onnx.parser.parse_model(text), wrt=["b"])
    types = {v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(backward).graph.value_info}
    (total,) = (node for node in backward.graph.node if node.op_type == "ReduceSum")
    assert types[total.output[0]] == onnx.TensorProto.FLOAT


LOW_SUMS = {
    # name: (inputs, body, type of the sum that is the gradient of the last input)
    "FusedMatMul": ("float16[N,3,4] x, float16[4,2] w", "y = com.microsoft.FusedMatMul(x, w)", "FLOAT16"),
    "FusedMatMul of another domain's name": ("float16[N,3,4] x, float16[4] w", "y = Mul(x, w)", "FLOAT"),
    "MatMul": ("float16[N,3,4] x, float16[4,2] w", "y = MatMul(x, w)", "FLOAT16"),
    "a weight behind a Transpose": (
        "float16[N,3,4] x, float16[2,4] w",
        "t = Transpose(w) y = MatMul(x, t)",
        "FLOAT16",
    ),
    "a weight that was computed on": ("float16[N,3,4] x, float16[4,2] w", "t = Neg(w) y = MatMul(x, t)", "FLOAT"),
    "a bias behind a FusedMatMul": (
        "float16[N,3,4] x, float16[4,2] v, float16[2] w",
        "m = com.microsoft.FusedMatMul(x, v) y = Add(m, w)",
        "FLOAT16",
    ),
    "a bias before it is added to a view of a product": (
        "float16[N,3,4] x, float16[4,2] v, float16[2] w",
        "m = MatMul(x, v) u = Identity(m) y = Add(w, u)",
        "FLOAT16",
    ),
    "an addend of no product": ("float16[N,3,4] x, float16[4] w", "m = Neg(x) y = Add(m, w)", "FLOAT"),
    "an addend of an input": ("float16[N,3,4] x, float16[4] w", "y = Add(x, w)", "FLOAT"),
}


@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize("name", LOW_SUMS)
def test_sums_of_linear_weights_are_low_where_that_is_asked_for(name, low):
    inputs, body, kind = LOW_SUMS[name]
    text = graph(inputs, body, outputs="float16[A,B,C] y").replace('"" : 21', '"" : 21, "com.microsoft" : 1')
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    propagate_types(model)
    values = {v.name: v for v in [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]}
    seed = ir.Value(name="seed", type=values["y"].type, shape=values["y"].shape)
    with low_weight_sums(low):
        differentiate(GraphBuilder(model), {values["y"]: seed}, [values["w"]])
    sums = {node.outputs[0].dtype.name for node in model.graph if node.op_type == "ReduceSum"}
    assert sums <= {kind if low else "FLOAT"}
    assert sums or kind == "FLOAT" or not low  # in float32, the sum over a batch may be part of a product


IN_A_BRANCH = """y = If (c) <
    then_branch = t () => (float16[2,3,2] p) { p = MatMul(x, w) },
    else_branch = e () => (float16[2,3,2] q) { n = Neg(w) q = MatMul(x, n) }>"""


@pytest.mark.parametrize("low", [True, False])
def test_weights_that_a_branch_captures(low):
    """Only the branch that multiplies by the weight itself sums its gradient low."""
    text = graph("bool c, float16[2,3,4] x, float16[4,2] w", IN_A_BRANCH, outputs="float16[A,B,C] y")
    with low_weight_sums(low):
        backward, names = gradient_model(onnx.parser.parse_model(text), ["w"])
    assert names == ["w"]
    model = ir.from_proto(backward)
    propagate_types(model)
    sums = [node.outputs[0].dtype.name for node in model.graph.all_nodes() if node.op_type == "ReduceSum"]
    assert sums == (["FLOAT16"] if low else [])


def test_a_gradient_has_the_shape_that_a_branch_knows():
    """The output of the If is of any size, and the gradient in the branch is summed by the exact one."""
    body = """y = If (c) <then_branch = t () => (float[2,3] p) { p = Add(x, b) },
                          else_branch = e () => (float[N,3] q) { q = Neg(z) }>"""
    text = graph("bool c, float[2,3] x, float[1,3] b, float[N,3] z", body, outputs="float[M,3] y")
    model = ir.from_proto(onnx.parser.parse_model(text))
    values = {v.name: v for v in [*model.graph.inputs, *model.graph.outputs]}
    seed = ir.Value(name="seed", type=values["y"].type, shape=values["y"].shape)
    model.graph.inputs.append(seed)
    grad = differentiate(GraphBuilder(model), {values["y"]: seed}, [values["b"]])[values["b"]]
    while grad.producer().op_type != "If":
        grad = grad.producer().inputs[0]
    nodes = list(grad.producer().attributes["then_branch"].as_graph())
    taken = [node.outputs[0] for node in nodes if node.op_type == "Identity" and node.inputs[0] is seed]
    assert [list(value.shape) for value in taken] == [[2, 3]]
    assert "Shape" not in {node.op_type for node in nodes}


def test_many_small_contributions_are_not_lost():
    text = graph("float16[1] b, float16[4096,1] x", "y = Add(x, b)", outputs="float16 y")
    feeds = {"b": np.zeros(1, np.float16), "x": np.zeros((4096, 1), np.float16)}
    slopes, _ = run_gradients(onnx.parser.parse_model(text), feeds, wrt=["b"], seeds={"y": np.ones((4096, 1))})
    assert slopes["b"] == 4096  # added one by one in float16 it would stay at 2048


def test_a_gradient_has_the_type_of_its_value():
    text = graph("float16[3] x, float[3] w", "h = Cast<to=1>(x) y = Mul(h, w)", outputs="float[3] y")
    backward, _ = gradient_model(onnx.parser.parse_model(text))
    types = {o.name: o.type.tensor_type.elem_type for o in backward.graph.output}
    assert types["grad_x"] == onnx.TensorProto.FLOAT16
    assert types["grad_w"] == onnx.TensorProto.FLOAT


def test_a_stand_in_gives_the_gradients_of_a_node_that_has_none():
    model, values = loaded(graph("float[2,3,3] x", "y = Det(x)", outputs="float[2] y"))
    propagate_types(model)
    builder = GraphBuilder(model)
    refused = []

    def stand_in(node, grads, counts, reason):
        refused.append((node.op_type, str(reason)))
        [grad] = grads
        return [(value, builder.expand_like(builder.sum(grad), value)) for value in node.inputs if counts(value)]

    driver = Driver(builder, {values["x"]}, set(), otherwise=stand_in)
    cotangents = driver.run(model.graph, {values["y"]: builder.zeros_like(values["y"])})
    assert [operator for operator, _ in refused] == ["Det"]
    assert cotangents[values["x"]].dtype == ir.DataType.FLOAT
