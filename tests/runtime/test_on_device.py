"""What the host's real device computes, against the emulation on the CPU. Skipped where there is none."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.paddle.nn import functional
from amp_transpiler.runtime import places
from amp_transpiler.runtime.places import CPUPlace, CUDAPlace
from amp_transpiler.runtime.session import Session

pytestmark = pytest.mark.device

PLACE = CUDAPlace(0)
DRAW = np.random.default_rng(20)
CLOSE = {"float16": 2e-3, "bfloat16": 1.6e-2}  # of the largest value: two units in the last place
CONV = """<ir_version: 10, opset_import: ["": 21]>
g (float16[4, 8, 16, 16] x) => (float16[4, 16, 16, 16] y)
{ c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w, b) y = Relu(c) }"""
PRODUCT = """<ir_version: 10, opset_import: ["": 21]>
g (bfloat16[32, 64] x) => (bfloat16[32, 48] y) { y = MatMul(x, w) }"""


def drawn(dtype, *shape):
    return DRAW.normal(size=shape).astype(dtype)


def model(text, **weights):
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return proto


def assert_close(result, expected, dtype):
    result, expected = (np.asarray(array, np.float32) for array in (result, expected))
    assert np.isfinite(expected).all()
    largest, error = np.abs(expected).max(), np.abs(result - expected).max()
    assert error <= CLOSE[dtype] * largest, f"{error} beside values up to {largest}"


def test_the_default_place_is_the_device(monkeypatch):
    monkeypatch.delenv(places.PLACE_VARIABLE, raising=False)
    assert places.default_place() == PLACE


def test_a_convolution_with_a_bias_follows_its_samples():
    # The second run is planned anew, the third is that of a CUDA graph: each has to read its own sample.
    proto = model(CONV, w=drawn(np.float16, 16, 8, 3, 3), b=drawn(np.float16, 16))
    here, emulated = Session(proto, PLACE), Session(proto, CPUPlace())
    assert (here.emulated, emulated.emulated, here.cpu_nodes) == (False, True, ())
    for _ in range(3):
        feed = {"x": drawn(np.float16, 4, 8, 16, 16)}
        assert_close(here.run(feed)[0], emulated.run(feed)[0], "float16")


def test_a_product_in_bfloat16():
    proto = model(PRODUCT, w=drawn(ml_dtypes.bfloat16, 64, 48))
    feed = {"x": drawn(ml_dtypes.bfloat16, 32, 64)}
    [result], [expected] = Session(proto, PLACE).run(feed), Session(proto, CPUPlace()).run(feed)
    assert result.dtype == expected.dtype == ml_dtypes.bfloat16
    assert_close(result, expected, "bfloat16")


def trained(place, feeds):
    """The parameters and the loss after a step of SGD at O1 for each feed."""
    main, startup = static.Program(), static.Program()
    startup.random_seed = main.random_seed = 3
    with amp.utils.unique_name.guard(), static.program_guard(main, startup):
        x, y = static.data("x", [16, 32]), static.data("y", [16, 1])
        hidden = static.nn.fc(x, size=64, activation="relu")
        loss = functional.mse_loss(static.nn.fc(hidden, size=1), y)
        static.amp.decorate(optimizer.SGD(0.05), level="O1", dtype="float16").minimize(loss, startup)
    scope, executor = static.Scope(), static.Executor(place)
    executor.run(startup, scope=scope)
    losses = [executor.run(main, feed, [loss], scope=scope)[0] for feed in feeds]
    return {parameter.name: scope[parameter.name] for parameter in main.all_parameters()}, losses


def test_steps_of_sgd():
    feeds = [{"x": drawn(np.float32, 16, 32), "y": drawn(np.float32, 16, 1)} for _ in range(4)]
    state_after, losses = trained(PLACE, feeds)
    expected, emulated = trained(CPUPlace(), feeds)
    assert state_after.keys() == expected.keys()
    assert len(state_after) == 4
    for loss, other in zip(losses, emulated, strict=True):
        assert_close(loss, other, "float16")
    for name, array in expected.items():
        if array.ndim > 1:  # a bias has hardly moved from zero
            assert_close(state_after[name], array, "float16")
