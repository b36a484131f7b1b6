"""`Executor(bucket=...)`: padded steps compute what the feeds as they are would; what padding changes is refused."""

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import nn, static
from amp_transpiler.paddle.static import Bucket
from amp_transpiler.runtime import executor as steps

V, H, PAD = 20, 8, 0
IGNORED = -100
random = np.random.default_rng(0)
BY_LENGTH = {"x": Bucket(1, PAD, (8, 16)), "y": Bucket(1, IGNORED, (8, 16))}
BY_ROWS = {name: Bucket(0, bucket.value, 4) for name, bucket in BY_LENGTH.items()}
BOTH = {name: (BY_LENGTH[name], BY_ROWS[name]) for name in BY_LENGTH}


def ids():
    return static.data("x", [None, None], "int64")


def labels():
    return static.data("y", [None, None, 1], "int64")


def tokens(length, rows=2):
    return {"x": random.integers(1, V, (rows, length)), "y": random.integers(0, V, (rows, length, 1))}


def by_token():
    return F.cross_entropy(nn.Linear(H, V)(nn.Embedding(V, H)(ids())), labels(), ignore_index=IGNORED)


def causal():
    hidden = nn.Embedding(V, H)(ids())
    hidden = F.scaled_dot_product_attention(*[hidden.unsqueeze(2)] * 3, is_causal=True).squeeze(2)
    return F.cross_entropy(nn.Linear(H, V)(hidden), labels(), ignore_index=IGNORED)


def masked_encoder():
    x = ids()
    mask = (paddle.cast(x == PAD, "float32") * -1e4).unsqueeze([1, 2])
    hidden = nn.TransformerEncoderLayer(H, 2, 16, 0.5)(nn.Embedding(V, H)(x), mask)
    return F.cross_entropy(nn.Linear(H, V)(hidden), labels(), ignore_index=IGNORED)


def masked_mean():
    x = ids()
    mask = paddle.cast(x != PAD, "float32").unsqueeze(2)
    pooled = (nn.Embedding(V, H)(x) * mask).sum(1) / mask.sum(1)
    return (nn.Linear(H, 1)(pooled) ** 2).mean()


def recurrent():
    return F.cross_entropy(nn.Linear(H, V)(nn.GRU(H, H)(nn.Embedding(V, H)(ids()))[0]), labels(), ignore_index=IGNORED)


def mean_of_all():
    return paddle.mean(F.cross_entropy(nn.Linear(H, V)(nn.Embedding(V, H)(ids())), labels(), reduction="none"))


def pooled():
    return (nn.Linear(H, 1)(nn.Embedding(V, H)(ids()).mean(1)) ** 2).mean()


def unmasked_encoder():
    hidden = nn.TransformerEncoderLayer(H, 2, 16, 0.1)(nn.Embedding(V, H)(ids()))
    return F.cross_entropy(nn.Linear(H, V)(hidden), labels(), ignore_index=IGNORED)


def batch_statistics():
    hidden = nn.BatchNorm1D(H, data_format="NLC")(nn.Embedding(V, H)(ids()))
    return F.cross_entropy(nn.Linear(H, V)(hidden), labels(), ignore_index=IGNORED)


def statistics_alone():
    """The loss does not see the padding, running statistics do."""
    hidden = nn.Embedding(V, H)(ids())
    normed = nn.BatchNorm1D(H, data_format="NLC")(hidden)
    loss = F.cross_entropy(nn.Linear(H, V)(hidden), labels(), ignore_index=IGNORED)
    return loss + 0 * normed.sum()


def backwards():
    hidden = nn.GRU(H, H, direction="bidirect")(nn.Embedding(V, H)(ids()))[0]
    return F.cross_entropy(nn.Linear(2 * H, V)(hidden), labels(), ignore_index=IGNORED)


SAFE = {
    "by token": (by_token, BOTH),
    "causal": (causal, BOTH),
    "masked encoder": (masked_encoder, BY_LENGTH),
    "masked mean": (masked_mean, {"x": BY_LENGTH["x"]}),
    "recurrent": (recurrent, BOTH),
}
UNSAFE = {
    "mean of all": (mean_of_all, BY_LENGTH),
    "pooled": (pooled, {"x": BY_LENGTH["x"]}),
    "unmasked encoder": (unmasked_encoder, BY_LENGTH),
    "batch statistics": (batch_statistics, BY_LENGTH),
    "statistics alone": (statistics_alone, BY_LENGTH),
    "backwards": (backwards, BY_LENGTH),
    "rows in a mean": (pooled, {"x": Bucket(0, PAD, 4)}),
}


