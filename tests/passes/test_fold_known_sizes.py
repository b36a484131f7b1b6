"""Floats that depend on sizes which the model fixes become constants; nothing else does."""

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.passes.fold_known_sizes import FoldKnownSizes
from tests.support import array, parse, run

LAST = "s = Shape (h) l = Slice (s, minus, end) f = Cast <to = 1> (l)"
SCALE = f"{LAST} r = Sqrt (f) t = Div (one, r) u = Sqrt (t) y = Mul (h, u)"
NUMBERS = {
    "minus": np.array([-1]),
    "end": np.array([1 << 62]),
    "one": np.ones((), np.float32),
    "first": np.array(0),
    "wide": np.array([0, 0, 16]),
    "w": array(8, 16),
}

# name: (declared inputs, rows and columns of the data, body, constants that are folded, operators that are left)
CASES = {
    "the scale of PyTorch's attention": (
        "float[N,8] x",
        (3, 8),
        f"h = MatMul (x, w) {SCALE}",
        [16**-0.25],
        ["Constant", "MatMul", "Mul"],
    ),
    "an open size stays": (
        "float[8,N] x",
        (8, 8),
        f"h = Neg (x) {SCALE}",
        [],
        ["Cast", "Div", "Mul", "Neg", "Shape", "Slice", "Sqrt", "Sqrt"],
    ),
    "a size by Gather": (
        "float[4,N] x",
        (4, 5),
        "h = Neg (x) s = Shape (h) d = Gather (s, first) f = Cast <to = 1> (d) y = Mul (h, f)",
        [4.0],
        ["Constant", "Mul", "Neg"],
    ),
    "a product with an open size": (
        "float[4,N] x",
        (4, 5),
        (
            "h = Neg (x) s = Shape (h) d = Gather (s, first) f = Cast <to = 1> (d) l = Slice (s, minus, end)"
            " g = Cast <to = 1> (l) p = Mul (f, g) y = Mul (h, p)"
        ),
        [4.0],
        ["Cast", "Constant", "Mul", "Mul", "Neg", "Shape", "Slice"],
    ),
    "all sizes fixed: ONNX Runtime folds them": (
        "float[3,8] x",
        (3, 8),
        f"h = MatMul (x, w) {SCALE}",
        [],
        ["Cast", "Div", "MatMul", "Mul", "Shape", "Slice", "Sqrt", "Sqrt"],
    ),
    "integers are ONNX Runtime's": (
        "float[2,8] x",
        (2, 8),
        "h = Neg (x) s = Shape (h) l = Slice (s, minus, end) q = Expand (one, l) y = Add (h, q)",
        [],
        ["Add", "Expand", "Neg", "Shape", "Slice"],
    ),
}


def prepared(name):
    inputs, _, body, _, _ = CASES[name]
    used = {key: value for key, value in NUMBERS.items() if f"{key}," in body or f"{key})" in body}
    return parse(f"({inputs}) => (float[M,K] y) {{ {body} }}", **used)


@pytest.mark.parametrize("name", CASES)
def test_floats_of_known_sizes_become_constants(name):
    _, rows, _, folded, operators = CASES[name]
    proto = prepared(name)
    model = ir.from_proto(proto)
    result = FoldKnownSizes()(model)
    constants = [constant_array(node.outputs[0]) for node in model.graph if node.op_type == "Constant"]
    np.testing.assert_allclose([float(a.item()) for a in constants], folded, rtol=1e-7)
    assert sorted(node.op_type for node in model.graph) == operators
    assert result.count == len(folded)
    assert result.modified == bool(folded)
    feeds = {"x": array(*rows)}
    np.testing.assert_array_equal(run(proto, feeds)["y"], run(ir.to_proto(model), feeds)["y"])


def test_declared_shapes_of_other_values_do_not_count():
    """They may be wrong, while the inputs' own are checked by ONNX Runtime."""
    proto = parse(
        "(float[N,M] x, float[K,16] v) => (float[A,B] y) { h = Neg (x) " + SCALE + " }",
        **{key: NUMBERS[key] for key in ("minus", "end", "one")},
    )
    model = ir.from_proto(proto)
    next(node for node in model.graph if node.op_type == "Neg").outputs[0].shape = ir.Shape([2, 16])
    assert not FoldKnownSizes()(model).modified


def test_a_scale_costs_no_cast():
    """users, piper-tts: each cast of such a scale was one more node on the CPU provider."""
    report = amp.transpile(
        prepared("the scale of PyTorch's attention"), verify=False, keep_io_types=False, prefer="size"
    )
    assert report.casts == 0
    assert [row.op for row in report.decisions if row.op != "Constant"] == ["MatMul", "Mul"]
