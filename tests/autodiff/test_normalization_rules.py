"""Gradients of normalizations and of Softmax."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from amp_transpiler.autodiff import differentiate
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder
from tests.autodiff.gradient_check import (
    check_by_differences,
    check_by_torch,
    gradient_model,
    needs_torch,
    run_gradients,
)

RANDOM = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype("f")


def text(body: str, inputs: str, outputs: str = "float[] y", opset: int = 21) -> str:
    return f"""<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}"""


def shaped(body: str, inputs: str, dtype: str = "float", opset: int = 21) -> str:
    """As `text`, with the shape of the result `h` declared as that of the first input: ONNX does not infer it."""
    declared = inputs[: inputs.index("]") + 1]
    return f"""<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => ({dtype}[] y)
        <{declared} h> {{ {body} y = Identity(h) }}"""


def dims(shape: tuple[int, ...]) -> str:
    """The shape with a symbolic batch."""
    return ",".join(["N", *map(str, shape[1:])])


CHANNELS = "float[3] s, float[3] b"
IMAGES = [(4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 2)]


@needs_torch
@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("opset", [14, 21])
def test_batch_normalization_that_trains(shape, opset):
    from torch.nn.functional import batch_norm

    body = "y, rm, rv = BatchNormalization <training_mode = 1, epsilon = 0.01> (x, s, b, m, v)"
    feeds = {"x": draw(*shape) + 3, "s": draw(3), "b": draw(3), "m": draw(3), "v": np.abs(draw(3))}
    model = text(body, f"float[{dims(shape)}] x, {CHANNELS}, float[3] m, float[3] v", opset=opset)
    check_by_torch(
        model,
        feeds,
        lambda x, s, b, **_: batch_norm(x, None, None, s, b, training=True, eps=0.01),
        wrt=["x", "s", "b"],
    )


@pytest.mark.parametrize("shape", IMAGES)
def test_batch_normalization_with_frozen_statistics(shape):
    feeds = {"x": draw(*shape), "s": draw(3), "b": draw(3), "m": draw(3), "v": np.abs(draw(3)) + 0.1}
    model = text(
        "y = BatchNormalization <epsilon = 0.01> (x, s, b, m, v)",
        f"float[{dims(shape)}] x, {CHANNELS}, float[3] m, float[3] v",
    )
    check_by_differences(model, feeds, wrt=["x", "s", "b"])


def test_frozen_statistics_have_no_gradient():
    model = text("y = BatchNormalization (x, s, b, m, v)", f"float[N,3] x, {CHANNELS}, float[3] m, float[3] v")
    with pytest.raises(ModelError, match="frozen mean and variance"):
        gradient_model(onnx.parser.parse_model(model), ["m"])


@pytest.mark.parametrize("axis", [-1, 1, 0, -2])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_normalization(axis, bias):
    shape = (2, 3, 4)
    scale = shape[axis:]
    size = ",".join(map(str, scale))
    feeds = {"x": draw(*shape) + 2, "s": draw(*scale)} | ({"b": draw(*scale)} if bias else {})
    inputs = f"float[2,3,4] x, float[{size}] s" + (f", float[{size}] b" if bias else "")
    body = f"y = LayerNormalization <axis = {axis}> (x, s{', b' if bias else ''})"
    check_by_differences(text(body, inputs), feeds)


@pytest.mark.parametrize(("stash", "batch"), [(1, "N"), (16, "N"), (1, "2")])
def test_layer_normalization_of_a_batch_of_any_size(stash, batch):
    if stash == 16:  # ONNX Runtime has no such kernel: the statistics are computed again, and it must only be valid
        body = f"y = LayerNormalization <stash_type = {stash}> (x, s)"
        gradient_model(onnx.parser.parse_model(text(body, f"float[{batch},3,4] x, float[4] s")))
        return
    body = "y, mean, inv = LayerNormalization <epsilon = 0.1> (x, s)"
    feeds = {"x": draw(2, 3, 4), "s": draw(4)}
    check_by_differences(text(body, f"float[{batch},3,4] x, float[4] s"), feeds)


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(axis):
    scale = (2, 3, 4)[axis:]
    body = f"y = RMSNormalization <axis = {axis}, epsilon = 0.01> (x, s)"
    model = text(body, f"float[N,3,4] x, float[{','.join(map(str, scale))}] s", opset=23)
    check_by_differences(model, {"x": draw(2, 3, 4), "s": draw(*scale)})


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 2, 4)])
def test_instance_normalization(shape):
    model = text("y = InstanceNormalization (x, s, b)", f"float[{dims(shape)}] x, {CHANNELS}")
    check_by_differences(model, {"x": draw(*shape), "s": draw(3), "b": draw(3)})


@needs_torch
@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 2, 4)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_normalization(shape, groups):
    from torch.nn.functional import group_norm

    body = f"h = GroupNormalization <num_groups = {groups}> (x, s, b)"
    model = shaped(body, f"float[{dims(shape)}] x, float[6] s, float[6] b")
    feeds = {"x": draw(*shape), "s": draw(6), "b": draw(6)}
    check_by_torch(model, feeds, lambda x, s, b: group_norm(x, groups, s, b))


@needs_torch
def test_group_normalization_with_a_scale_by_group(monkeypatch):
    monkeypatch.setattr(onnx.checker, "check_model", lambda *_, **__: None)  # to it the operator is deprecated then
    import torch
    from torch.nn.functional import group_norm

    def function(x, s, b):
        return torch.repeat_interleave(s, 3)[:, None] * group_norm(x, 2) + torch.repeat_interleave(b, 3)[:, None]

    model = shaped(
        "h = GroupNormalization <num_groups = 2> (x, s, b)", "float[2,6,5] x, float[2] s, float[2] b", opset=18
    )
    check_by_torch(model, {"x": draw(2, 6, 5), "s": draw(2), "b": draw(2)}, function)


@needs_torch
@pytest.mark.parametrize(("p", "axis"), [(1, -1), (2, -1), (2, 1), (1, 0)])
def test_lp_normalization(p, axis):
    from torch.nn.functional import normalize

    model = text(f"y = LpNormalization <p = {p}, axis = {axis}> (x)", "float[N,3,4] x")
    check_by_torch(model, {"x": draw(2, 3, 4)}, lambda x: normalize(x, p, axis))


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_of_zeros_has_gradient_zero(p):
    x = draw(3, 4)
    x[1] = 0
    slopes, _ = run_gradients(
        onnx.parser.parse_model(text(f"y = LpNormalization <p = {p}> (x)", "float[N,4] x")), {"x": x}
    )
    assert np.all(np.isfinite(slopes["x"]))
    assert not slopes["x"][1].any()
    assert slopes["x"][0].any()


@needs_torch
@pytest.mark.parametrize(("size", "channels"), [(1, 4), (3, 5), (5, 3)])
def test_lrn(size, channels):
    from torch.nn.functional import local_response_norm

    model = text(f"y = LRN <size = {size}, alpha = 0.5, beta = 0.6, bias = 2.0> (x)", f"float[N,{channels},2,2] x")
    check_by_torch(model, {"x": draw(2, channels, 2, 2)}, lambda x: local_response_norm(x, size, 0.5, 0.6, 2.0))


@needs_torch
@pytest.mark.parametrize("axes", [[1, 2], [0, 2, 3], [1]])
def test_mean_variance_normalization(axes):
    model = shaped(f"h = MeanVarianceNormalization <axes = {axes}> (x)", "float[N,3,2,2] x")

    def reference(x):
        return (x - x.mean(axes, keepdim=True)) / x.std(axes, unbiased=False, keepdim=True)

    check_by_torch(model, {"x": draw(2, 3, 2, 2)}, reference)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", ["", "<axis = 1>", "<axis = 0>"])
def test_softmax(operator, axis):
    check_by_differences(text(f"y = {operator} {axis} (x)", "float[N,3,4] x"), {"x": draw(2, 3, 4)})


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_softmax_of_masked_and_of_large_scores(operator):
    x = np.array([[1e4, -1e4, 0, 2], [1, 2, -np.inf, 0.5]], "f")
    seeds = {"y": np.array([[1, 2, 3, 4], [1, 2, 0, 4]])}
    slopes, _ = run_gradients(
        onnx.parser.parse_model(text(f"y = {operator} (x)", "float[N,4] x")), {"x": x}, seeds=seeds
    )
    assert np.all(np.isfinite(slopes["x"]))
    assert slopes["x"][1, 2] == 0
    assert np.allclose(slopes["x"].sum(-1), 0, atol=1e-5)


IMAGE = "float[2,3,2,2] x"
VARIANCE = 1e-5  # that of the inputs below: an epsilon of this size, ONNX's default, shows
SMALL = {"x": draw(2, 3, 2, 2) * np.sqrt(VARIANCE, dtype="f")}
AFFINE = {"s": draw(3), "b": draw(3)}
DEFAULTS = {
    # name: body, inputs, feeds, opset
    "BatchNormalization": (
        "y = BatchNormalization (x, s, b, m, v)",
        f"{IMAGE}, {CHANNELS}, float[3] m, float[3] v",
        {**SMALL, **AFFINE, "m": draw(3) * 1e-3, "v": np.full(3, VARIANCE, "f")},
        21,
    ),
    "LayerNormalization": ("y = LayerNormalization (x, s)", f"{IMAGE}, float[2] s", {**SMALL, "s": draw(2)}, 21),
    "RMSNormalization": ("y = RMSNormalization (x, s)", f"{IMAGE}, float[2] s", {**SMALL, "s": draw(2)}, 23),
    "InstanceNormalization": (
        "y = InstanceNormalization (x, s, b)",
        f"{IMAGE}, {CHANNELS}",
        {**SMALL, **AFFINE},
        21,
    ),
    "InstanceNormalization with a large epsilon": (
        "y = InstanceNormalization <epsilon = 0.5> (x, s, b)",
        f"{IMAGE}, {CHANNELS}",
        {"x": draw(2, 3, 2, 2) + 2, **AFFINE},
        21,
    ),
    "LpNormalization": ("y = LpNormalization (x)", IMAGE, SMALL, 21),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_attributes_that_are_left_out(name):
    body, inputs, feeds, opset = DEFAULTS[name]
    wrt = [n for n in feeds if n not in ("m", "v")]
    check_by_differences(text(body, inputs, opset=opset), feeds, wrt=wrt)


@needs_torch
def test_attributes_that_are_left_out_by_torch():
    from torch.nn.functional import batch_norm, group_norm, local_response_norm

    feeds = {**SMALL, **AFFINE}
    model = shaped("h = GroupNormalization <num_groups = 3> (x, s, b)", f"{IMAGE}, {CHANNELS}")
    check_by_torch(model, feeds, lambda x, s, b: group_norm(x, 3, s, b))
    body = "y, rm, rv = BatchNormalization <training_mode = 1> (x, s, b, m, v)"
    model = text(body, f"{IMAGE}, {CHANNELS}, float[3] m, float[3] v")
    feeds |= {"m": draw(3), "v": np.ones(3, "f")}
    check_by_torch(
        model, feeds, lambda x, s, b, **_: batch_norm(x, None, None, s, b, training=True), wrt=["x", "s", "b"]
    )
    model = text("y = LRN <size = 3> (x)", IMAGE)
    check_by_torch(model, {"x": draw(2, 3, 2, 2) * 100}, lambda x: local_response_norm(x, 3))


def test_mean_variance_normalization_over_the_axes_that_are_left_out():
    """By numpy, with every axis but that of the channels. ONNX cannot type the node without the attribute."""
    model = ir.from_proto(onnx.parser.parse_model(text("y = MeanVarianceNormalization (x)", IMAGE)))
    node, x = model.graph[0], model.graph.inputs[0]
    node.outputs[0].type, node.outputs[0].shape = x.type, x.shape
    seed = ir.Value(name="seed", type=x.type, shape=x.shape)
    cotangent = differentiate(GraphBuilder(model), {node.outputs[0]: seed}, [x])[x]
    model.graph.inputs.append(seed)
    model.graph.outputs[:] = [cotangent]
    model.graph.remove(node)
    feeds = {"x": draw(2, 3, 2, 2), "seed": draw(2, 3, 2, 2)}
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    centred = feeds["x"] - feeds["x"].mean((0, 2, 3), keepdims=True)
    deviation = np.sqrt((centred**2).mean((0, 2, 3), keepdims=True))
    y, g = centred / deviation, feeds["seed"]
    want = (g - g.mean((0, 2, 3), keepdims=True) - y * (g * y).mean((0, 2, 3), keepdims=True)) / deviation
    np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-3, atol=1e-5)


TRAINS = {
    # name: (opset, outputs and attributes, whether it trains)
    "opset 14, told so": (14, "y, rm, rv = BatchNormalization <training_mode = 1>", True),
    "opset 14, told not to": (14, "y = BatchNormalization <training_mode = 0>", False),
    "opset 14, nothing said": (14, "y = BatchNormalization", False),
    "opset 13, with statistics": (13, "y, rm, rv, sm, sv = BatchNormalization", True),
    "opset 13, without": (13, "y = BatchNormalization", False),
}


@pytest.mark.parametrize("name", TRAINS)
def test_whether_a_batch_normalization_trains(name):
    """Only then its statistics are computed: from the mean of the batch."""
    opset, call, expected = TRAINS[name]
    model = text(f"{call} (x, s, b, m, v)", f"{IMAGE}, {CHANNELS}, float[3] m, float[3] v", opset=opset)
    backward, _ = gradient_model(onnx.parser.parse_model(model), ["x"])
    assert ("ReduceMean" in {node.op_type for node in backward.graph.node}) is expected


REFUSED = {
    "statistics of a LayerNormalization": (
        "y, m, i = LayerNormalization (x, s) z = Add (y, m)",
        f"{IMAGE}, float[2] s",
        "Mean and InvStdDev",
    ),
    "an LRN of unknown channels": ("y = LRN <size = 3> (x)", "float[N,C,2,2] x", "number of channels must be known"),
    "frozen statistics: the variance": (
        "y = BatchNormalization (x, s, b, m, x)",
        "float[3] x, float[3] s, float[3] b, float[3] m",
        "frozen mean and variance",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    body, inputs, word = REFUSED[name]
    outputs = "float[] z" if " z = " in body else "float[] y"
    model = onnx.parser.parse_model(text(body, inputs, outputs))
    with pytest.raises(ModelError, match=word):
        gradient_model(model, ["x"])


LOW = [
    ("y = LayerNormalization (x, s, b)", "s b", 21),
    ("y, rm, rv = BatchNormalization <training_mode = 1> (x, s, b, s, b)", "s b", 21),
    ("y = BatchNormalization (x, s, b, s, b)", "", 21),
    ("y = RMSNormalization (x, s)", "s", 23),
    ("y = InstanceNormalization (x, s, b)", "s b", 22),
    ("h = GroupNormalization <num_groups = 1> (x, s, b)", "s b", 21),
    ("y = LpNormalization (x)", "", 22),
    ("y = LRN <size = 3> (x)", "", 21),
    ("y = Softmax (x)", "", 21),
    ("y = LogSoftmax (x)", "", 21),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("body", "parameters", "opset"), LOW)
def test_low_precision_is_well_typed(body, parameters, opset, dtype):
    inputs = f"{dtype}[N,4,4] x, {dtype}[4] s, {dtype}[4] b"
    written = shaped(body, inputs, dtype, opset) if body[0] == "h" else text(body, inputs, f"{dtype}[] y", opset)
    model = onnx.parser.parse_model(written)
    backward, names = gradient_model(model, ["x", *parameters.split()])
    assert names == ["x", *parameters.split()]
    low = onnx.TensorProto.DataType.Value(dtype.upper())
    kinds = {o.name: o.type.tensor_type.elem_type for o in backward.graph.output}
    assert all(kinds[f"grad_{name}"] == low for name in names)
    assert not any(n.op_type.startswith("ReduceSum") and n.input[0] in ("x", "y__seed") for n in backward.graph.node)
