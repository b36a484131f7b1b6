"""Products of float16 that are kept apart from a Transpose of the batch."""

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.passes.guard_transposes import GuardTransposes
from amp_transpiler.passes.manager import run_pass
from tests.support import array, parse, run


def w(*shape):
    return array(*shape).astype(np.float16)


T = "[t] t = Transpose <perm = {}> (x)"
LAST, PADDED = ["MatMul", "Transpose"], ["Transpose", "Constant", "Reshape", "MatMul"]
# inputs and outputs, nodes, weights, operators afterwards (None: as before)
ROWS = {
    "batch first": ("[5,2,4] x", "[2,5,3]", T.format([1, 0, 2]) + " [m] y = MatMul (t, w)", w(4, 3), LAST),
    "four dimensions": ("[5,2,3,4] x", "[2,3,5,3]", T.format([1, 2, 0, 3]) + " [m] y = MatMul (t, w)", w(4, 3), LAST),
    "batch last": ("[5,2,4] x", "[2,4,3]", T.format([1, 2, 0]) + " [m] y = MatMul (t, w)", w(5, 3), PADDED),
    "weights on the left": ("[4,2,5] x", "[2,3,5]", T.format([1, 0, 2]) + " [m] y = MatMul (w, t)", w(3, 4), PADDED),
    "scaled": (
        "[5,2,4] x",
        "[2,5,3]",
        T.format([1, 0, 2]) + " [s] s = Mul (t, k) [m] y = MatMul (s, w)",
        w(4, 3),
        ["Transpose", "Mul", "Constant", "Reshape", "MatMul"],
    ),
    "read twice": (
        "[5,2,4] x",
        "[2,5,3]",
        T.format([1, 0, 2]) + " [m] a = MatMul (t, w) [r] r = Relu (t) [n] b = MatMul (r, w) [y] y = Add (a, b)",
        w(4, 3),
        ["Transpose", "MatMul", "Transpose", "Relu", "MatMul", "Add"],
    ),
    "weights transposed": (
        "[5,2,4] x",
        "[2,5,3]",
        T.format([1, 0, 2]) + " [v] v = Transpose <perm = [1, 0]> (w) [m] y = MatMul (t, v)",
        w(3, 4),
        ["Transpose", "MatMul", "Transpose"],
    ),
    "transposed weights on the left": (
        "[4,2,5] x",
        "[2,3,5]",
        T.format([1, 0, 2]) + " [v] v = Transpose (w) [m] y = MatMul (v, t)",
        w(4, 3),
        ["Transpose", "Transpose", "Constant", "Reshape", "MatMul"],
    ),
    "within the rows": ("[5,2,4] x", "[5,4,3]", T.format([0, 2, 1]) + " [m] y = MatMul (t, w)", w(2, 3), None),
    "a batch of weights": ("[5,2,4] x", "[2,5,3]", T.format([1, 0, 2]) + " [m] y = MatMul (t, w)", w(2, 4, 3), None),
    "something between": (
        "[5,2,4] x",
        "[2,5,3]",
        T.format([1, 0, 2]) + " [r] r = Relu (t) [m] y = MatMul (r, w)",
        w(4, 3),
        None,
    ),
}


def converted(row, dtype):
    inputs, result, nodes, weights, _ = row
    kind = {np.float16: "float16", np.float32: "float"}[dtype]
    scale = {"k": np.array(0.5, dtype)} if "k)" in nodes else {}
    proto = parse(f"({kind}{inputs}) => ({kind}{result} y) {{ {nodes} }}", w=weights.astype(dtype), **scale)
    model = ir.from_proto(proto)
    propagate_types(model)
    run_pass(GuardTransposes(), model)
    return proto, model


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_product_is_kept_apart(row):
    before, model = converted(row, np.float16)
    operators = row[4] or [node.op_type for node in before.graph.node]
    assert [node.op_type for node in model.graph] == operators
    assert {"m"} == {node.name for node in model.graph if node.op_type == "MatMul"} - {"n"}
    assert [output.name for output in model.graph.outputs] == ["y"]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_it_computes_the_same_numbers(row):
    # The float32 kernels, since the float16 form is what crashes.
    before, model = converted(row, np.float16)
    shape = [int(size) for size in row[0].split("]")[0].strip("[").split(",")]
    after = ir.to_proto(model)
    for proto in (before, after):
        for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
            if value.type.tensor_type.elem_type == 10:
                value.type.tensor_type.elem_type = 1
        for tensor in proto.graph.initializer:
            if tensor.data_type == 10:
                tensor.raw_data = ir.from_proto(tensor).numpy().astype(np.float32).tobytes()
                tensor.data_type = 1
    x = {"x": array(*shape)}
    np.testing.assert_allclose(run(before, x)["y"], run(after, x)["y"], rtol=1e-6)


