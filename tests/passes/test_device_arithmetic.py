"""Low programs rewritten into a device's kernels: which nodes become what, in any place of a program."""

import ml_dtypes
import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.passes.device_arithmetic.noise import DRAW, TF32
from amp_transpiler.passes.device_arithmetic.simulate import simulated
from amp_transpiler.runtime.probe.arithmetic import Rounding, tf32
from amp_transpiler.targets.arithmetic import arithmetic_of
from tests import support
from tests.support import NUMPY, array, parse

H100 = arithmetic_of("H100", "1.31")
ROUNDINGS = {"float16": Rounding(FLOAT16), "bfloat16": Rounding(BFLOAT16)}
F = np.float32


def on_device(model, feeds, *, shapes=None, arithmetic=H100):
    """Run what a device's kernels compute, and return the outputs by name."""
    program = simulated(amp.load(model), arithmetic, shapes).program
    onnx.checker.check_model(program.to_onnx(), full_check=True)
    with amp.Session(amp.emulate(program), amp.CPUPlace(), emulate=False) as session:
        names = [info.name for info in session.outputs]
        return dict(zip(names, session.run(dict(feeds)), strict=True))


def rules_of(model, arithmetic=H100, **shapes):
    return dict(simulated(amp.load(model), arithmetic, shapes or None).rules)


def low(values, dtype):
    return np.asarray(values, F).astype(NUMPY[dtype])


# ---- in any place of a program ----
STEPS = "y = Sigmoid (x)"
BODIES = {
    # name: the nodes that compute a sigmoid of x
    "straight": STEPS,
    "a function": "y = local.sig (x)",
    "If": """y = If (yes) <then_branch = t () => (bfloat16[N] p) { p = Sigmoid (x) },
                          else_branch = e () => (bfloat16[N] q) { q = Neg (x) }>""",
    "Loop": """y = Loop (one, yes, x) <body = b (int64 i, bool k, bfloat16[N] a) => (bool k2, bfloat16[N] a2) {
        k2 = Identity (k) a2 = Sigmoid (a) }>""",
    "Scan": """z = Unsqueeze (x, zeros)
        y, o = Scan <num_scan_inputs = 1, body = b (bfloat16[N] a, bfloat16[N] u) => (bfloat16[N] a2, bfloat16[N] v) {
            a2 = Sigmoid (a) v = Neg (u) }> (x, z)""",
    "If in Loop": """y = Loop (one, yes, x) <body = b (int64 i, bool k, bfloat16[N] a) => (bool k2, bfloat16[N] a2) {
        k2 = Identity (k)
        a2 = If (k) <then_branch = t () => (bfloat16[N] p) { p = Sigmoid (a) },
                     else_branch = e () => (bfloat16[N] q) { q = Neg (a) }> }>""",
}
SIGMOID = '<opset_import: ["": 21, "local": 1], domain: "local"> sig (a) => (b) { b = Sigmoid (a) }'
CONSTANTS = {"one": np.int64(1), "yes": np.bool_(True), "zeros": np.array([0])}
X = low(np.linspace(-9, 9, 181), "bfloat16")


@pytest.mark.parametrize("name", BODIES)
def test_rules_hold_in_every_scope(name):
    function = "local" in BODIES[name]
    model = parse(
        f"(bfloat16[N] x) => (bfloat16[N] y) {{ {BODIES[name]} }}",
        *([SIGMOID] if function else []),
        opset=21,
        imports=', "local": 1' if function else "",
        **CONSTANTS,
    )
    expected = ROUNDINGS["bfloat16"].sigmoid(X.astype(np.float64))
    result = on_device(model, {"x": X}, shapes={"x": X.shape})["y"]
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result.astype(np.float64), expected)


def test_results_keep_their_names_and_types():
    model = parse(
        """(float16[2,3] x, float16[3,4] w, float16[4] b) => (float16[2,4] y, float16[2,4] g, float16[1,4] m) {
            g = Gemm (x, w, b) y = Gelu (g) m = ReduceMean (y, a) }""",
        opset=21,
        a=np.array([0]),
    )
    result = simulated(amp.load(model), H100)
    for before, after in zip(model.graph.output, result.program.to_onnx().graph.output, strict=True):
        assert (before.name, before.type.tensor_type.elem_type) == (after.name, after.type.tensor_type.elem_type)
    assert dict(result.rules) == {"Gelu in float16": 1, "Gemm in float16": 1, "ReduceMean in float16": 1}


def test_the_program_itself_is_not_changed():
    program = amp.load(parse("(bfloat16[4] x) => (bfloat16[4] y) { y = Sigmoid (x) }"))
    before = program.to_onnx().SerializeToString(deterministic=True)
    simulated(program, H100, {"x": (4,)}, draws=True)
    assert program.to_onnx().SerializeToString(deterministic=True) == before


def test_a_float32_program_stays_as_it_is():
    model = parse("(float[4] x) => (float[4] y) { h = Relu (x) y = Tanh (h) }")
    result = simulated(amp.load(model), H100)
    assert [node.op_type for node in result.program.to_onnx().graph.node] == ["Relu", "Tanh"]
    assert (result.unmeasured, dict(result.rules)) == ((), {})


