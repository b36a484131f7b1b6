"""Gradients of Loop and Scan, against central differences in float64 and torch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from amp_transpiler import CPUPlace, paddle, static, utils
from amp_transpiler.errors import ModelError
from tests.autodiff.gradient_check import check_by_differences, gradient_model, run_gradients
from tests.autodiff.graph_text import assert_low_is_well_typed, graph

RANDOM = np.random.default_rng(5)


def some(*shape):
    return (RANDOM.normal(size=shape) * 0.7).astype("f")


STEP = "m = Mul(p, w) t = Tanh(m) r = Add(t, q) o = Mul(r, w)"
RECURRENCE = (
    "y, z = Scan <num_scan_inputs = 1{}, body = b (float[3] p, float[3] q) => (float[3] r, float[3] o) {{ "
    + STEP
    + " }}> (s, a)"
)
THREE = "int64[1] three = {3}"  # ONNX infers no shape of a Loop's states
LOOP = (
    "last, z = Loop (n, c, s) <body = b (int64 i, bool k, float[3] p) => (bool go, float[3] r, float[3] o) "
    "{ go = Identity(k) f = CastLike(i, a) q = Mul(f, a) " + STEP + " }> y = Reshape(last, three)"
)
WITH_STATE = {"s": (3,), "a": (4, 3), "w": (3,)}
CASES = {
    "Scan": (RECURRENCE.format(""), WITH_STATE, "float[3] y, float[4,3] z"),
    "only the last state counts": (
        RECURRENCE.format("").replace("y, z", "y, unused"),
        WITH_STATE,
        "float[3] y",
    ),
    "only what is stacked counts": (RECURRENCE.format("").replace("y, z", "unused, z"), WITH_STATE, "float[4,3] z"),
    "slices without a state": (
        (
            "z = Scan <num_scan_inputs = 2, body = b (float[3] p, float[3] q) => (float[3] r) { m = Mul(p, q) "
            "r = Mul(m, w) }> (a, a)"
        ),
        {"a": (4, 3), "w": (3,)},
        "float[4,3] z",
    ),
    "an integer among the states": (
        (
            "n0 = Constant<value = int64 {1}>() y, last, z = Scan <num_scan_inputs = 1, "
            "body = b (float[3] p, int64 k, float[3] q) => (float[3] r, int64 k2, float[3] o) { "
            "f = CastLike(k, q) m = Mul(p, f) r = Add(m, q) k2 = Add(k, k) o = Mul(r, w) }> (s, n0, a)"
        ),
        WITH_STATE,
        "float[3] y, float[4,3] z",
    ),
    "nested": (
        (
            "y = Scan <num_scan_inputs = 1, body = b (float[3] p, float[3] q) => (float[3] r) { "
            "u, v = Scan <num_scan_inputs = 1, body = c (float[3] e, float[3] f) => (float[3] g, float[3] h) "
            "{ g = Mul(e, f) h = Mul(g, q) }> (p, a) d = ReduceSum<keepdims = 0>(v, zero) x = Add(u, d) "
            "r = Tanh(x) }> (s, a)"
        ),
        {"s": (3,), "a": (2, 3)},
        "float[3] y",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_scans(case):
    body, shapes, outputs = CASES[case]
    inputs = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in shapes.items())
    constants = "int64[1] zero = {0}" if "zero" in body else ""
    text = graph(inputs, body, outputs=outputs, constants=constants)
    slopes = check_by_differences(text, {name: some(*shape) for name, shape in shapes.items()})
    assert set(slopes) == set(shapes)


@pytest.mark.parametrize("trips", [1, 4])
def test_loops_of_any_number_of_turns(trips):
    inputs = "int64 n, bool c, float[3] s, float[3] a, float[3] w"
    feeds = {"n": np.array(trips), "c": np.array(True), "s": some(3), "a": some(3), "w": some(3)}
    slopes = check_by_differences(graph(inputs, LOOP, outputs="float[3] y, float[N,3] z", constants=THREE), feeds)
    assert set(slopes) == {"s", "a", "w"}


@pytest.mark.parametrize(("trips", "begins"), [(0, True), (4, False)])
def test_a_loop_of_no_turns_passes_gradients_on(trips, begins):
    inputs = "int64 n, bool c, float[3] s, float[3] a, float[3] w"
    feeds = {"n": np.array(trips), "c": np.array(begins), "s": some(3), "a": some(3), "w": some(3)}
    model = onnx.parser.parse_model(graph(inputs, LOOP, outputs="float[3] y, float[N,3] z", constants=THREE))
    seed = some(3)
    slopes, _ = run_gradients(model, feeds, seeds={"y": seed, "z": np.zeros((0, 3), "f")})
    np.testing.assert_array_equal(slopes["s"], seed)
    for name in ("a", "w"):
        np.testing.assert_array_equal(slopes[name], np.zeros(3))


def test_a_scan_from_the_last_slice_is_one_of_flipped_slices():
    inputs, outputs = "float[3] s, float[4,3] a, float[3] w", "float[3] y, float[4,3] z"
    feeds = {name: some(*shape) for name, shape in WITH_STATE.items()}
    seeds = {"y": some(3), "z": some(4, 3)}
    backwards = RECURRENCE.format(", scan_input_directions = [1], scan_output_directions = [1]")
    slopes, _ = run_gradients(onnx.parser.parse_model(graph(inputs, backwards, outputs=outputs)), feeds, seeds=seeds)
    text = graph(inputs, RECURRENCE.format(""), outputs=outputs)
    flipped = {"y": seeds["y"], "z": seeds["z"][::-1]}
    want, _ = run_gradients(onnx.parser.parse_model(text), feeds | {"a": feeds["a"][::-1].copy()}, seeds=flipped)
    for name, grad in slopes.items():
        np.testing.assert_allclose(grad, want[name][::-1] if name == "a" else want[name], rtol=1e-5)


def test_a_loop_that_ends_by_its_condition():
    body = (
        "last = Loop (n, c, s) <body = b (int64 i, bool k, float[3] p) => (bool go, float[3] r) "
        "{ r = Mul(p, w) t = ReduceL2<keepdims = 0>(r) go = Greater(t, least) }> y = Reshape(last, three)"
    )
    text = graph(
        "int64 n, bool c, float[3] s, float[3] w", body, outputs="float[3] y", constants="float least = {0.2}, " + THREE
    )
    feeds = {"n": np.array(50), "c": np.array(True), "s": some(3) + 1, "w": np.array([0.5, -0.6, 0.7], "f")}
    check_by_differences(text, feeds)


def test_element_types():
    assert_low_is_well_typed(
        graph("float[3] s, float[4,3] a, float[3] w", RECURRENCE.format(""), outputs="float[3] y, float[4,3] z")
    )


def test_refusals():
    axes = graph(
        "float[3] s, float[3,4] a, float[3] w",
        RECURRENCE.format(", scan_input_axes = [1]"),
        outputs="float[3] y, float[4,3] z",
    )
    with pytest.raises(ModelError, match="along the first axis"):
        gradient_model(onnx.parser.parse_model(axes))
    drawn = RECURRENCE.format("").replace("t = Tanh(m)", "t = RandomNormalLike(m)")
    with pytest.raises(ModelError, match=r"RandomNormalLike\), which would draw"):
        gradient_model(
            onnx.parser.parse_model(
                graph("float[3] s, float[4,3] a, float[3] w", drawn, outputs="float[3] y, float[4,3] z")
            )
        )


def test_element_types_of_a_loop_that_may_not_turn():
    inputs = "int64 n, bool c, float[3] s, float[3] a, float[3] w"
    assert_low_is_well_typed(graph(inputs, LOOP, outputs="float[3] y, float[N,3] z", constants=THREE))


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_a_while_loop_trains_whether_it_turns_or_not(level):
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    startup.random_seed = 3
    with utils.unique_name.guard(), static.program_guard(main, startup):
        x, most = static.data("x", [2, 3]), static.data("most", [], "int64")
        h = static.nn.fc(x, 3)
        first = paddle.zeros([], "int64")
        _, h = static.nn.while_loop(lambda i, h: i < most, lambda i, h: [i + 1, paddle.tanh(h) * 2.0], [first, h])
        loss = paddle.mean(h * h)
        sgd = paddle.optimizer.SGD(0.1)
        (sgd if level == "O0" else static.amp.decorate(sgd, level=level, init_loss_scaling=1.0)).minimize(loss)
    exe = static.Executor(CPUPlace())
    exe.run(startup, scope=scope)
    weight = main.all_parameters()[0].name
    before = np.array(scope[weight], np.float64)
    feed = {"x": some(2, 3), "most": np.array(0)}
    exe.run(main, feed=feed, scope=scope)
    h = feed["x"].astype(np.float64) @ before  # the bias begins as zeros
    step = 0.1 * feed["x"].T.astype(np.float64) @ (2 * h / h.size)
    np.testing.assert_allclose(before - scope[weight], step, rtol=1e-4 if level == "O0" else 2e-2, atol=1e-4)
    after = np.array(scope[weight])
    exe.run(main, feed=feed | {"most": np.array(2)}, scope=scope)
    assert not np.array_equal(after, scope[weight])
    assert np.isfinite(scope[weight]).all()
