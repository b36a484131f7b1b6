"""Equivalents give the values of the operator they replace, and decline what they cannot express."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler import static, tensor
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.paddle.nn import functional
from amp_transpiler.passes.rewrite_equivalents import EQUIVALENTS, RewriteEquivalents
from amp_transpiler.targets import CUDA

RANDOM = np.random.default_rng(7)


def parse(text: str, opset: int = 22) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}'))


def one_op(call: str, shape: str, out: str = "float", opset: int = 22, dtype: str = "float") -> ir.Model:
    sizes = ",".join("PQRST"[: shape.count(",") + 1])
    text = f"agraph ({dtype}[{shape}] x) => ({out}[{sizes}] y) {{ [the_node] y = {call} }}"
    return parse(text, opset)


def rewrite_all(model: ir.Model, *, training: bool = False) -> int:
    return RewriteEquivalents(lambda _: True, training=training)(model).count


# x is dynamic where sizes of x are given as letters; the second column is the shape that is fed.
POOLS = [
    ("1,2,9", (1, 2, 9), "kernel_shape=[3]"),
    ("1,2,9", (1, 2, 9), "kernel_shape=[3], strides=[2], pads=[1,1]"),
    ("1,2,9,8", (1, 2, 9, 8), "kernel_shape=[2,2], strides=[2,2]"),
    ("N,C,H,W", (2, 3, 9, 8), "kernel_shape=[2,2], strides=[2,2]"),
    ("N,C,H,W", (2, 3, 9, 8), "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]"),
    ("N,C,H,W", (2, 3, 10, 7), "kernel_shape=[3,2], strides=[2,3], pads=[0,1,2,0]"),
    ("N,C,H,W", (2, 3, 9, 8), "kernel_shape=[5,5], pads=[2,2,2,2]"),
    ("N,C,H,W", (2, 3, 9, 9), "kernel_shape=[2,2], dilations=[2,3]"),
    ("N,C,H,W", (2, 3, 9, 9), "kernel_shape=[3,2], dilations=[2,3], pads=[1,1,2,0], strides=[2,1]"),
    ("N,C,H,W", (2, 3, 9, 8), "kernel_shape=[1,1], strides=[2,2]"),
    ("N,C,H,W", (2, 3, 9, 8), "kernel_shape=[1,3], strides=[1,2]"),
    ("N,C,H,W", (1, 1, 4, 4), "kernel_shape=[1,1]"),
    ("N,C,D,H,W", (1, 2, 5, 6, 7), "kernel_shape=[2,3,2], strides=[1,2,2], pads=[1,0,0,0,1,1]"),
    # ceil_mode
    ("N,C,H,W", (2, 3, 6, 7), "kernel_shape=[3,3], strides=[2,2], ceil_mode=1"),
    ("N,C,H,W", (2, 3, 6, 7), "kernel_shape=[2,2], strides=[2,2], ceil_mode=1"),
    ("N,C,H,W", (2, 3, 7, 8), "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], ceil_mode=1"),
    ("1,1,4,4", (1, 1, 4, 4), "kernel_shape=[3,3], strides=[2,2], dilations=[1,1], pads=[0,1,1,0], ceil_mode=1"),
    ("1,1,10,11", (1, 1, 10, 11), "kernel_shape=[2,2], strides=[3,3], ceil_mode=1"),
    ("1,1,2,2", (1, 1, 2, 2), "kernel_shape=[1,1], strides=[2,2], ceil_mode=1"),
    ("1,1,5,6", (1, 1, 5, 6), "kernel_shape=[2,2], strides=[4,4], pads=[1,1,1,1], ceil_mode=1"),
    ("1,1,9,8", (1, 1, 9, 8), "kernel_shape=[2,2], dilations=[2,2], strides=[2,2], ceil_mode=1"),
    # auto_pad
    ("N,C,H,W", (2, 3, 9, 8), 'kernel_shape=[3,3], auto_pad="SAME_UPPER"'),
    ("N,C,H,W", (2, 3, 9, 8), 'kernel_shape=[2,4], auto_pad="SAME_LOWER"'),
    ("2,3,9,8", (2, 3, 9, 8), 'kernel_shape=[3,2], strides=[2,3], auto_pad="SAME_UPPER"'),
    ("2,3,10,8", (2, 3, 10, 8), 'kernel_shape=[2,3], strides=[3,2], auto_pad="SAME_LOWER"'),
    ("N,C,H,W", (2, 3, 9, 8), 'kernel_shape=[3,3], strides=[2,2], auto_pad="VALID"'),
    ("N,C,H,W", (2, 3, 9, 8), 'kernel_shape=[3,3], strides=[2,2], storage_order=1, auto_pad="NOTSET"'),
]


@pytest.mark.parametrize("training", [False, True], ids=["", "training"])
@pytest.mark.parametrize(("declared", "shape", "attributes"), POOLS)
def test_max_pool(run, declared, shape, attributes, training):
    x = RANDOM.normal(-5, 1, shape).astype(np.float32)  # below zero: padding by zeros would show
    x.flat[:: max(x.size // 7, 1)] = -np.inf
    model = one_op(f"MaxPool <{attributes}> (x)", declared)
    expected = run(model, {"x": x})[0]
    assert rewrite_all(model, training=training) == 1
    assert "MaxPool" not in {node.op_type for node in model.graph.all_nodes()}
    actual = run(model, {"x": x})[0]
    lowest = np.finfo(np.float32).min  # below it most of the CPU kernels know nothing
    np.testing.assert_array_equal(np.maximum(actual, lowest), np.maximum(expected, lowest))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_max_pool_pads_in_its_own_type(run, dtype):
    name = {np.float16: "float16", np.float64: "double"}[dtype]
    text = "MaxPool <kernel_shape=[2,2], dilations=[2,2], pads=[1,1,1,1]> (x)"
    model = one_op(text, "N,C,H,W", out=name, dtype=name)
    x = RANDOM.normal(-5, 1, (1, 2, 6, 6)).astype(dtype)
    expected = run(model, {"x": x})[0]
    assert rewrite_all(model) == 1
    np.testing.assert_array_equal(run(model, {"x": x})[0], expected)


def test_max_pool_uses_slices_per_axis_not_per_window_element():
    model = one_op("MaxPool <kernel_shape=[5,5], strides=[2,2]> (x)", "N,C,H,W")
    rewrite_all(model)
    kinds = [node.op_type for node in model.graph if node.op_type != "Constant"]
    assert kinds == ["Slice"] * 5 + ["Max"] + ["Slice"] * 5 + ["Max"]


ACTIVATIONS = [
    "Elu (x)",
    "Elu <alpha=0.3> (x)",
    "Elu <alpha=-2.0> (x)",
    "Selu (x)",
    "Selu <alpha=2.0, gamma=0.5> (x)",
    "ThresholdedRelu (x)",
    "ThresholdedRelu <alpha=-0.5> (x)",
    "ThresholdedRelu <alpha=0.0> (x)",
]


@pytest.mark.parametrize("call", ACTIVATIONS)
def test_activations(run, call):
    special = [0.0, -0.0, np.inf, -np.inf, 1.0, 1.0000001, -0.5, -100.0, 1e38, 1e-40, -1e-6]
    x = np.concatenate([special, RANDOM.normal(0, 3, 100)]).astype(np.float32)
    model = one_op(call, "N")
    expected = run(model, {"x": x})[0]
    assert rewrite_all(model) == 1
    np.testing.assert_allclose(run(model, {"x": x})[0], expected, rtol=2e-7, atol=1.2e-7)


@pytest.mark.parametrize(
    ("declared", "shape"), [("N,C,H,W", (2, 3, 4, 5)), ("2,3,L", (2, 3, 7)), ("N,3,D,H,W", (1, 3, 2, 3, 4))]
)
@pytest.mark.parametrize("epsilon", ["", "<epsilon=0.1>"])
def test_instance_normalization(run, declared, shape, epsilon):
    model = parse(
        f"agraph (float[{declared}] x) => (float[{declared}] y)"
        "<float[3] s = {1.0, -2.0, 0.5}, float[3] b = {0.0, 3.0, -1.0}>"
        f"{{ y = InstanceNormalization {epsilon} (x, s, b) }}"
    )
    x = RANDOM.normal(3, 2, shape).astype(np.float32)
    expected = run(model, {"x": x})[0]
    assert rewrite_all(model) == 1
    np.testing.assert_allclose(run(model, {"x": x})[0], expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_instance_normalization_of_any_number_of_axes(run, dtype):
    model = parse(
        f"agraph ({dtype}[2,3,4,5] x, {dtype}[3] s, {dtype}[3] b, int64[R] shape) => ({dtype}[P,Q,R,S] y)"
        "{ v = Reshape (x, shape) y = InstanceNormalization (v, s, b) }"
    )
    first = next(iter(model.graph))
    first.outputs[0].type = first.inputs[0].type
    arrays = {"x": RANDOM.normal(3, 2, (2, 3, 4, 5)), "s": np.array([1, -2, 0.5]), "b": np.array([0, 3, -1])}
    feeds = {name: array.astype(first.outputs[0].dtype.numpy()) for name, array in arrays.items()}
    feeds["shape"] = np.array([2, 3, 4, 5])
    expected = run(model, feeds)[0]
    assert rewrite_all(model) == 1
    tolerance = 1e-5 if dtype == "float" else 4e-3
    np.testing.assert_allclose(run(model, feeds)[0], expected, rtol=tolerance, atol=tolerance / 5)


def test_instance_normalization_of_float16_sums_in_float32(run):
    model = parse(
        "agraph (float16[1,2,2,2048] x, float16[2] s, float16[2] b) => (float16[1,2,2,2048] y)"
        "{ y = InstanceNormalization (x, s, b) }"
    )
    assert rewrite_all(model) == 1
    sums = [node for node in model.graph if node.op_type == "ReduceMean"]
    assert [node.outputs[0].dtype for node in sums] == [ir.DataType.FLOAT] * 2
    x = RANDOM.normal(300, 5, (1, 2, 2, 2048)).astype(np.float16)  # squares beyond 65504
    wide = x.astype(np.float64)
    expected = (wide - wide.mean((2, 3), keepdims=True)) / np.sqrt(wide.var((2, 3), keepdims=True) + 1e-5)
    feeds = {"x": x, "s": np.ones(2, np.float16), "b": np.zeros(2, np.float16)}
    np.testing.assert_allclose(run(model, feeds)[0], expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("attributes", "dtype"),
    [("", "float"), ("<k=1>", "float"), ("<k=-2, dtype=7>", "int64"), ("<dtype=10>", "float16")],
)
def test_eye_like_becomes_a_constant(run, attributes, dtype):
    model = one_op(f"EyeLike {attributes} (x)", "3,5", out=dtype)
    feeds = {"x": np.ones((3, 5), np.float32)}
    expected = np.eye(3, 5, {"<k=1>": 1, "<k=-2, dtype=7>": -2}.get(attributes, 0))
    assert rewrite_all(model) == 1
    assert [node.op_type for node in model.graph] == ["Constant"]
    actual = run(model, feeds)[0]
    assert actual.dtype == {"float": np.float32}.get(dtype, np.dtype(dtype if dtype != "float" else "float32"))
    np.testing.assert_array_equal(actual, expected)


DROPOUTS = ["Dropout (x)", "Dropout (x, ratio)", "Dropout (x, ratio, never)", "Dropout (x, nothing, always)"]


@pytest.mark.parametrize("call", DROPOUTS)
def test_dropout_becomes_identity(run, call):
    model = parse(
        "agraph (float[N] x) => (float[N] y)"
        "<float ratio = {0.5}, float nothing = {0.0}, bool never = {0}, bool always = {1}>"
        f"{{ y = {call} }}"
    )
    x = np.arange(6, dtype=np.float32)
    assert rewrite_all(model) == 1
    assert [node.op_type for node in model.graph] == ["Identity"]
    np.testing.assert_array_equal(run(model, {"x": x})[0], x)


SAME = """agraph (float[N,C,H,W] x) => (float[] y) {
    y = MaxPool <kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER"> (x)
}"""

DECLINED = [
    ("agraph (float[N,C,H,W] x) => (float[] y, int64[] i) { y, i = MaxPool <kernel_shape=[2,2]> (x) }", "Indices"),
    ("agraph (int8[N,C,H,W] x) => (int8[] y) { y = MaxPool <kernel_shape=[2,2]> (x) }", "INT8"),
    (
        "agraph (float[N,C,H,W] x) => (float[] y) { y = MaxPool <kernel_shape=[2,2], strides=[3,3], ceil_mode=1> (x) }",
        "size",
    ),
    (SAME, "size"),
    ("agraph (float[N] x) => (float[] y, bool[] m) { y, m = Dropout (x) }", "mask"),
    ("agraph (float[N] x, bool t) => (float[] y) <float r = {0.5}> { y = Dropout (x, r, t) }", "training_mode"),
    ("agraph (float[N] x) => (float[] y) <float r = {0.5}, bool t = {1}> { y = Dropout (x, r, t) }", "training_mode"),
    ("agraph (float[N,M] x) => (float[] y) { y = EyeLike (x) }", "shape"),
    ("agraph (float[4096,4096] x) => (float[] y) { y = EyeLike (x) }", "large"),
    ("agraph (float[3,3] x, float[3] s) => (float[] y) { y = InstanceNormalization (x, s, s) }", "axes"),
    ("agraph (float[] x) => (float[] y) { z = NoSuch (x) y = Elu (z) }", "type"),
]


@pytest.mark.parametrize(("text", "reason"), DECLINED)
def test_declined_with_a_reason_and_left_alone(text, reason):
    model = parse(text)
    before = ir.to_proto(model)
    node = list(model.graph)[-1]
    assert reason in (EQUIVALENTS[node.op_type].applies(node) or "")
    assert rewrite_all(model) == 0
    assert ir.to_proto(model) == before


def test_below_its_opset_an_equivalent_is_not_used():
    model = parse(
        "agraph (float[1,2,3] x, float[2] s) => (float[] y) { y = InstanceNormalization (x, s, s) }", opset=17
    )
    assert rewrite_all(model) == 0


def test_names_metadata_and_outputs_are_kept(run):
    text = """agraph (float[N,1,6,6] x, bool c) => (float[P,Q,R,S] z) {
        z = If (c) <
            then_branch = a () => (float[P,Q,R,S] p) { [pool] p = MaxPool <kernel_shape=[2,2], pads=[1,1,1,1]> (x) },
            else_branch = b () => (float[P,Q,R,S] q) { [elu] q = Elu (x) }
        >
    }"""
    model = parse(text)
    for node in model.graph.all_nodes():
        node.metadata_props["amp_transpiler.region"] = f"of {node.name}"
    feeds = {"x": RANDOM.normal(-3, 1, (1, 1, 6, 6)).astype(np.float32)}
    expected = [run(model, feeds | {"c": np.array(c)})[0] for c in (True, False)]
    assert rewrite_all(model) == 2
    for value, c in zip(expected, (True, False), strict=True):
        np.testing.assert_allclose(run(model, feeds | {"c": np.array(c)})[0], value, rtol=1e-6)
    bodies = {graph.name: graph for graph in model.graphs() if graph is not model.graph}
    assert [value.name for value in bodies["a"].outputs] == ["p"]
    assert [value.name for value in bodies["b"].outputs] == ["q"]
    for graph, name in ((bodies["a"], "pool"), (bodies["b"], "elu")):
        assert {node.metadata_props["amp_transpiler.region"] for node in graph} == {f"of {name}"}
        assert all(str(node.name).startswith(name) for node in graph)
        assert [node.name for node in graph][-1] == name
    named = [value.name for node in model.graph.all_nodes() for value in node.outputs]
    assert len(named) == len(set(named))


def test_every_operator_that_an_equivalent_writes_has_a_cuda_kernel_at_opset_22():
    calls = [
        ("MaxPool <kernel_shape=[2,2], dilations=[2,2], pads=[1,1,1,1]> (x)", "N,1,6,6"),
        ("MaxPool <kernel_shape=[3,3], pads=[1,1,1,1]> (x)", "N,1,6,6"),
        ("Elu <alpha=2.0> (x)", "N"),
        ("Selu (x)", "N"),
        ("ThresholdedRelu (x)", "N"),
        ("Dropout (x)", "N"),
    ]
    table = CUDA.table
    for call, shape in calls:
        model = one_op(call, shape)
        assert rewrite_all(model) == 1
        for node in model.graph:
            version = onnx.defs.get_schema(node.op_type, 22, "").since_version
            if node.op_type not in ("Constant", "Shape"):  # folded, and computed on the host
                assert table.has_kernel("", node.op_type, version, {"T": "tensor(float)"}), node.op_type


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), ((5, 2), (3, 2), (2, 1))])
def test_a_pool_that_is_trained_has_the_gradient_of_max_pool(kernel, stride, padding):
    x = RANDOM.normal(size=(2, 3, 12, 11)).astype(np.float32)
    rows = []
    for training in (False, True):
        main = static.Program()
        with static.program_guard(main, static.Program()):
            data = static.data("x", x.shape)
            data.stop_gradient = False
            pooled = functional.max_pool2d(data, kernel, stride, padding)
            if training:
                assert rewrite_all(main.model, training=True) == 1
                infer_shapes(main.model)
            (gradient,) = static.gradients([tensor.sum(pooled * pooled * pooled)], [data])
        operators = {node.op_type for node in main.model.graph}
        assert ("MaxPool" in operators) != training
        assert "NonZero" not in operators  # all shapes are known
        with static.Executor(amp.CPUPlace()) as executor:
            rows.append(executor.run(main, {"x": x}, [pooled, gradient]))
    for old, new in zip(*rows, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-6)