UNMEASURED = [
    # (node, opset, format, the kernels that nobody has measured)
    ("y = Log (x)", 13, "bfloat16", ("Log in bfloat16",)),
    ("y = Log (x)", 13, "float16", ()),
    ("y = ThresholdedRelu (x)", 10, "float16", ("ThresholdedRelu in float16",)),
    ("y = Transpose (x)", 13, "bfloat16", ()),
    ("y = Mish (x)", 22, "float16", ()),
]


@pytest.mark.parametrize(("node", "opset", "dtype", "expected"), UNMEASURED)
def test_kernels_that_nobody_has_measured_are_named(node, opset, dtype, expected):
    model = parse(f"({dtype}[4] x) => ({dtype}[4] y) {{ {node} }}", opset=opset)
    assert simulated(amp.load(model), H100).unmeasured == expected


def test_a_training_step_is_rewritten_too():
    """Scatter, transposed products and bias gradients: sums over leading axes are blocks."""
    model = parse(
        """(float16[512,64] g, float16[512,32] x) => (float16[32,64] dw, float16[64] db) {
            t = Transpose <perm = [1, 0]> (x) dw = MatMul (t, g) db = ReduceSum <keepdims = 0> (g, a) }""",
        a=np.array([0]),
    )
    assert rules_of(model) == {"ReduceSum in float16": 1}
    feeds = {"g": low(array(512, 64), "float16"), "x": low(array(512, 32), "float16")}
    outputs = on_device(model, feeds)
    assert outputs["db"].shape == (64,)
    np.testing.assert_allclose(outputs["db"], feeds["g"].astype(F).sum(0), atol=0.1)


# ---- forms of several opsets ----
FORMS = [
    (op, opset) for op in ("ReduceMean", "ReduceSumSquare", "ReduceLogSumExp") for opset in (11, 13, 17, 18, 21, 24, 26)
]


