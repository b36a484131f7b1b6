"""A convolution and the BatchNormalization behind it: all gradients, in each way to compute them, against float64."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.autodiff.driver import differentiate
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.targets import CUDA
from amp_transpiler.targets.operator import imports_of, operator_of
from amp_transpiler.training_passes import LowerBatchNorm, lower_batch_norm
from amp_transpiler.training_passes.batch_norm_forms import BatchNormForm, ConvolutionSizes
from amp_transpiler.training_passes.cheapest_batch_norm import cheapest_form
from tests.support import array, parse
from tests.training_passes.batch_norms import NUMPY, TYPES

FLOAT = ir.DataType.FLOAT
COARSER = {"float16": 1, "bfloat16": 8}  # how much larger a step of the format is


def layer(data, weight, dtype="float", attributes="", wanted=("z", "w", "scale", "bias"), more=""):
    """A convolution and a BatchNormalization, forward and backward, with the gradient of the result as an input."""
    c, m = data[1], weight[0]
    sizes = [",".join(map(str, shape)) for shape in (data, weight)]
    low, plane = TYPES[dtype], ",".join(["N", str(m), *"HWD"[: len(data) - 2]])
    text = (
        f"(float[{sizes[0]}] z_in, float[{sizes[1]}] w_in, float[{m}] scale, float[{m}] bias, float[{m}] mean,"
        f" float[{m}] var) => (float[{plane}] y_out) {{ z = Cast <to = {low}> (z_in) w = Cast <to = {low}> (w_in)"
        f" x = Conv {attributes} (z, w) y, mean_out, var_out = BatchNormalization <training_mode = 1>"
        f" (x, scale, bias, mean, var) y_out = Cast <to = 1> (y) {more} }}"
    )
    assert c == weight[1]
    model = ir.from_proto(onnx.shape_inference.infer_shapes(parse(text, opset=22)))
    propagate_types(model)
    values = {value.name: value for node in model.graph for value in (*node.inputs, *node.outputs)}
    builder = GraphBuilder(model)
    seed = ir.Value(name="g_in", type=ir.TensorType(FLOAT), shape=values["y"].shape)
    model.graph.inputs.append(seed)
    g = builder.cast(seed, values["y"].dtype)
    gradients = differentiate(builder, {values["y"]: g}, [values[name] for name in wanted])
    model.graph.outputs.extend(builder.op("Cast", [gradients[values[name]]], {"to": FLOAT.value}) for name in wanted)
    propagate_types(model)
    return model


def numbers(model, dtype, *, offset=0.0, along=0.0, level=0.0):
    """Feeds of a layer; its gradient is noise, a part along the result, and a mean."""
    shapes = {value.name: tuple(value.shape) for value in model.graph.inputs}
    feeds = {name: array(*shape, seed=len(name) + index) for index, (name, shape) in enumerate(shapes.items())}
    feeds["z_in"] = np.maximum(feeds["z_in"], -0.5) + offset
    feeds["w_in"] = feeds["w_in"] / np.sqrt(np.prod(shapes["w_in"][1:]))
    rounded = {name: feeds[name].astype(NUMPY[dtype]).astype(np.float32) for name in ("z_in", "w_in")}
    feeds.update(rounded)
    if along:
        x = np.einsum("nc...,mc->nm...", feeds["z_in"], feeds["w_in"].reshape(feeds["w_in"].shape[:2]))
        axes = (0, *range(2, x.ndim))
        feeds["g_in"] = feeds["g_in"] + along * (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)
    feeds["g_in"] = (1e-2 * (feeds["g_in"] + level)).astype(NUMPY[dtype]).astype(np.float32)
    feeds["var"] = np.abs(feeds["var"])
    return feeds


@pytest.fixture
def lowered(monkeypatch):
    """Lower the BatchNormalization of a model in one form."""

    def lower(model, form):
        monkeypatch.setattr(lower_batch_norm, "cheapest_form", lambda *_: form)
        assert LowerBatchNorm()(model).count == 1
        verify(model, "lowering")
        return model

    return lower


# name -> data, weight, attributes of the convolution, the gradients that are wanted
LAYERS = {
    "one tap": ((4, 3, 4, 6), (5, 3, 1, 1), "", ("z", "w", "scale", "bias")),
    "rows of no aligned length": ((4, 3, 5, 7), (5, 3, 1, 1), "", ("z", "w", "scale", "bias")),
    "one sample": ((1, 3, 8, 8), (5, 3, 1, 1), "", ("z", "w", "scale", "bias")),
    "narrower": ((2, 6, 4, 4), (3, 6, 1, 1), "", ("z", "w", "scale", "bias")),
    "one row of ones": ((2, 7, 4, 4), (5, 7, 1, 1), "", ("z", "w", "scale", "bias")),
    "eight rows of ones": ((2, 8, 4, 4), (5, 8, 1, 1), "", ("z", "w", "scale", "bias")),
    "along one axis": ((2, 3, 16), (5, 3, 1), "", ("z", "w", "scale", "bias")),
    "a first layer": ((4, 3, 4, 4), (5, 3, 1, 1), "", ("w", "scale", "bias")),
    "a frozen norm": ((4, 3, 4, 4), (5, 3, 1, 1), "", ("z", "w")),
}
TAPS = {
    "taps": ((2, 3, 6, 5), (5, 3, 3, 3), "<pads = [1, 1, 1, 1]>", ("z", "w", "scale", "bias")),
    "a stride": ((2, 3, 6, 6), (5, 3, 1, 1), "<strides = [2, 2]>", ("z", "w", "scale", "bias")),
    "a frozen weight": ((2, 3, 6, 5), (5, 3, 3, 3), "", ("z",)),
}
WAYS = [(name, row, way) for name, row in LAYERS.items() for way in ("slope", "moments")]
WAYS += [(name, row, "slope") for name, row in TAPS.items()]


@pytest.mark.parametrize(("row", "way"), [case[1:] for case in WAYS], ids=[f"{case[0]}-{case[2]}" for case in WAYS])
@pytest.mark.parametrize("dtype", NUMPY)
def test_gradients_are_those_of_both_apart(run, lowered, row, way, dtype):
    data, weight, attributes, wanted = row
    apart = layer(data, weight, "float", attributes, wanted)
    feeds = numbers(apart, dtype)
    together = lowered(layer(data, weight, dtype, attributes, wanted), BatchNormForm(1, 1, way=way))
    results = run(emulate(together).model, feeds)
    limit = 2e-5 if dtype == "float" else 4e-3 * COARSER[dtype]
    for name, result, expected in zip(("y", *wanted), results, run(apart, feeds), strict=True):
        off = np.linalg.norm(result - expected) / np.linalg.norm(expected)
        assert off < limit, f"{name}: {off:.1e}"


# the data, the size of the part of the gradient along the result, of its mean, and of the data's -> how far off, as a
# share, the gradients of data, weight, scale and bias may be in float16; in bfloat16 eight times as far
SMALL, LONG = (16, 16, 28, 28), (1, 8, 256, 256)
ROUNDED = {
    "noise": (SMALL, 0.0, 0.0, 0.5, (6e-4, 1e-3, 1e-3, 5e-4)),
    "along the data": (SMALL, 0.5, 0.0, 0.5, (6e-4, 4e-3, 2e-4, 5e-4)),
    "with a mean": (SMALL, 0.3, 0.5, 0.5, (6e-4, 3e-3, 2e-4, 2e-4)),
    "data with a large mean": (SMALL, 0.3, 0.5, 4.0, (8e-4, 2e-3, 2e-4, 2e-4)),
    "one sample": (LONG, 0.3, 0.5, 0.5, (6e-4, 2e-2, 2e-4, 3e-4)),
    "one sample with a large mean": (LONG, 0.3, 0.5, 4.0, (2e-3, 2e-2, 2e-4, 3e-4)),
}


def offs_of(run, lowered, case, way, dtype):
    """How far off the gradients are in 16 bits, as shares of their sizes."""
    data, along, level, offset, _ = case
    weight = (64, data[1], 1, 1)
    apart = layer(data, weight, "float")
    feeds = numbers(apart, dtype, offset=offset, along=along, level=level)
    results = run(emulate(lowered(layer(data, weight, dtype), BatchNormForm(1, 1, True, way))).model, feeds)[1:]
    pairs = zip(results, run(apart, feeds)[1:], strict=True)
    return [np.linalg.norm(result - expected) / np.linalg.norm(expected) for result, expected in pairs]


@pytest.mark.parametrize("dtype", COARSER)
@pytest.mark.parametrize("case", ROUNDED.values(), ids=ROUNDED)
def test_moments_in_16_bits_lose_little(run, lowered, case, dtype):
    offs = offs_of(run, lowered, case, "moments", dtype)
    limits = [COARSER[dtype] * limit for limit in case[-1]]
    assert all(off < limit for off, limit in zip(offs, limits, strict=True)), [f"{off:.1e}" for off in offs]


@pytest.mark.parametrize("dtype", COARSER)
@pytest.mark.parametrize("case", ROUNDED.values(), ids=ROUNDED)
def test_a_slope_loses_no_more_in_16_bits_than_both_apart(run, lowered, case, dtype):
    offs = [offs_of(run, lowered, case, way, dtype) for way in ("slope", "apart")]
    for name, off, apart in zip("zwsb", *offs, strict=True):
        assert off < 1.3 * apart + 7e-4 * COARSER[dtype], name


@pytest.mark.parametrize("way", ["slope", "moments"])
@pytest.mark.parametrize("dtype", COARSER)
def test_neither_x_nor_its_slope_is_computed(lowered, way, dtype):
    before = layer((4, 3, 4, 8), (5, 3, 1, 1), dtype)
    model = lowered(layer((4, 3, 4, 8), (5, 3, 1, 1), dtype), BatchNormForm(1, 1, way=way))
    first, last = (sum("Conv" in node.op_type for node in graph.graph) for graph in (before, model))
    assert (first, last) == (2, 2 if way == "slope" else 3)  # and what the data add to their gradient
    reads = [value for node in model.graph for value in node.inputs if value is not None and value.name == "x"]
    assert bool(reads) == (way == "slope")


# what is different in a layer -> whether its convolution stays as it is
APART = {
    "the gradient of the result is read elsewhere": ("read", True),
    "the result is read elsewhere": ("result", False),
    "the pass leaves convolutions alone": ("option", True),
}


@pytest.mark.parametrize(("change", "apart"), APART.values(), ids=APART)
def test_what_else_reads_a_layer_gets_what_it_got(run, monkeypatch, change, apart):
    seen = []
    monkeypatch.setattr(lower_batch_norm, "cheapest_form", lambda *facts: form_for(facts, seen))
    model, plain = (layer((4, 3, 4, 8), (5, 3, 1, 1), more=" x_out = Identity (x)") for _ in range(2))
    for source in (model, plain):
        values = {value.name: value for node in source.graph for value in node.outputs}
        if change == "result":
            source.graph.outputs.append(values["x_out"])
        if change == "read":
            adjoint = next(node for node in source.graph if node.op_type == "ConvTranspose")
            source.graph.outputs.append(GraphBuilder(source).op("Neg", [adjoint.inputs[0]]))
    feeds = numbers(plain, "float")
    expected = run(plain, feeds)
    LowerBatchNorm(with_convolutions=change != "option")(model)
    assert (seen == [None]) == apart
    for result, wanted in zip(run(model, feeds), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-5 * np.abs(wanted).max())


def form_for(facts, seen):
    """Moments where there is a convolution."""
    seen.append(facts[3])
    return BatchNormForm(1, 1) if facts[3] is None else BatchNormForm(1, 1, way="moments")


@pytest.mark.parametrize("way", ["slope", "moments"])
@pytest.mark.parametrize("dtype", NUMPY)
def test_every_operator_has_a_cuda_kernel(lowered, dtype, way):
    model = lowered(layer((4, 3, 4, 8), (5, 3, 1, 1), dtype), BatchNormForm(1, 1, way=way))
    imports = imports_of(model.graph.opset_imports)
    assert not [node.op_type for node in model.graph if not CUDA.has_kernel(operator_of(node, imports))]


@pytest.mark.parametrize("way", ["slope", "moments"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_overflow_reaches_the_gradients(run, lowered, bad, way):
    model = lowered(layer((4, 3, 4, 8), (5, 3, 1, 1), "float16"), BatchNormForm(1, 1, way=way))
    feeds = numbers(model, "float16")
    feeds["g_in"][1, 2, 0, 0] = bad
    _, to_data, to_weight, to_scale, to_bias = run(emulate(model).model, feeds)
    assert not any(np.isfinite(values).any() for values in (to_weight[2], to_scale[2], to_bias[2], to_data))


def test_a_constant_channel_has_no_variance_below_zero(run, lowered):
    """What is computed from rounded sums may be below 0: then 1 over the deviation would be no number."""
    model = lowered(layer((4, 3, 4, 8), (5, 3, 1, 1), "float16"), BatchNormForm(1, 1, way="moments"))
    feeds = numbers(model, "float16")
    feeds["z_in"][:, 1] = feeds["z_in"][:, 0]
    feeds["w_in"][2] = np.array([1, -1, 0], np.float32).reshape(3, 1, 1)
    for result in run(emulate(model).model, feeds):
        assert np.isfinite(result).all()
    y = run(emulate(model).model, feeds)[0]
    np.testing.assert_allclose(y[:, 2], np.broadcast_to(feeds["bias"][2], y[:, 2].shape), atol=2e-3)


# data -> how far off the result may be in float16, as a share, where channels of the data are nearly alike; in bfloat16
# ten times as far, since centred data are rounded, and what they differ by is a tenth of them
ALIKE = {
    "many samples": ((32, 3, 16, 16), 1.5e-2),
    "few samples": ((16, 3, 16, 16), 4e-3),
    "one sample": ((1, 3, 32, 32), 4e-3),
    "rows of no aligned length": ((32, 3, 15, 15), 6e-3),
}


@pytest.mark.parametrize("dtype", COARSER)
@pytest.mark.parametrize(("data", "limit"), ALIKE.values(), ids=ALIKE)
def test_small_variances_of_channels_that_are_alike(run, lowered, data, limit, dtype):
    weight = (5, 3, 1, 1)
    apart = layer(data, weight)
    feeds = numbers(apart, dtype)
    other = feeds["z_in"][:, 0] + 0.1 * feeds["z_in"][:, 2]
    feeds["z_in"][:, 1] = other.astype(NUMPY[dtype])
    feeds["w_in"][:] = np.array([1, -1, 0], np.float32).reshape(1, 3, 1, 1)
    feeds["bias"][:] = 0
    result = run(emulate(lowered(layer(data, weight, dtype), BatchNormForm(1, 1, way="moments"))).model, feeds)[0]
    expected = run(apart, feeds)[0]
    limit *= 10 if dtype == "bfloat16" else 1
    assert np.linalg.norm(result - expected) < limit * np.linalg.norm(expected)


# data, weight, whether the convolution is pointwise and the gradient of its data wanted, type -> the way
WAYS_CHOSEN = {
    "a layer that widens": ((32, 64, 56, 56), (256, 64, 1, 1), True, True, "FLOAT16", "moments"),
    "the same in float32": ((32, 64, 56, 56), (256, 64, 1, 1), True, True, "FLOAT", "moments"),
    "a layer that narrows": ((32, 256, 56, 56), (64, 256, 1, 1), True, True, "FLOAT16", "slope"),
    "a first layer": ((1, 2, 512, 512), (256, 2, 1, 1), True, False, "FLOAT16", "moments"),
    "taps": ((128, 64, 56, 56), (64, 64, 3, 3), False, True, "FLOAT16", "slope"),
    "taps of few numbers": ((128, 512, 7, 7), (512, 512, 3, 3), False, True, "FLOAT16", "apart"),
    "bfloat16": ((32, 64, 56, 56), (256, 64, 1, 1), True, True, "BFLOAT16", "moments"),
    "taps in bfloat16": ((128, 64, 56, 56), (64, 64, 3, 3), False, True, "BFLOAT16", "slope"),
}


@pytest.mark.parametrize("row", WAYS_CHOSEN.values(), ids=WAYS_CHOSEN)
def test_prices_choose_the_way(row):
    data, weight, is_pointwise, with_data, dtype, way = row
    sizes = ConvolutionSizes(data, weight, is_pointwise, with_data, with_weight=True)
    assert cheapest_form((data[0], weight[0], *data[2:]), ir.DataType[dtype], 22, sizes).way == way


def test_no_moments_before_there_is_a_conv_of_bfloat16():
    sizes = ConvolutionSizes((32, 64, 56, 56), (256, 64, 1, 1), True, True, with_weight=True)
    assert cheapest_form((32, 256, 56, 56), ir.DataType.BFLOAT16, 21, sizes).way == "slope"
