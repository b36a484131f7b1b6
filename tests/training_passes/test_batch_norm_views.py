"""BatchNormalization in training from data as they lie: against float64, with every 16-bit result rounded."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.graph.verifier import verify
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.targets import CUDA
from amp_transpiler.targets.operator import imports_of, operator_of
from amp_transpiler.training_passes import LowerBatchNorm, lower_batch_norm
from amp_transpiler.training_passes.batch_norm_forms import BatchNormForm
from amp_transpiler.training_passes.cheapest_batch_norm import cheapest_form
from tests.support import array
from tests.training_passes.batch_norms import NUMPY, expected, numbers, trained

RESULTS = ("y", "mean", "var", "dx", "dscale", "dbias")
# data, rows of a sample's channel for the statistics (0: rows of whole channels) and for the gradient
FORMS = [
    ((4, 3), 1, 1),
    ((1, 3, 8), 4, 4),
    ((4, 3, 6), 1, 1),
    ((4, 3, 5, 6), 1, 1),
    ((4, 3, 5, 6), 0, 1),
    ((4, 3, 5, 6), 5, 3),
    ((1, 3, 8, 6), 4, 4),
    ((1, 3, 8, 6), 0, 4),
    ((1, 3, 8, 6), 1, 1),
    ((6, 1, 5, 4), 1, 1),
    ((2, 3, 2, 3, 4), 1, 2),
    ((5, 3, 1, 1), 1, 1),
]


@pytest.fixture
def lowered(monkeypatch):
    """Lower the BatchNormalization of a model in one form."""

    def lower(model, pieces, gradient_pieces, by_matrices=False):
        form = BatchNormForm(pieces, gradient_pieces, by_matrices)
        monkeypatch.setattr(lower_batch_norm, "cheapest_form", lambda *_: form)
        assert LowerBatchNorm()(model).count == 1
        verify(model, "lowering")
        return model

    return lower


@pytest.mark.parametrize(("shape", "pieces", "gradient_pieces"), FORMS)
@pytest.mark.parametrize("by_matrices", [False, True])
@pytest.mark.parametrize("dtype", NUMPY)
def test_values_and_gradients(run, lowered, shape, pieces, gradient_pieces, dtype, by_matrices):
    model, feeds = lowered(trained(shape, dtype), pieces, gradient_pieces, by_matrices), numbers(shape, dtype)
    assert ("Transpose" in [node.op_type for node in model.graph]) == (pieces == 0 and 1 not in shape[:2])
    unit = {"float": 4e-6, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
    results = run(emulate(model).model, feeds)
    for name, result, wanted in zip(RESULTS, results, expected(feeds), strict=True):
        size = np.abs(wanted).max() if name != "dx" else np.abs(np.asarray(feeds["g_in"], float)).max()
        limit = 3 * size * (2e-6 if name in ("mean", "var") else unit)  # float32 throughout
        np.testing.assert_allclose(np.asarray(result, np.float64), wanted, rtol=0, atol=limit, err_msg=name)


# samples, channels, side, size of the gradient, mean and deviation of the data -> the most that dx, scale and bias are
# off, as a share of their size: rounding to 16 bits alone puts dx 2.1e-4 off
ROUNDED = {
    "usual": (16, 8, 28, 1e-3, 0.5, 1.0, 6e-4, 4e-4, 4e-4),
    "small gradients": (16, 8, 28, 1e-5, 0.5, 1.0, 4e-3, 2e-3, 2e-3),
    "large gradients": (16, 8, 28, 50.0, 0.5, 1.0, 6e-4, 4e-4, 4e-4),
    "a wide spread": (16, 8, 28, 1e-3, 0.5, 20.0, 6e-4, 4e-4, 4e-4),
    "a narrow spread": (16, 8, 14, 1e-4, 0.0, 0.1, 6e-4, 4e-4, 4e-4),
    "an offset of four deviations": (16, 8, 28, 1e-2, 4.0, 1.0, 8e-4, 1e-3, 4e-4),
}


COARSER = {"float16": 1, "bfloat16": 10}  # a step is eight times as large, and there are two kernels more that round


@pytest.mark.parametrize("by_matrices", [False, True])
@pytest.mark.parametrize("dtype", COARSER)
@pytest.mark.parametrize("case", ROUNDED.values(), ids=ROUNDED)
def test_rounding_to_16_bits_loses_little(run, lowered, case, dtype, by_matrices):
    n, c, side, size, mean, spread, *limits = case
    shape = (n, c, side, side)
    feeds = numbers(shape, dtype, offset=mean, spread=spread)
    along = (feeds["x_in"] - mean) / spread  # part of the gradient is along the data, part of it is its mean
    g = (array(*shape, seed=9) + 0.3 * along + 0.1) * size
    feeds["g_in"] = g.astype(NUMPY[dtype]).astype(np.float32)
    feeds["scale"] = (np.abs(feeds["scale"]) + 0.5).astype(NUMPY[dtype]).astype(np.float32)
    results = run(emulate(lowered(trained(shape, dtype), 1, 1, by_matrices)).model, feeds)
    for name, result, wanted, limit in zip(RESULTS[3:], results[3:], expected(feeds)[3:], limits, strict=True):
        off = np.linalg.norm(result - wanted) / np.linalg.norm(wanted)
        assert off < COARSER[dtype] * limit, f"{name}: {off:.1e}"


def test_sums_neither_overflow_nor_vanish_before_the_numbers_do(run, lowered):
    """A sum of rows is as exact as the numbers that it adds up, which are rounded to 16 bits."""
    shape = (8, 4, 32, 32)
    for size in (1e-6, 500.0):  # near the least step of float16; sums of rows are 512 thousand
        feeds = numbers(shape, "float16")
        exact = np.abs(array(*shape, seed=7)) * size
        feeds["g_in"] = exact.astype(np.float16).astype(np.float32)
        *_, to_bias = run(emulate(lowered(trained(shape, "float16"), 1, 1)).model, feeds)
        *_, wanted = expected(feeds)
        np.testing.assert_allclose(to_bias, wanted, rtol=2e-3)


def test_a_large_mean_does_not_cancel(run, lowered):
    shape = (16, 3, 8, 8)
    feeds = numbers(shape, "float", offset=3000.0)
    feeds["x_in"] += 1000 * array(16, 1, 1, 1, seed=5)  # means of samples far apart
    _, mean, var, *_ = run(lowered(trained(shape), 1, 1), feeds)
    _, wanted_mean, wanted_var, *_ = expected(feeds)
    np.testing.assert_allclose(mean, wanted_mean, rtol=1e-6)
    np.testing.assert_allclose(var, wanted_var, rtol=1e-5)


@pytest.mark.parametrize("by_matrices", [False, True])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_overflow_reaches_every_gradient_of_its_channel(run, lowered, bad, by_matrices):
    shape = (4, 3, 2, 2)
    feeds = numbers(shape, "float16")
    feeds["g_in"][1, 2, 0, 0] = bad
    *_, dx, to_scale, to_bias = run(emulate(lowered(trained(shape, "float16"), 1, 1, by_matrices)).model, feeds)
    assert not any(np.isfinite(values).any() for values in (to_bias[2], to_scale[2], dx[:, 2]))
    assert np.isfinite(dx[:, :2]).all()


def test_a_constant_gradient_and_a_constant_channel(run, lowered):
    shape = (4, 3, 2, 2)
    feeds = numbers(shape, "float")
    feeds["x_in"][:, 1], feeds["g_in"][:, 2] = 5.0, 1e-3
    for result, wanted in zip(run(lowered(trained(shape), 1, 1), feeds), expected(feeds), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("dtype", NUMPY)
def test_every_operator_has_a_cuda_kernel(lowered, dtype):
    model = lowered(trained((4, 3, 5, 6), dtype), 1, 1)
    imports = imports_of(model.graph.opset_imports)
    missing = [node.op_type for node in model.graph if not CUDA.has_kernel(operator_of(node, imports))]
    assert not missing


# shape, type -> the form that the price list prefers
CHOSEN = {
    ((32, 64, 112, 112), "FLOAT16"): (1, 1, True),
    ((32, 256, 56, 56), "FLOAT16"): (1, 1, True),
    ((32, 256, 56, 56), "FLOAT"): (1, 1, False),
    ((1, 256, 512, 512), "FLOAT16"): (64, 64, True),
    ((1, 256, 512, 512), "FLOAT"): (64, 64, False),
    ((32, 512, 7, 7), "FLOAT16"): (0, 0, False),
    ((32, 256, 56, 56), "BFLOAT16"): (1, 1, True),
    ((4, 3, 5, 6), "FLOAT16"): (0, 0, False),
}


@pytest.mark.parametrize(("case", "wanted"), CHOSEN.items())
def test_prices_choose_the_form(case, wanted):
    shape, dtype = case
    assert cheapest_form(shape, ir.DataType[dtype], 20) == BatchNormForm(*wanted)
