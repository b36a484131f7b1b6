"""Draws from further distributions: means, spreads and bounds of many numbers of one seed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.paddle.tensor import distributions

COUNT = 20_000


def constant(number):
    return np.full(COUNT, number, np.float32)


def method(name, *args, **kwargs):
    return lambda x: getattr(x, name)(*args, **kwargs)


# name -> what draws, what it is given, mean, standard deviation
CASES = {
    "uniform_": (method("uniform_", 1.0, 4.0), constant(0), 2.5, math.sqrt(0.75)),
    "normal_": (method("normal_", 2.0, 0.5), constant(0), 2.0, 0.5),
    "log_normal_": (method("log_normal_", 0.0, 0.25), constant(0), math.exp(0.03125), 0.2620),
    "exponential_": (method("exponential_", 2.0), constant(0), 0.5, 0.5),
    "geometric_": (method("geometric_", 0.25), constant(0), 4.0, math.sqrt(0.75) / 0.25),
    "bernoulli_": (method("bernoulli_", 0.3), constant(0), 0.3, math.sqrt(0.21)),
    "random_": (method("random_", 2, 6), constant(0), 3.5, math.sqrt(1.25)),
    "poisson": (paddle.poisson, constant(3.5), 3.5, math.sqrt(3.5)),
    "poisson, many": (paddle.poisson, constant(900), 900, 30),
    "poisson, none": (paddle.poisson, constant(0), 0, 0),
    "standard_gamma": (paddle.standard_gamma, constant(2.5), 2.5, math.sqrt(2.5)),
    "standard_gamma, small": (paddle.standard_gamma, constant(0.3), 0.3, math.sqrt(0.3)),
    "binomial": (lambda x: paddle.binomial(x, paddle.full([1], 0.3)), constant(20), 6, math.sqrt(4.2)),
    "binomial, likely": (lambda x: paddle.binomial(x, paddle.full([1], 0.9)), constant(10), 9, math.sqrt(0.9)),
    "binomial, many": (lambda x: paddle.binomial(x, paddle.full([1], 0.5)), constant(4000), 2000, math.sqrt(1000)),
}


@pytest.fixture(scope="module")
def drawn():
    main = paddle.static.Program()
    main.random_seed = 7
    startup = paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.static.scope_guard(paddle.static.Scope()):
        rows = {}
        for number, (name, (draw, arguments, _, _)) in enumerate(CASES.items()):
            rows[name] = draw(paddle.static.data(f"x{number}", arguments.shape))
        cauchy = main.var("x0").cauchy_(1.0, 2.0)
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(startup)
        feeds = {f"x{number}": arguments for number, (_, arguments, _, _) in enumerate(CASES.values())}
        values = exe.run(main, feed=feeds, fetch_list=[*rows.values(), cauchy])
    return dict(zip([*rows, "cauchy_"], values, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_mean_and_spread(drawn, name):
    _, arguments, mean, spread = CASES[name]
    sample = drawn[name]
    assert sample.shape == arguments.shape
    assert sample.dtype == (np.int64 if name.startswith("binomial") else np.float32)
    np.testing.assert_allclose(sample.mean(), mean, atol=5 * spread / math.sqrt(COUNT))
    np.testing.assert_allclose(sample.std(), spread, rtol=0.05)


def test_cauchys_distribution_has_a_median_and_quartiles(drawn):
    np.testing.assert_allclose(np.quantile(drawn["cauchy_"], [0.25, 0.5, 0.75]), [-1, 1, 3], atol=0.15)


def test_drawn_counts_are_whole_and_have_the_right_shares(drawn):
    for name in ("poisson", "binomial", "geometric_"):
        assert (drawn[name] == np.round(drawn[name])).all(), name
        assert (drawn[name] >= 0).all(), name
    np.testing.assert_allclose((drawn["poisson"] == 2).mean(), 3.5**2 / 2 * math.exp(-3.5), atol=0.012)
    np.testing.assert_allclose((drawn["binomial"] == 6).mean(), math.comb(20, 6) * 0.3**6 * 0.7**14, atol=0.012)


def test_only_the_most_probable_classes_are_drawn():
    shares = np.tile(np.array([[0.05, 0.5, 0.3, 0.15]], np.float32), (5000, 1))
    main = paddle.static.Program()
    main.random_seed = 3
    startup = paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.static.scope_guard(paddle.static.Scope()):
        x, bound = paddle.static.data("x", [None, 4]), paddle.static.data("p", [None, 1])
        fetched = [*x.top_p_sampling(bound), *distributions.top_p_sampling(x, bound, k=1)]
        fetched.append(distributions.top_p_sampling(x, bound, threshold=bound * 0 + 0.4)[1])
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(startup)
        feed = {"x": shares, "p": np.full((5000, 1), 0.7, np.float32)}
        drawn_classes, classes, _, best, above = exe.run(main, feed=feed, fetch_list=fetched)
    assert set(classes.ravel()) == {1, 2}
    np.testing.assert_array_equal(drawn_classes, np.take_along_axis(shares, classes, 1))
    np.testing.assert_allclose((classes == 1).mean(), 0.5 / 0.8, atol=0.035)
    assert set(best.ravel()) == set(above.ravel()) == {1}


def test_the_state_of_the_generator_can_be_restored():
    def weight():
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup), paddle.static.scope_guard(paddle.static.Scope()):
            parameter = paddle.create_parameter([3], "float32")
            exe = paddle.static.Executor(paddle.CPUPlace())
            exe.run(startup)
            return exe.run(main, fetch_list=[parameter])[0]

    paddle.seed(5)
    weight()
    state = paddle.get_rng_state()
    first, second = weight(), weight()
    assert (first != second).any()
    paddle.set_rng_state(state)
    np.testing.assert_array_equal(weight(), first)
