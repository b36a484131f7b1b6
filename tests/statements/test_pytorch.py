"""Statements of AMD's blog on autocast and GradScaler that no other test shows."""

import numpy as np
import pytest

import amp_transpiler as amp
import train_convnet
from amp_transpiler import optimizer, static
from amp_transpiler.paddle.utils import unique_name
from tests import support
from tests.paddle import nets
from tests.support import parse

# ---- the problem ----


def test_the_coordinates_go_from_0_to_1_along_both_axes():
    """Pixel (0, 0) holds (0, 0), and (511, 0) holds (1, 0); the first channel is X."""
    points = train_convnet.grid(512)
    assert points.shape == (1, 2, 512, 512)
    assert points.dtype == np.float32
    x, y = points[0]
    assert (x[0, 0], y[0, 0]) == (0, 0)
    assert (x[0, 511], y[0, 511]) == (1, 0)
    assert (x[511, 0], y[511, 0]) == (0, 1)
    np.testing.assert_allclose(x[7], np.arange(512) / 511, rtol=1e-6)


def test_the_target_is_two_cosines_in_four_levels_from_0_to_1():
    target = train_convnet.quantised_cosine(train_convnet.grid(512))
    assert target.shape == (1, 1, 512, 512)
    np.testing.assert_allclose(np.unique(target), [0, 1 / 3, 2 / 3, 1], rtol=1e-6)
    assert train_convnet.FREQUENCY == (4, 2)
    picture = target[0, 0]
    assert (picture[0, 0], picture[0, 511]) == (1, 1), "whole periods lie between the corners"
    level = picture[0]  # y = 0: 1 + cos(8 pi x) is above the half, so its levels are the upper two
    np.testing.assert_array_equal(
        level, np.where(np.cos(8 * np.pi * np.arange(512) / 511) > 0, level.max(), level.min())
    )
    np.testing.assert_allclose([level.min(), level.max()], [2 / 3, 1], rtol=1e-6)


def test_the_network_is_the_blogs():
    """1x1 convolutions 2-256-256-256-1, BatchNormalization and Relu behind all but the last; MSE."""
    main = static.Program()
    with unique_name.guard(), static.program_guard(main, static.Program()):
        coordinates, prediction, loss = train_convnet.network(512, 256)
    layers = ["Conv", "BatchNormalization", "Relu"] * 3 + ["Conv"]
    operators = [node.op_type for node in nets.nodes(main) if node.op_type in {*layers}]
    assert operators == layers
    weights = [node.inputs[1].shape for node in nets.nodes(main, "Conv")]
    assert [tuple(shape) for shape in weights] == [(256, 2, 1, 1), *[(256, 256, 1, 1)] * 2, (1, 256, 1, 1)]
    assert (coordinates.shape, prediction.shape) == ((1, 2, 512, 512), (1, 1, 512, 512))
    assert sum(np.prod(p.shape) for p in main.all_parameters()) == 2 * 256 + 2 * 256**2 + 256 + 3 * 3 * 256 + 1
    scope, executor = static.Scope(), static.Executor(nets.CPU)
    small, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(small, startup):
        _, prediction, loss = train_convnet.network(8, 4)
    executor.run(startup, scope=scope)
    points = train_convnet.grid(8)
    feed = {"coordinates": points, "target": train_convnet.quantised_cosine(points)}
    value, mean = executor.run(small, feed, [prediction, loss], scope=scope)
    np.testing.assert_allclose(mean, np.mean((value - feed["target"]) ** 2), rtol=1e-5)


def test_the_network_starts_as_pytorchs():
    """Weights and biases are uniform up to 1 / sqrt(inputs): of 256 channels, a standard deviation of 0.036."""
    startup, scope = static.Program(), static.Scope()
    with unique_name.guard(), static.program_guard(static.Program(), startup):
        train_convnet.network(8, 256)
    static.Executor(nets.CPU).run(startup, scope=scope)
    for layer, inputs in enumerate((2, 256, 256, 256)):
        for name in (f"conv2d_{layer}.w_0", f"conv2d_{layer}.b_0"):
            limit, value = inputs**-0.5, scope[name]
            assert np.abs(value).max() <= limit
            assert value.std() == pytest.approx(limit / 3**0.5, rel=0.15) or value.size == 1
    assert f"{scope['conv2d_1.w_0'].std():.3f}" == "0.036"


