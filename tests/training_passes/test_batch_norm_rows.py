"""BatchNormalization in training by rows: forward and backward against float64, and against the form without rows."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.targets import CUDA
from amp_transpiler.targets.operator import imports_of, operator_of
from amp_transpiler.training_passes import LowerBatchNorm
from tests.support import array, parse
from tests.training_passes.batch_norms import NUMPY, expected, numbers, trained


def by_rows(model):
    return any(node.op_type == "LayerNormalization" for node in model.graph)


SHAPES = [(4, 3), (1, 3), (4, 3, 6), (4, 3, 5, 6), (1, 3, 5, 6), (6, 1, 5, 4), (2, 3, 2, 3, 4), (5, 3, 1, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", NUMPY)
def test_values_and_gradients(run, shape, dtype):
    model, feeds = trained(shape, dtype), numbers(shape, dtype)
    assert LowerBatchNorm()(model).count == 1
    verify(model, "lowering")
    assert [node.op_type for node in model.graph].count("LayerNormalization") == 2
    assert not any(node.op_type == "ReduceMean" or "training_mode" in node.attributes for node in model.graph)
    unit = {"float": 4e-6, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
    for name, result, wanted in zip(
        ("y", "mean", "var", "dx", "dscale", "dbias"), run(emulate(model).model, feeds), expected(feeds), strict=True
    ):
        exact = name in ("mean", "var", "dbias")  # these are in float32 throughout
        size = np.abs(wanted).max() if name != "dx" else np.abs(np.asarray(feeds["g_in"], float)).max()
        np.testing.assert_allclose(
            np.asarray(result, np.float64), wanted, rtol=0, atol=3 * size * (2e-6 if exact else unit), err_msg=name
        )


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_sums_of_gradients_lose_nothing_in_16_bits(run, offset):
    """Sums of large gradients overflow float16, those of small ones vanish in it: scale and bias notice neither."""
    shape = (64, 4, 16, 16)
    for factor in (1e-6, 8.0):
        feeds = numbers(shape, "float16", offset=offset)
        feeds["g_in"] = (np.abs(array(*shape, seed=7)) * factor).astype(np.float16).astype(np.float32)
        model = trained(shape, "float16")
        LowerBatchNorm()(model)
        *_, to_scale, to_bias = run(emulate(model).model, feeds)
        *_, wanted_scale, wanted_bias = expected(feeds)
        np.testing.assert_allclose(to_bias, wanted_bias, rtol=1e-5)
        spread = np.sqrt(np.square(np.asarray(feeds["g_in"], float)).sum((0, 2, 3)) * 64 * 256)
        assert np.abs(to_scale - wanted_scale).max() <= 1e-3 * spread.max()


def test_a_constant_gradient_and_a_constant_channel(run):
    shape = (4, 3, 2, 2)
    feeds = numbers(shape, "float")
    feeds["x_in"][:, 1], feeds["g_in"][:, 2] = 5.0, 1e-3
    model = trained(shape)
    LowerBatchNorm()(model)
    for result, wanted in zip(run(model, feeds), expected(feeds), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_overflow_reaches_every_gradient_of_its_channel(run, bad):
    shape = (4, 3, 2, 2)
    feeds = numbers(shape, "float16")
    feeds["g_in"][1, 2, 0, 0] = bad
    model = trained(shape, "float16")
    LowerBatchNorm()(model)
    *_, dx, to_scale, to_bias = run(emulate(model).model, feeds)
    assert not np.isfinite(to_bias[2])
    assert not np.isfinite(to_scale[2])
    assert not np.isfinite(dx[:, 2]).any()
    assert np.isfinite(dx[:, :2]).all()


# what is different: the arguments of `trained`
KEPT = {
    "an old opset": {"shape": (4, 3, 2, 2), "opset": 16},
    "unknown sizes": {"shape": ("N", 3, 2, 2)},
    "float64": {"shape": (4, 3, 2, 2), "dtype": "double", "stats": "double"},
}


@pytest.mark.parametrize("arguments", KEPT.values(), ids=KEPT)
def test_other_forms_stay_without_rows(arguments):
    model = trained(**arguments)
    assert LowerBatchNorm()(model).count == 1
    assert not by_rows(model)
    assert any(node.op_type == "ReduceMean" for node in model.graph)


def test_a_gradient_that_something_reads_into_stays(run):
    shape = (4, 3, 5, 6)
    model, feeds = trained(shape, between="Sqrt"), numbers(shape, "float")
    LowerBatchNorm()(model)
    assert [node.op_type for node in model.graph].count("LayerNormalization") == 1  # the forward pass alone
    y, mean, var, _, *gradients = run(model, feeds)
    for result, wanted in zip((y, mean, var, *gradients), expected(feeds), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", NUMPY)
def test_every_operator_has_a_cuda_kernel(dtype):
    model = trained((4, 3, 5, 6), dtype)
    LowerBatchNorm()(model)
    imports = imports_of(model.graph.opset_imports)
    missing = [node.op_type for node in model.graph if not CUDA.has_kernel(operator_of(node, imports))]
    assert not missing


def test_running_statistics_of_layers_of_one_size_are_updated_together(run):
    layers = 19  # more than go into one update
    names = [f"{kind}{i}" for i in range(layers) for kind in ("m", "v")]
    inputs = ", ".join(f"float[3] {name}" for name in names)
    results = ", ".join(f"float[3] {name}_out" for name in names)
    body, h = "", "x"
    for i in range(layers):
        body += (
            f"[bn{i}] y{i}, m{i}_out, v{i}_out = BatchNormalization"
            f" <training_mode = 1> ({h}, scale, bias, m{i}, v{i})\n"
        )
        h = f"y{i}"
    proto = parse(
        f"(float[4,3,2] x, float[3] scale, float[3] bias, {inputs}) => (float[4,3,2] {h}, {results}) {{ {body} }}",
        opset=21,
    )
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    propagate_types(model)
    feeds = {"x": array(4, 3, 2) * 3 + 1, "scale": array(3, seed=1) + 2, "bias": array(3, seed=2)}
    feeds.update({name: np.abs(array(3, seed=i)) for i, name in enumerate(names)})
    wanted = run(model, feeds)
    order = [value.name for value in model.graph.outputs]
    assert LowerBatchNorm()(model).count == layers
    assert [node.op_type for node in model.graph].count("Split") == 2
    assert [value.name for value in model.graph.outputs] == order
    for statistic, reference in zip(run(model, feeds), wanted, strict=True):
        np.testing.assert_allclose(statistic, reference, rtol=3e-5, atol=1e-5)
