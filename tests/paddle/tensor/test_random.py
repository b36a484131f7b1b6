"""Random numbers: their distributions, what they depend on, and that no level of mixed precision touches them."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import static
from amp_transpiler.paddle.nn import functional as F
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.scope import Scope, scope_guard

N = 20000
X = np.linspace(0.0, 1.0, 6, dtype=np.float32).reshape(2, 3)
MAKE = {
    "rand": lambda x: paddle.rand([N]),
    "uniform": lambda x: paddle.uniform([100, N // 100], min=-2.0, max=3.0),
    "randn": lambda x: paddle.randn([N, 1]),
    "normal": lambda x: paddle.normal(2.0, 3.0, [N]),
    "normal of variables": lambda x: paddle.normal(x * 10, 0.1),
    "gaussian": lambda x: paddle.tensor.gaussian([N], 1.0, 2.0, dtype="float16"),
    "log_normal": lambda x: paddle.log_normal(0.0, 0.5, [N]),
    "randint": lambda x: paddle.randint(-3, 5, [N]),
    "randint_like": lambda x: paddle.randint_like(x, 10),
    "rand_like": lambda x: paddle.rand_like(x.astype("bfloat16")),
    "randn_like": lambda x: paddle.randn_like(x.astype("float16"), "float32"),
    "randperm": lambda x: paddle.randperm(50),
    "bernoulli": lambda x: paddle.bernoulli(paddle.full([N], 0.3)),
    "bernoulli of probabilities": paddle.bernoulli,
    "multinomial": lambda x: paddle.multinomial(paddle.to_tensor([1.0, 0.0, 3.0]), N, replacement=True),
    "multinomial without replacement": lambda x: paddle.multinomial(paddle.ones([4, 6]), 6),
    "by the shape of another": lambda x: paddle.rand(paddle.shape(x)),
    "a number": lambda x: paddle.rand([]),
    "gumbel_softmax": lambda x: F.gumbel_softmax(paddle.zeros([N, 4]), hard=True),
    "gumbel_softmax soft": F.gumbel_softmax,
    "rrelu": lambda x: F.rrelu(paddle.full([N], -1.0)),
    "alpha_dropout": lambda x: F.alpha_dropout(paddle.randn([N]), 0.3),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(paddle.ones([N // 10, 5, 2]), 0.5),
    "dropout2d": lambda x: F.dropout2d(paddle.ones([N // 10, 5, 1, 2])),
}


def _built():
    main, startup = static.Program(), static.Program()
    main.random_seed = 7
    with static.program_guard(main, startup):
        x = static.data("x", [2, 3])
        results = {name: make(x) for name, make in MAKE.items()}
    return main, startup, results


@pytest.fixture(scope="module")
def runs():
    """Two steps of one program, and two of a second one that is built alike."""
    rows = []
    for _ in range(2):
        main, startup, results = _built()
        with scope_guard(Scope()):
            executor = static.Executor(CPUPlace())
            executor.run(startup)
            for _ in range(2):
                values = executor.run(main, {"x": X}, list(results.values()))
                rows.append(dict(zip(results, values, strict=True)))
    return rows


@pytest.mark.slow
def test_each_step_draws_anew_and_each_build_alike(runs):
    for name in MAKE:
        np.testing.assert_array_equal(runs[0][name], runs[2][name])
        np.testing.assert_array_equal(runs[1][name], runs[3][name])
    for name in ("rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "a number"):
        assert not np.array_equal(runs[0][name], runs[1][name]), name


# name -> mean, standard deviation, lowest, bound
MOMENTS = {
    "rand": (0.5, 12**-0.5, 0.0, 1.0),
    "uniform": (0.5, 5 / 12**0.5, -2.0, 3.0),
    "randn": (0.0, 1.0, -6.0, 6.0),
    "normal": (2.0, 3.0, -16.0, 20.0),
    "gaussian": (1.0, 2.0, -11.0, 13.0),
    "log_normal": (np.exp(0.125), np.exp(0.125) * (np.exp(0.25) - 1) ** 0.5, 0.0, 30.0),
    "randint": (0.5, (63 / 12) ** 0.5, -3, 5),
    "bernoulli": (0.3, 0.21**0.5, 0.0, 1.1),
    "multinomial": (1.5, 0.75**0.5, 0, 3),
    "gumbel_softmax": (0.25, (3 / 16) ** 0.5, 0.0, 1.1),
    "rrelu": (-(1 / 8 + 1 / 3) / 2, (1 / 3 - 1 / 8) / 12**0.5, -1 / 3 - 1e-6, -1 / 8 + 1e-6),
    "alpha_dropout": (0.0, 1.0, -10.0, 10.0),
    "dropout2d": (1.0, 1.0, 0.0, 2.1),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_the_distribution(runs, name):
    mean, std, low, high = MOMENTS[name]
    values = runs[0][name].astype(np.float64)
    assert low <= values.min()
    assert values.max() < high
    assert values.mean() == pytest.approx(mean, abs=5 * std * values.size**-0.5)
    assert values.std() == pytest.approx(std, rel=0.03)


def test_numbers_are_spread_evenly_and_are_not_alike(runs):
    values = runs[0]["rand"]
    counts = np.histogram(values, 50, (0, 1))[0]
    assert ((counts - N / 50) ** 2 / (N / 50)).sum() < 90  # chi squared of 49 degrees: 85 is beyond 0.1 %
    assert len(np.unique(values)) > N - 40
    for lag in (1, 2, 100):
        assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 0.03


def test_what_else_is_drawn(runs):
    first = runs[0]
    assert sorted(first["randperm"]) == list(range(50))
    assert first["normal of variables"] == pytest.approx(X * 10, abs=0.5)
    assert set(first["bernoulli of probabilities"].reshape(-1)[[0, -1]]) == {0.0, 1.0}
    assert all(sorted(row) == list(range(6)) for row in first["multinomial without replacement"])
    assert 1 not in first["multinomial"]
    assert first["by the shape of another"].shape == (2, 3)
    assert first["a number"].shape == ()
    assert str(first["rand_like"].dtype) == "bfloat16"
    assert first["gaussian"].dtype == np.float16
    assert first["randint_like"].dtype == np.float32
    assert set(np.unique(first["gumbel_softmax"])) == {0.0, 1.0}
    assert first["gumbel_softmax soft"].sum(-1) == pytest.approx(1.0)
    whole = first["feature_alpha_dropout"]
    assert (whole == whole[..., :1]).all()
    assert (first["dropout2d"] == first["dropout2d"][..., :1]).all()


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_mixed_precision_leaves_the_numbers_alone(level):
    main, startup = static.Program(), static.Program()
    main.random_seed = 7
    with static.program_guard(main, startup), scope_guard(Scope()):
        x = static.data("x", [2, 3])
        drawn = paddle.rand([N])
        loss = paddle.mean(static.nn.fc(x, 4)) + paddle.mean(drawn * drawn)
        optimizer = static.amp.decorate(paddle.optimizer.SGD(0.1), level=level, dtype="float16")
        optimizer.minimize(loss)
        executor = static.Executor(CPUPlace())
        executor.run(startup)
        if level == "O2":
            optimizer.amp_init(CPUPlace())
        values, total = executor.run(main, {"x": X}, [drawn, loss])
    assert np.isfinite(values.astype(np.float32)).all()
    assert values.astype(np.float32).mean() == pytest.approx(0.5, abs=0.02)
    assert np.isfinite(total).all()


def test_a_test_program_drops_nothing():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), scope_guard(Scope()):
        x = static.data("x", [2, 3])
        results = [F.alpha_dropout(x, 0.5), F.dropout2d(x.reshape([2, 3, 1, 1]))]
        test = main.clone(for_test=True)
        executor = static.Executor(CPUPlace())
        executor.run(startup)
        for value in executor.run(test, {"x": X}, [m.name for m in results]):
            np.testing.assert_array_equal(value.reshape(2, 3), X)


REFUSED = {
    "no shape": (paddle.normal, InputError, "shape"),
    "no integers": (lambda: paddle.randint(3, 3), OptionError, "2\\^24"),
    "too many": (lambda: paddle.multinomial(paddle.ones([3]), 4), OptionError, "without replacement"),
    "probability": (lambda: F.alpha_dropout(paddle.ones([3]), 1.0), OptionError, "below 1"),
    "slopes": (lambda: F.rrelu(paddle.ones([3]), 0.5, 0.1), OptionError, "lower"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_drawn(name):
    make, error, message = REFUSED[name]
    with static.program_guard(static.Program(), static.Program()), pytest.raises(error, match=message):
        make()