def test_the_experiment_has_the_blogs_mixed_precision():
    settings, _ = train_convnet.arguments([])
    assert (settings.amp, settings.dtype) == ("torch", "float16")
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with unique_name.guard(), static.program_guard(main, startup):
        _, _, loss = train_convnet.network(8, 4)
        wrapped = settings.decorate(optimizer.Adam(0.001))
        wrapped.minimize(loss)
    static.Executor(nets.CPU).run(startup, scope=scope)
    assert {nets.works_in(node) for node in nets.nodes(main, "Conv")} == {"FLOAT16"}
    assert wrapped.state_dict(scope).keys() >= {"scale", "_growth_tracker"}


def test_the_experiment_has_the_blogs_sizes_on_a_gpu():
    settings, _ = train_convnet.arguments(["--place", "cuda"])
    assert (settings.size, settings.hidden, settings.steps) == (512, 256, 512)
    assert (train_convnet.HIDDEN_LAYERS, train_convnet.RATE) == (2, 1e-3)


# ---- autocast and GradScaler ----


def test_programs_are_float32_unless_told_otherwise():
    main = static.Program()
    with unique_name.guard(), static.program_guard(main, static.Program()):
        train_convnet.network(8, 4)
    dtypes = {dtype for node in nets.nodes(main) for dtype in nets.makes(node)}
    assert dtypes == {"FLOAT"}
    assert {parameter.dtype for parameter in main.all_parameters()} == {"float32"}


def test_the_demo_reads_float32_and_keeps_the_sum():
    """Two vectors of 1024: their product is eligible, their sum is not."""
    text = """(float[1024,1] x, float[1024,1] y) => (float[1024,1024] a, float[1024,1] b) {
        t = Transpose (y) [product] a = MatMul (x, t) [sum] b = Add (x, y)
    }"""
    program = amp.transpile(parse(text), policy="torch", keep_io_types=["x", "y", "b"], verify=False).program
    assert [support.dtype_of(program, name) for name in "xyab"] == ["FLOAT", "FLOAT", "FLOAT16", "FLOAT"]


@pytest.mark.parametrize("scaled", [False, True])
def test_small_gradients_flush_to_zero_unless_the_loss_is_scaled(scaled):
    """The gradient of the product, 2**-27, is below float16's smallest number, 2**-24."""
    scale = 2.0**16 if scaled else 1.0
    net = nets.one_layer(
        optimizer.SGD(2.0**10), policy="torch", scaler="torch", init_loss_scaling=scale, use_dynamic_loss_scaling=scaled
    )
    net.run(1.0, factor=2.0**-26)
    assert (net.scope["w"] != 0.5).all() == scaled


def test_the_optimizer_is_float32_and_the_products_of_the_backward_pass_are_low():
    """Not wrapped: the backward pass runs low where it can, and goes up to update the weights."""
    net = nets.one_layer(optimizer.Adam(0.01), policy="torch", scaler="torch", init_loss_scaling=64.0)
    products = nets.nodes(net.main, "MatMul", "backward")
    assert products
    assert {nets.works_in(node) for node in products} == {"FLOAT16"}
    assert net.main.value("w@GRAD").dtype.name == "FLOAT"
    updating = nets.nodes(net.main, role="optimize")
    low = {node.op_type for node in updating if "FLOAT16" in nets.makes(node)}
    assert low <= {"Mul", "MatMul", "ReduceSum", "Where"}, "the check for infinity, and zeros in the place of gradients"
    floats = {dtype for node in updating if node.op_type not in low for dtype in nets.makes(node)} - {"BOOL", "INT32"}
    assert floats == {"FLOAT"}


def test_what_accumulates_stays_float32():
    text = "(float[4,4] x, float[4,4] w) => (float y) { h = MatMul (x, w) y = ReduceSum <keepdims = 0> (h) }"
    program = amp.transpile(parse(text), policy="torch", verify=False).program
    assert (support.dtypes(program, "MatMul"), support.dtypes(program, "ReduceSum")) == (["FLOAT16"], ["FLOAT"])


def test_a_model_that_is_wholly_low_has_larger_errors():
    """A sum of many small numbers: autocast keeps it, a network that is low throughout loses it."""
    text = "(float[1,4096] x) => (float[1,1] y) { s = CumSum (x, axis) y = Gather <axis = 1> (s, last) }"
    weights = {"axis": np.array(1), "last": np.array([4095])}
    feeds = {"x": np.full((1, 4096), 0.1, np.float32)}
    errors = {}
    for name, options in {"autocast": {"policy": "torch"}, "all low": {"level": "O2"}}.items():
        program = amp.transpile(parse(text, **weights), verify=False, **options, prefer="size").program
        errors[name] = support.relative(
            support.run(parse(text, **weights), feeds)["y"], support.run_emulated(program, feeds)["y"]
        )
    assert errors["autocast"] < errors["all low"]
