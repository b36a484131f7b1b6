"""Batches of many shapes: sessions that leave sizes open, how many are kept, and what is said where they do not do."""

import logging

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from amp_transpiler.errors import InputError
from amp_transpiler.paddle import nn, static
from amp_transpiler.runtime import executor as steps
from amp_transpiler.runtime.session_limit import SessionLimit

V, H = 20, 8
LENGTHS = (3, 4, 5, 7, 4)
random = np.random.default_rng(0)


def tokens(length, rows=2):
    return {"x": random.integers(0, V, (rows, length)), "y": random.integers(0, V, (rows, length, 1))}


def token_loss(hidden):
    return paddle.mean(F.cross_entropy(nn.Linear(H, V)(hidden), static.data("y", [None, None, 1], "int64")))


def ids():
    return static.data("x", [None, None], "int64")


def encoder():
    return token_loss(nn.TransformerEncoderLayer(H, 2, 16, 0.1, "gelu")(nn.Embedding(V, H)(ids())))


def recurrent():
    return token_loss(nn.LSTM(H, H)(nn.Embedding(V, H)(ids()))[0])


def positions():
    x = ids()
    return token_loss(nn.Embedding(V, H)(x) + nn.Embedding(64, H)(paddle.cumsum(paddle.ones_like(x), 1) - 1))


def pooled():
    hidden = nn.Embedding(V, H)(ids())
    middle = nn.LayerNorm(H)(paddle.mean(hidden, axis=1) + paddle.max(hidden, axis=1))
    return paddle.mean(F.softmax(nn.Linear(H, V)(middle)) ** 2)


def convolved():
    hidden = paddle.transpose(nn.Embedding(V, H)(ids()), [0, 2, 1])
    return paddle.mean(nn.BatchNorm1D(H)(F.relu(nn.Conv1D(H, H, 3, padding=1)(hidden))) ** 2)


def causal():
    hidden = nn.Embedding(V, H)(ids())
    return token_loss(F.scaled_dot_product_attention(*[hidden.unsqueeze(2)] * 3, is_causal=True).squeeze(2))


def resized():
    image = nn.Embedding(V, H)(ids()).unsqueeze(1)
    return paddle.mean(F.interpolate(image, scale_factor=2, mode="bilinear") ** 2)


PROGRAMS = {  # and whether the step can be compiled without sizes
    "encoder": (encoder, True),
    "recurrent": (recurrent, True),
    "positions": (positions, True),
    "pooled": (pooled, True),
    "causal": (causal, True),
    "convolved": (convolved, False),
    "resized": (resized, False),
}


@pytest.fixture
def compiled(monkeypatch):
    """The shapes of each compile; a step has one shape of its own."""
    steps_made, real = [], steps.compile_step

    def counting(program, fetch, shapes, *rest, **named):
        if program.inputs_of_test:
            steps_made.append({name: tuple(shape) for name, shape in shapes.items()})
        return real(program, fetch, shapes, *rest, **named)

    monkeypatch.setattr(static.Program, "inputs_of_test", False, raising=False)
    monkeypatch.setattr(steps, "compile_step", counting)
    monkeypatch.setattr(steps, "OWN_SHAPES", 1)
    return steps_made


def built(make, level="O2"):
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 5
    main.inputs_of_test = True
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        loss = make()
        plain = chosen = paddle.optimizer.Momentum(0.1)  # Adam would make steps of the noise where a gradient is 0
        if level != "O0":
            chosen = static.amp.decorate(plain, level=level, init_loss_scaling=64.0)
        chosen.minimize(loss)
    return main, startup, loss, chosen


def trained(program, feeds, level, **options):
    main, startup, loss, chosen = program
    scope = static.Scope()
    with static.scope_guard(scope):
        exe = static.Executor("cpu", **options)
        exe.run(startup)
        if level != "O0":
            chosen.amp_init(exe.place)
        losses = [exe.run(main, {k: v for k, v in feed.items() if main.has_var(k)}, [loss])[0] for feed in feeds]
    return losses, {name: scope[name] for name in main.persistables}


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_session_without_sizes_computes_the_same(kind, level, compiled, caplog):
    make, shares = PROGRAMS[kind]
    program, feeds = built(make, level), [tokens(length) for length in LENGTHS]
    losses, state = trained(program, feeds, level)
    sizes = [shapes.get("x") for shapes in compiled]
    assert sizes == ([(2, 3), None] if shares else [(2, 3), None, (2, 4), (2, 5), (2, 7)])
    assert ("feed fewer shapes" in caplog.text) != shares
    expected, apart = trained(program, feeds, level, max_sessions=99)
    tolerance = 1e-5 if level == "O0" else 2e-3
    np.testing.assert_allclose(losses, expected, rtol=tolerance)
    for name, value in apart.items():
        np.testing.assert_allclose(state[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def test_programs_without_gradients_share_too(compiled):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        hidden = nn.Embedding(V, H)(ids())
        out = paddle.cumsum(F.softmax(hidden @ paddle.transpose(hidden, [0, 2, 1])), 1)
    main.inputs_of_test = True
    with static.scope_guard(static.Scope()):
        first, other = static.Executor("cpu"), static.Executor("cpu", max_sessions=9)
        first.run(startup)
        for length in LENGTHS:
            feed = {"x": tokens(length)["x"]}
            value, expected = (exe.run(main, feed, [out])[0] for exe in (first, other))
            assert value.shape == (2, length, length)
            np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert sum(not shapes for shapes in compiled) == 1


def test_errors_are_those_of_the_shapes_and_sharing_goes_on(compiled):
    program = built(positions, "O0")
    main, startup, loss, _ = program
    with static.scope_guard(static.Scope()):
        exe = static.Executor("cpu")
        exe.run(startup)
        for length in (3, 4):
            exe.run(main, tokens(length), [loss])
        bad = tokens(5)
        bad["y"][1, 2] = V + 3
        with pytest.raises(InputError, match=f"{V + 3}"):
            exe.run(main, bad, [loss])
        with pytest.raises(InputError):
            exe.run(main, {"x": tokens(5)["x"], "y": tokens(6)["y"]}, [loss])
        before = len(compiled)
        exe.run(main, tokens(9), [loss])
        assert len(compiled) == before


@pytest.mark.slow
def test_shapes_that_take_turns_beyond_the_limit_are_named_once(compiled, caplog):
    program = built(pooled, "O0")
    with caplog.at_level(logging.WARNING):
        trained(program, [tokens(length) for length in (3, 4, 5, 3, 4, 5)], "O0", max_sessions=3)
        assert not caplog.records or "compiled again" in caplog.text
        trained(program, [tokens(length) for length in (3, 4, 5, 3, 4, 5)], "O0", max_sessions=2)
    told = [record.getMessage() for record in caplog.records if "compiled again" in record.getMessage()]
    assert len(told) == 1 + ("max_sessions=3" in caplog.text)
    assert "'x' [2, 3]" in told[-1]
    assert "max_sessions=2" in told[-1]


@pytest.mark.parametrize(
    ("most", "memory", "kept"),
    [
        (None, [100] * 999, 256),  # never more
        (None, [100] * 12 + [49] * 999, 12),  # as long as half of the memory is there
        (None, [100] + [1] * 999, 8),  # but eight in any case
        (None, [None] * 999, 256),
        (3, [1] * 999, 3),
        (300, [1] * 999, 300),
    ],
)
def test_how_many_sessions_are_kept(most, memory, kept):
    answers = iter(memory)
    limit = SessionLimit(most, lambda: next(answers))
    assert next(count for count in range(1, 999) if limit.is_over(count)) == kept + 1