@pytest.mark.parametrize(("op", "opset"), FORMS)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_as_an_attribute_and_as_an_input(op, opset, keepdims):
    newer = opset >= 18
    node = f"{op} <keepdims = {keepdims}> (x, a)" if newer else f"{op} <keepdims = {keepdims}, axes = [-1]> (x)"
    model = parse(
        f"(float16[7,5] x) => (float16 y) {{ y = {node} }}", opset=opset, **({"a": np.array([-1])} if newer else {})
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    x, r = low(array(7, 5), "float16"), ROUNDINGS["float16"]
    wide = x.astype(np.float64)
    largest = wide.max(1, keepdims=True)
    expected = {
        "ReduceMean": r(r(wide.sum(1)) / 5),
        "ReduceSumSquare": r(r(wide * wide).sum(1)),
        "ReduceLogSumExp": r(r(np.log(r(r(np.exp(r(wide - largest))).sum(1)))) + largest[:, 0]),
    }[op]
    result = on_device(model, {"x": x})["y"]
    assert result.shape == ((7, 1) if keepdims else (7,))
    np.testing.assert_allclose(
        result.reshape(-1).astype(np.float64), expected, atol=2e-3 if op == "ReduceLogSumExp" else 0
    )


def test_shapes_of_a_run_fill_open_dimensions():
    model = parse("(float16[N,64] x) => (float16[1,64] y) { y = ReduceSum (x, a) }", a=np.array([0]))
    assert rules_of(model, x=(512, 64)) == {"ReduceSum in float16": 1}
    assert rules_of(model, x=(100, 64)) == {}
    proto = simulated(amp.load(model), H100, {"x": (512, 64)}).program.to_onnx()
    assert [dim.dim_param for dim in proto.graph.input[0].type.tensor_type.shape.dim] == ["N", ""]


# ---- one kernel, by numpy ----
def test_partial_sums_of_running_sums_are_rounded():
    model = parse("(float16[1,N] x) => (float16[1,N] y) { y = CumSum (x, a) }", a=np.int64(-1))
    result = on_device(model, {"x": np.ones((1, 3000), np.float16)}, shapes={"x": (1, 3000)})["y"]
    assert result[0, [0, 2046, 2047, 2048, 2999]].tolist() == [1, 2047, 2048, 2048, 2048]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_running_sums_along_any_axis(axis):
    model = parse("(float16[3,4,5] x) => (float16[3,4,5] y) { y = CumSum (x, a) }", a=np.int64(axis))
    x = low(array(3, 4, 5, scale=100), "float16")
    total, expected = 0.0, []
    for term in np.moveaxis(x, axis, 0).astype(np.float64):
        total = ROUNDINGS["float16"](total + term)
        expected.append(total)
    result = on_device(model, {"x": x})["y"].astype(np.float64)
    np.testing.assert_array_equal(result, np.moveaxis(np.array(expected), 0, axis))


@pytest.mark.parametrize("attributes", ["exclusive = 1", "reverse = 1", "exclusive = 1, reverse = 1"])
def test_other_running_sums_run(attributes):
    model = parse(f"(float16[3,4] x) => (float16[3,4] y) {{ y = CumSum <{attributes}> (x, a) }}", a=np.int64(1))
    feeds = {"x": low(array(3, 4), "float16")}
    np.testing.assert_array_equal(on_device(model, feeds)["y"], support.run_emulated(model, feeds)["y"])


SCALES = [1.0, 1e-3, 300.0]


@pytest.mark.parametrize("scale", SCALES)
def test_operands_of_float32_products_are_tf32(scale):
    """Constants and values of a run; not those of a single row."""
    w = array(64, 16, seed=1)
    for rows, through in ((4, tf32), (1, np.asarray)):
        x = array(rows, 64, scale=scale)
        model = parse(f"(float[{rows},64] x) => (float[{rows},16] y) {{ y = MatMul (x, w) }}", w=w)
        expected = through(x).astype(np.float64) @ through(w).astype(np.float64)
        np.testing.assert_allclose(on_device(model, {"x": x})["y"], expected, rtol=3e-6, atol=2e-6 * scale)


@pytest.mark.parametrize("values", ["constant", "input"])
def test_tf32_is_the_probe_s(values):
    """A product with ones in a diagonal gives the operand back as it was rounded."""
    x = np.concatenate([array(30, 2), array(2, 2, scale=1e-30), array(2, 2, scale=1e30)])
    text = "(float[34,2] z, float[2,2] w) => (float[34,2] y) { y = MatMul (x, w) }"
    if values == "input":
        model, feeds = parse(text.replace("z,", "x,")), {"x": x}
    else:
        model, feeds = parse(text, x=x), {"z": x}
    result = on_device(model, {**feeds, "w": np.eye(2, dtype=F)})["y"]
    np.testing.assert_array_equal(result.astype(np.float64), tf32(x))


@pytest.mark.parametrize("dtype", ["float16", "float"])
def test_nan_goes_through_a_recurrent_layer(dtype):
    number = np.float16 if dtype == "float16" else F
    model = parse(
        f"({dtype}[5,1,3] x) => ({dtype}[5,1,1,4] y) {{ y = LSTM <hidden_size = 4> (x, w, r) }}",
        w=array(1, 16, 3).astype(number),
        r=array(1, 16, 4).astype(number),
    )
    x = array(5, 1, 3).astype(number)
    assert np.isfinite(on_device(model, {"x": x})["y"]).all()
    x[2, 0, 1] = np.nan
    if dtype == "float16":
        assert np.isnan(on_device(model, {"x": x})["y"]).all()


LEFT_OUT = {
    # the outputs that a node leaves out: (node, opset)
    "LSTM's states": ("s, y, u = LSTM <hidden_size = 4> (x, w, r)", 22),
    "LSTM, the last state alone": (", y = LSTM <hidden_size = 4> (x, w, r)", 22),
    "Attention, the scores alone": ("h, , , y = Attention <q_num_heads = 1, kv_num_heads = 1> (x, x, x)", 24),
}


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("name", LEFT_OUT)
def test_outputs_that_a_node_leaves_out(name, draws):
    node, opset = LEFT_OUT[name]
    model = parse(
        f"(float16[5,2,3] x) => (float16 y) {{ {node} }}",
        opset=opset,
        w=array(1, 16, 3).astype(np.float16),
        r=array(1, 16, 4).astype(np.float16),
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    feeds = {"x": low(array(5, 2, 3), "float16")}
    program = simulated(amp.load(model), H100, draws=draws).program
    more = {DRAW: np.array(1, F), TF32: np.array(1, F)} if draws else {}
    result = amp.Session(amp.emulate(program), amp.CPUPlace(), emulate=False).run({**feeds, **more}, ["y"])[0]
    expected = support.run_emulated(model, feeds)["y"]
    np.testing.assert_allclose(result.astype(F), expected.astype(F), rtol=0.01, atol=1e-3)


def test_bodies_inside_a_function_that_is_written_out_read_its_inputs():
    model = parse("(float16[2,2,3] t, int64[4] s) => (float16[2,4,5,2] y) { y = AffineGrid (t, s) }", opset=20)
    feeds = {"t": low(array(2, 2, 3), "float16"), "s": np.array([2, 1, 4, 5])}
    expected = support.run_emulated(model, feeds)["y"].astype(F)
    np.testing.assert_allclose(on_device(model, feeds)["y"].astype(F), expected, atol=4e-3)


@pytest.mark.parametrize(("release", "overflows"), [("1.24", True), ("1.31", False)])
def test_a_sum_of_squares_overflows_before_1_27(release, overflows):
    model = parse(
        """(float16[2,8] x, float16[2,8] s) => (float16[2,8] y, float16[2,8] z) {
            y, m, v, z = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.00001> (x, s, w) }""",
        imports=', "com.microsoft": 1',
        w=np.ones(8, np.float16),
    )
    feeds = {"x": np.full((2, 8), 100, np.float16), "s": np.full((2, 8), 60, np.float16)}
    outputs = on_device(model, feeds, arithmetic=arithmetic_of("H100", release))
    assert outputs["y"].astype(F).tolist() == np.full((2, 8), 0.0 if overflows else 1.0).tolist()
    assert (outputs["z"] == 160).all()