def test_float32_is_left_alone():
    before, model = converted(ROWS["batch first"], np.float32)
    assert [node.op_type for node in model.graph] == [node.op_type for node in before.graph.node]


C = "[c] c = Cast <to = 10> (t)"
CASTS = {
    "a vector of rows": (T.format([1, 0, 2]) + f" {C} [m] p = MatMul (c, w)", ["Cast", "MatMul", "Transpose"]),
    "read as it is too": (
        T.format([1, 0, 2]) + f" {C} [m] p = MatMul (c, w) [r] z = Relu (t)",
        ["Transpose", "Cast", "MatMul", "Transpose", "Relu"],
    ),
    "scaled": (
        T.format([1, 0, 2]) + f" {C} [s] s = Mul (c, k) [m] p = MatMul (s, w)",
        ["Cast", "Transpose", "Mul", "Constant", "Reshape", "MatMul"],
    ),
    "the rows stay the last": (T.format([0, 1, 2]) + f" {C} [m] p = MatMul (c, w)", None),
}


@pytest.mark.parametrize("row", CASTS.values(), ids=CASTS)
def test_a_cast_comes_before_the_transpose(row):
    nodes, operators = row
    scale = {"k": np.array(0.5, np.float16)} if "k)" in nodes else {}
    outputs = "float[2,5,3] y, float[2,5,4] z" if "z =" in nodes else "float[2,5,3] y"
    shape = "[2,5,4]" if operators is None else "[5,2,4]"
    text = f"(float{shape} x) => ({outputs}) {{ {nodes} [back] y = Cast <to = 1> (p) }}"
    proto = parse(text, w=w(4, 3), **scale)
    model = ir.from_proto(proto)
    propagate_types(model)
    run_pass(GuardTransposes(), model)
    order = [node.op_type for node in model.graph]
    assert order == ([node.op_type for node in proto.graph.node] if operators is None else [*operators, "Cast"])
    assert {node.name for node in model.graph if node.op_type == "Cast"} == {"c", "back"}
    feeds = {"x": array(*map(int, shape.strip("[]").split(",")))}
    for name, value in run(ir.to_proto(model), feeds).items():
        np.testing.assert_allclose(value, expected(nodes, feeds["x"], name), rtol=2e-3, atol=2e-3)


def expected(nodes, x, name):
    turned = x if "[0, 1, 2]" in nodes else x.transpose(1, 0, 2)
    if name == "z":
        return np.maximum(turned, 0)
    scaled = turned.astype(np.float16).astype(np.float32) * (0.5 if "k)" in nodes else 1)
    return scaled @ w(4, 3).astype(np.float32)


def test_a_value_that_is_cast_already_is_not_cast_again():
    nodes = "[t] t = Transpose <perm = [1, 0, 2]> (x) [a] a = MatMul (x, w) [m] p = MatMul (t, w)"
    report = amp.transpile(
        parse(f"(float[5,2,4] x) => (float[5,2,3] a, float[2,5,3] p) {{ {nodes} }}", w=array(4, 3)),
        preset="mp1",
        dtype="float16",
        verify=False,
    )
    casts = [node.inputs[0].name for node in report.program.model.graph if node.op_type == "Cast"]
    assert casts.count("x") == 1
    assert report.casts == len(casts)
