"""The table of linear operators, every row against ONNX Runtime's numbers."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision.training.linearity import LINEAR, is_zero, linearity_of
from tests.support import array, parse, run

X = "float[4,4] x"
CASES = {
    "Add": [("x, y", "")],
    "AveragePool": [("v", "<kernel_shape = [2, 2]>")],
    "Cast": [("x", "<to = 11>")],
    "Col2Im": [("c, two4, two2", "")],
    "Concat": [("x, y", "<axis = 0>")],
    "Conv": [("v, k", ""), ("v, k, zeros", "")],
    "ConvTranspose": [("v, k", "")],
    "CumSum": [("x, one", "")],
    "DepthToSpace": [("v", "<blocksize = 2>")],
    "Div": [("x, y", "")],
    "Einsum": [("x, y", '<equation = "ij,jk->ik">')],
    "Expand": [("x, shape3", "")],
    "Flatten": [("v", "")],
    "Gather": [("x, two", "")],
    "GatherElements": [("x, places", "")],
    "GatherND": [("x, rows", "")],
    "Gemm": [("x, y", "<transA = 1, alpha = 0.5>"), ("x, y, zeros", "")],
    "GlobalAveragePool": [("v", "")],
    "Identity": [("x", "")],
    "MatMul": [("x, y", "")],
    "MaxUnpool": [("v, at, out", "<kernel_shape = [2, 2], strides = [2, 2]>")],
    "Mean": [("x, y", "")],
    "Mul": [("x, y", "")],
    "Neg": [("x", "")],
    "Pad": [("x, pads", ""), ("x, pads", '<mode = "reflect">'), ("x, pads, nought", "")],
    "ReduceMean": [("x", "")],
    "ReduceSum": [("x, zero", "")],
    "Reshape": [("x, two2by", "")],
    "ReverseSequence": [("x, lengths", "")],
    "ScatterElements": [("x, places, y", ""), ("x, places, y", '<reduction = "add">')],
    "ScatterND": [("x, rows, y", '<reduction = "add">')],
    "Slice": [("x, one, two", "")],
    "SpaceToDepth": [("v", "<blocksize = 2>")],
    "Split": [("x", "<num_outputs = 2>")],
    "Squeeze": [("v1, zero", "")],
    "Sub": [("x, y", "")],
    "Sum": [("x, y", "")],
    "Tile": [("x, two2", "")],
    "Transpose": [("x", "")],
    "Trilu": [("x", "")],
    "Unsqueeze": [("x, zero", "")],
    "Where": [("mask, x, y", "")],
}
FLOATS = {"x": (4, 4), "y": (4, 4), "v": (1, 4, 4, 4), "k": (4, 4, 3, 3), "c": (1, 4, 9), "v1": (1, 4, 4)}
CONSTANTS = {
    "zeros": np.zeros(4, np.float32),
    "nought": np.float32(0),
    "zero": np.array([0], np.int64),
    "one": np.array([1], np.int64),
    "two": np.array([2], np.int64),
    "two2": np.array([2, 2], np.int64),
    "two4": np.array([4, 4], np.int64),
    "two2by": np.array([2, 8], np.int64),
    "shape3": np.array([3, 4, 4], np.int64),
    "places": np.array([[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]], np.int64),
    "rows": np.array([[3], [1], [0], [2]], np.int64),
    "pads": np.array([1, 0, 1, 2], np.int64),
    "lengths": np.array([1, 2, 3, 4], np.int64),
    "at": np.arange(0, 256, 4, dtype=np.int64).reshape(1, 4, 4, 4),
    "out": np.array([1, 4, 8, 8], np.int64),
    "mask": array(4, 4, seed=9) > 0,
}
ROWS = [(op, inputs, attributes) for op, cases in CASES.items() for inputs, attributes in cases]


def model_of(op, inputs, attributes, opset=21):
    names = inputs.split(", ")
    declared = ", ".join(f"float{list(FLOATS[name])} {name}" for name in names if name in FLOATS)
    results = "r0, r1" if op == "Split" else "r0"
    kind = "double" if "11" in attributes else "float"
    outputs = ", ".join(f"{kind}[] {name}" for name in results.split(", "))
    model = parse(
        f"({declared}) => ({outputs}) {{ {results} = {op} {attributes} ({inputs}) }}",
        opset=opset,
        **{name: CONSTANTS[name] for name in names if name in CONSTANTS},
    )
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def node_of(model):
    loaded = ir.from_proto(model)
    propagate_types(loaded)
    return next(iter(loaded.graph))


def test_every_row_is_tried():
    assert LINEAR.keys() == CASES.keys()


@pytest.mark.parametrize(("op", "inputs", "attributes"), ROWS)
def test_a_row_holds(op, inputs, attributes):
    """`f(2 x) = 2 f(x)` and `f(x + z) = f(x) + f(z)`, for the inputs that the row names."""
    model, names = model_of(op, inputs, attributes), inputs.split(", ")
    row = linearity_of(node_of(model))
    assert row is not None
    fixed = {name: array(*FLOATS[name], seed=1) for name in names if name in FLOATS}
    groups = [row.together] if row.together else [(index,) for index in row.either]
    for group in groups:
        moved = [names[index] for index in group if index < len(names) and names[index] in FLOATS]
        assert moved
        x, z = ({name: array(*FLOATS[name], seed=seed) for name in moved} for seed in (2, 3))
        at_x, at_z = run(model, fixed | x), run(model, fixed | z)
        double = run(model, fixed | {name: 2 * value for name, value in x.items()})
        both = run(model, fixed | {name: x[name] + z[name] for name in moved})
        for name, value in at_x.items():
            np.testing.assert_array_equal(double[name], 2 * value)
            np.testing.assert_allclose(both[name], value + at_z[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Relu", "x", ""),
        ("Cast", "x", "<to = 6>"),
        ("Conv", "v, k, b", ""),
        ("Gemm", "x, y, x", ""),
        ("Pad", "x, pads, s", ""),
        ("ScatterElements", "x, places, y", '<reduction = "mul">'),
        ("Mul", "n, n", ""),
    ],
)
def test_what_is_not_linear_has_no_row(op, inputs, attributes):
    kind = "int64[4,4]" if op == "Mul" else "float[]"
    kind = "int32[]" if op == "Cast" else kind
    declared = f"float[4,4] x, float[4,4] y, {'float[1,4,4,4]'} v, float[4,4,3,3] k, float[4] b, float s, int64[4,4] n"
    weights = {name: CONSTANTS[name] for name in ("places", "pads")}
    model = parse(f"({declared}) => ({kind} r) {{ r = {op} {attributes} ({inputs}) }}", **weights)
    assert linearity_of(node_of(model)) is None


def test_zeros_are_seen_through_movement():
    text = "z = ConstantOfShape(s) t = Transpose(z) e = Expand(t, s) o = ConstantOfShape <value = float[1] {1}> (s)"
    model = ir.from_proto(
        parse(f"(float[2,2] x) => (float[2,2] r) {{ {text} r = Sum(x, z, e, o) }}", s=np.array([2, 2], np.int64))
    )
    values = {value.name: value for node in model.graph for value in node.outputs} | {model.graph.inputs[0].name: None}
    assert [is_zero(values[name]) for name in ("z", "e", "o")] == [True, True, False]