@pytest.fixture
def compiled(monkeypatch):
    compilations, real = [], steps.compile_step

    def counting(program, fetch, shapes, *rest, **named):
        compilations.append(shapes)
        return real(program, fetch, shapes, *rest, **named)

    monkeypatch.setattr(steps, "compile_step", counting)
    return compilations


def built(make, level="O0"):
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 5
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        loss = make()
        chosen = plain = paddle.optimizer.Momentum(0.1)
        if level != "O0":
            chosen = static.amp.decorate(plain, level=level[:2], dtype=level[3:], init_loss_scaling=64.0)
        chosen.minimize(loss)
    return main, startup, loss, chosen


def trained(program, feeds, level="O0", **options):
    main, startup, loss, chosen = program
    scope = static.Scope()
    with static.scope_guard(scope):
        exe = static.Executor("cpu", **options)
        exe.run(startup)
        if level != "O0":
            chosen.amp_init(exe.place)
        losses = [exe.run(main, {k: v for k, v in feed.items() if main.has_var(k)}, [loss])[0] for feed in feeds]
    return losses, {name: scope[name] for name in main.persistables}


@pytest.mark.parametrize("level", ["O0", "O2 float16", "O1 bfloat16"])
@pytest.mark.parametrize("kind", SAFE)
def test_padded_steps_train_like_the_feeds_as_they_are(kind, level, compiled):
    make, bucket = SAFE[kind]
    if kind == "masked encoder":
        make = without_dropout(make)
    program, feeds = built(make, level), [tokens(*shape) for shape in ((5, 3), (7, 2), (6, 4), (12, 3))]
    losses, state = trained(program, feeds, level, bucket=bucket)
    shapes = {entry["x"] for entry in compiled if "x" in entry}
    assert shapes == ({(4, 8), (4, 16)} if bucket is BOTH else {(3, 8), (2, 8), (4, 8), (3, 16)})
    expected, apart = trained(program, feeds, level)
    tolerance = {"O0": 1e-5, "O2 float16": 2e-3, "O1 bfloat16": 2e-2}[level]
    np.testing.assert_allclose(losses, expected, rtol=tolerance)
    for name, value in apart.items():
        np.testing.assert_allclose(state[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def without_dropout(make):
    def build():
        loss = make()
        for node in static.default_main_program().model.graph:
            if node.op_type == "Dropout":
                node.resize_inputs(2)
        return loss

    return build


def test_dropout_is_no_reason_to_refuse():
    losses, _ = trained(built(masked_encoder), [tokens(5)], bucket=BY_LENGTH)
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("level", ["O0", "O2 float16"])
@pytest.mark.parametrize("kind", UNSAFE)
def test_what_padding_changes_is_refused_and_nothing_is_changed(kind, level):
    make, bucket = UNSAFE[kind]
    main, startup, loss, chosen = built(make, level)
    with static.scope_guard(static.Scope()) as _:
        exe = static.Executor("cpu", bucket=bucket)
        exe.run(startup)
        if level != "O0":
            chosen.amp_init(exe.place)
        scope = static.global_scope()
        before = {name: scope[name].copy() for name in main.persistables}
        feed = {k: v for k, v in tokens(5, 3).items() if main.has_var(k)}
        with pytest.raises(InputError, match=r"padding 'x' axis . from . to .* changes what the step computes"):
            exe.run(main, feed, [loss])
        for name, value in before.items():
            np.testing.assert_array_equal(scope[name], value)


def test_what_is_fetched_is_cut_back():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x, other = ids(), static.data("z", [None, None], "int64")
        scores_of_first, two = nn.Embedding(V, H)(x), nn.Embedding(V, H)(other)
        scores = paddle.matmul(scores_of_first, two, transpose_y=True)
    bucket = {"x": (Bucket(-1, 0, (8,)), Bucket(0, 0, 4)), "z": (Bucket(1, 0, [8]), Bucket(0, 0, 4))}
    with static.scope_guard(static.Scope()):
        plain, padded = static.Executor("cpu"), static.Executor("cpu", bucket=bucket)
        plain.run(startup)
        for sizes in ((5, 5), (5, 7), (3, 8), (8, 8), (6, 9)):  # the first does not tell which is which
            feed = {name: random.integers(0, V, (3, size)) for name, size in zip("xz", sizes, strict=True)}
            expected, result = (exe.run(main, feed, [scores, scores_of_first])[:2] for exe in (plain, padded))
            for a, b in zip(expected, result, strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=1e-6)
        [left] = padded.run(main, feed, [scores], return_numpy=False)
        assert left.shape() == [3, 6, 9]


def test_what_cannot_be_cut_back_is_refused():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x = ids()
        later = paddle.concat([x * 0, x], 1)
        doubled = paddle.concat([x * 0] * 2, 1)
    exe = static.Executor("cpu", bucket={"x": Bucket(1, 0, (8,))})
    for fetched, told in ((later, "changes what the step computes"), (doubled, "which is the size of no feed")):
        with pytest.raises(InputError, match=told):
            exe.run(main, {"x": tokens(5)["x"]}, [fetched])


def test_the_step_itself_says_what_is_missing():
    main, startup, loss, _ = built(by_token)
    with static.scope_guard(static.Scope()):
        exe = static.Executor("cpu", bucket=BY_LENGTH)
        with pytest.raises(InputError, match="run the startup program first"):
            exe.run(main, tokens(5), [loss])
        exe.run(startup)
        with pytest.raises(InputError, match="'y'"):
            exe.run(main, {"x": tokens(5)["x"]}, [loss])
        [value] = exe.run(main, {"x": tokens(5)["x"]}, [main.model.graph[0].outputs[0].name], use_prune=True)
        assert value.shape[:2] == (2, 5)


DRAWS = {
    "uniform": lambda x: x + paddle.uniform([1], min=0.0, max=1.0),
    "normal": lambda x: x + paddle.randn([1]),
    "like": lambda x: x + paddle.rand_like(x),
    "bernoulli": lambda x: paddle.bernoulli(x * 0 + 0.5),
    "gumbel": F.gumbel_softmax,
    "own operator": lambda x: paddle.poisson(x * 0 + 1.0),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_random_programs_are_not_checked_and_it_is_said(kind, caplog):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        drawn = DRAWS[kind](paddle.cast(ids(), "float32"))
    with static.scope_guard(static.Scope()):
        exe = static.Executor("cpu", bucket={"x": Bucket(1, 0, (8,))})
        exe.run(startup)
        [value] = exe.run(main, {"x": tokens(5)["x"]}, [drawn])
    assert value.shape == (2, 5)
    assert "it is not checked" in caplog.text


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (None, {0: 0, 1: 16, 16: 16, 17: 32, 33: 64, 1000: 1024}),
        (8, {1: 8, 8: 8, 9: 16}),
        ((64, 16), {3: 16, 16: 16, 17: 64, 65: 65}),
    ],
)
def test_sizes(sizes, expected):
    bucket = Bucket(sizes=sizes)
    assert {size: bucket.size_for(size) for size in expected} == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bucket("1"), "axis must be an integer"),
        (lambda: Bucket(1, "0"), "value must be a number"),
        (lambda: Bucket(1, 0, (8, 0)), "sizes must be positive integers"),
        (lambda: Bucket(1, 0, ()), "sizes must be positive integers"),
        (lambda: Bucket(1, 0, -4), "sizes must be positive integers"),
        (lambda: static.Executor("cpu", bucket=True), "bucket must be a dictionary"),
        (lambda: static.Executor("cpu", bucket={"x": (1, 0)}), r"bucket\['x'\] must be a Bucket"),
    ],
)
def test_refused_options(make, message):
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize(
    ("bucket", "message"),
    [(Bucket(2, 0), "no axis 2"), (Bucket(-3, 0), "no axis -3"), (Bucket(1, 0.5), "int64 cannot hold 0.5")],
)
def test_refused_feeds(bucket, message):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        out = ids() + 1
    with pytest.raises(InputError, match=message):
        static.Executor("cpu", bucket={"x": bucket}).run(main, {"x": tokens(5)["x"]}, [out])
