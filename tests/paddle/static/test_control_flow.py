"""`cond`, `case`, `switch_case` and `while_loop` against numpy; training through a branch; what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import nn, static, tensor
from amp_transpiler.paddle.framework.backward import gradients
from amp_transpiler.paddle.framework.programs import data, default_main_program, default_startup_program, program_guard
from amp_transpiler.paddle.optimizer import SGD
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.scope import Scope, scope_guard


@pytest.fixture(autouse=True)
def _fresh():
    with program_guard(Program(), Program()), unique_name.guard(), scope_guard(Scope()):
        yield


@pytest.fixture
def run():
    executor = Executor(CPUPlace())
    started = []

    def compute(fetch, **feeds):
        if not started:
            started.append(executor.run(default_startup_program()))
        return executor.run(default_main_program(), feeds, fetch)

    return compute


X = np.array([[1.0, -2.0, 3.0]], np.float32)


def test_only_one_branch_is_computed_and_gradients_pass(run):
    x, flag = data("x", [1, 3]), data("flag", [1], "bool")
    x.stop_gradient = False
    result = static.nn.cond(flag, lambda: tensor.log(x * x) * 2.0, lambda: [x / 4.0][0])
    (gradient,) = gradients(tensor.sum(result), [x])
    for choice, value, slope in ((True, 2 * np.log(X * X), 4 / X), (False, X / 4, np.full_like(X, 0.25))):
        got, slope_value = run([result, gradient], x=X, flag=np.array([choice]))
        np.testing.assert_allclose(got, value, rtol=1e-5)
        np.testing.assert_allclose(slope_value, slope, rtol=1e-5)
    zero = np.zeros_like(X)  # the branch that is not taken has no derivative there
    np.testing.assert_array_equal(run([gradient], x=zero, flag=np.array([False]))[0], np.full_like(X, 0.25))


def test_results_keep_their_structure(run):
    x, flag = data("x", [1, 3]), data("flag", [], "bool")
    branches = static.nn.cond(flag, lambda: {"a": [x, 1.0], "b": (x + x,)}, lambda: {"a": [x * 0.5, 2.0], "b": (x,)})
    assert isinstance(branches["b"], tuple)
    a, number, b = run([*branches["a"], *branches["b"]], x=X, flag=np.array(False))
    np.testing.assert_array_equal(a, X * 0.5)
    np.testing.assert_array_equal(b, X)
    assert number == 2.0
    assert static.nn.cond(flag, lambda: None) is None


def test_conditions_may_be_nested(run):
    x, n = data("x", [1, 3]), data("n", [1], "int64")
    result = static.nn.cond(n < 2, lambda: static.nn.cond(n < 1, lambda: x + 1.0, lambda: x + 2.0), lambda: x + 3.0)
    for number in range(3):
        np.testing.assert_allclose(run([result], x=X, n=np.array([number]))[0], X + number + 1)


def test_case_and_switch_case(run):
    x, n = data("x", [1, 3]), data("n", [1], "int64")
    makers = [lambda k=k: x * float(k) for k in (2, 3, 5)]
    chosen = static.nn.case([(n < 1, makers[0]), (n < 2, makers[1])], makers[2])
    by_last = static.nn.case([(n < 1, makers[0]), (n < 2, makers[1])])
    numbered = static.nn.switch_case(n, {1: makers[0], 4: makers[1]}, makers[2])
    listed = static.nn.switch_case(n, makers)
    wanted = {0: (2, 2, 5, 2), 1: (3, 3, 2, 3), 2: (5, 3, 5, 5), 4: (5, 3, 3, 5)}
    for number, factors in wanted.items():
        got = run([chosen, by_last, numbered, listed], x=X, n=np.array([number]))
        np.testing.assert_allclose(np.concatenate(got), np.concatenate([X * f for f in factors]))


def test_a_network_trains_through_a_branch(run):
    x, y, flag = data("x", [4, 3]), data("y", [4, 1]), data("flag", [1], "bool")
    wide, plain = nn.Linear(3, 1), nn.Linear(3, 1)
    loss = nn.MSELoss()(static.nn.cond(flag, lambda: wide(x), lambda: plain(x) * 2.0), y)
    SGD(0.1).minimize(loss)
    random = np.random.default_rng(0)
    feeds = {"x": random.normal(size=(4, 3)).astype("f"), "y": random.normal(size=(4, 1)).astype("f")}
    run([], **feeds, flag=np.array([True]))
    before = {**wide.state_values(), **{f"plain {k}": v for k, v in plain.state_values().items()}}
    losses = [run([loss], **feeds, flag=np.array([True]))[0] for _ in range(5)]
    after = {**wide.state_values(), **{f"plain {k}": v for k, v in plain.state_values().items()}}
    assert losses[-1] < losses[0]
    assert not np.array_equal(before["weight"], after["weight"])
    np.testing.assert_array_equal(before["plain weight"], after["plain weight"])
    losses = [run([loss], **feeds, flag=np.array([False]))[0] for _ in range(5)]
    assert losses[-1] < losses[0]


def test_a_loop_runs_as_long_as_its_condition_holds(run):
    n, x = data("n", [1], "int64"), data("x", [1, 3])
    i = tensor.zeros([1], "int64")
    count, total = static.nn.while_loop(lambda i, _: i < n, lambda i, t: [i + 1, t * 2.0 + x], [i, x])
    for number in (0, 1, 5):
        wanted = X
        for _ in range(number):
            wanted = wanted * 2 + X
        got, sums = run([count, total], n=np.array([number]), x=X)
        assert got == number
        np.testing.assert_allclose(sums, wanted)


def test_a_loop_of_one_variable_and_a_branch_inside(run):
    n = data("n", [1], "int64")
    (last,) = static.nn.while_loop(
        lambda v: v < 100,
        lambda v: static.nn.cond(v < 10, lambda: v + 1, lambda: v * 2),
        [n],
    )
    for start, end in ((0, 160), (3, 160), (50, 100), (200, 200)):
        assert run([last], n=np.array([start]))[0] == end


def _program_with(make):
    x, flag, n = data("x", [1, 3]), data("flag", [1], "bool"), data("n", [1], "int64")
    return make(x, flag, n)


MISTAKES = {
    "no truth value": (lambda x, _, __: static.nn.cond(x, lambda: x), InputError, "cond: pred must be a bool"),
    "too many truth values": (lambda x, _, __: static.nn.cond(x < 1, lambda: x), InputError, "must have one element"),
    "other types": (lambda x, f, n: static.nn.cond(f, lambda: x, lambda: n), InputError, "cast one of them"),
    "other structure": (
        lambda x, f, _: static.nn.cond(f, lambda: [x, x], lambda: x),
        InputError,
        r"true_fn returns \[\*, \*\], false_fn returns \*",
    ),
    "an update": (
        lambda x, f, _: static.nn.cond(f, lambda: static.nn.batch_norm(x), lambda: x),
        InputError,
        "cond's true_fn updates 'batch_norm_0.w_1', 'batch_norm_0.w_2'",
    ),
    "no pairs": (lambda *_: static.nn.case([]), OptionError, "at least one pair"),
    "equal numbers": (
        lambda x, _, n: static.nn.switch_case(n, [(1, lambda: x), (1, lambda: x)]),
        OptionError,
        "numbers that differ",
    ),
    "no variables": (lambda *_: static.nn.while_loop(lambda: 1, lambda: 1, []), InputError, "list of variables"),
    "another shape": (
        lambda x, _, n: static.nn.while_loop(lambda *_: n < 1, lambda v: tensor.concat([v, v]), [x]),
        InputError,
        "keep type and shape",
    ),
    "fewer variables": (
        lambda x, _, n: static.nn.while_loop(lambda *_: n < 1, lambda a, _: a, [x, n]),
        InputError,
        "is given 2 variables and returns 1",
    ),
}


@pytest.mark.parametrize(("make", "kind", "text"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_and_leaves_nothing_behind(make, kind, text):
    with pytest.raises(kind, match=text):
        _program_with(make)
    assert not default_main_program().updates


def test_what_a_branch_makes_is_not_known_outside():
    x, flag = data("x", [1, 3]), data("flag", [1], "bool")
    inner = []
    static.nn.cond(flag, lambda: inner.append(x * 2.0) or inner[0] + 1.0, lambda: x)
    with pytest.raises(InputError, match="there is no variable"):
        inner[0] + 1.0


def test_gradients_pass_through_a_loop(run):
    x, n = data("x", [1, 3]), data("n", [1], "int64")
    x.stop_gradient = False
    start = tensor.zeros([1], "int64")
    _, total = static.nn.while_loop(lambda i, _: i < n, lambda i, t: [i + 1, t * t * 0.5], [start, x])
    (gradient,) = gradients(tensor.sum(total), [x])
    for rounds in (1, 2, 3):
        power = 2**rounds
        value, slope = run([total, gradient], x=X, n=np.array([rounds]))
        np.testing.assert_allclose(value, X**power * 0.5 ** (power - 1), rtol=1e-5)
        np.testing.assert_allclose(slope, power * X ** (power - 1) * 0.5 ** (power - 1), rtol=1e-5)
