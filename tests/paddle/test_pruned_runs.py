"""`Executor.run(use_prune=True)`, and feeds that a program does not read."""

import itertools
import logging

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from amp_transpiler.errors import InputError
from amp_transpiler.paddle import static
from tests.support import array

FEED = {"x": array(4, 6), "y": np.array([[0], [1], [2], [0]])}


def net(optimizer, *, amp=False):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x, y = static.data("x", [None, 6]), static.data("y", [None, 1], "int64")
        h = F.dropout(static.nn.batch_norm(static.nn.fc(x, 8), moving_mean_name="mean"), 0.5)
        scores = static.nn.fc(h, 3)
        loss = F.cross_entropy(scores, y)
        optimizer = static.amp.decorate(optimizer, level="O1", init_loss_scaling=8.0) if amp else optimizer
        minimized = optimizer.minimize(loss)
    scope, executor = static.Scope(), static.Executor(paddle.CPUPlace())
    executor.run(startup, scope=scope)
    return main, scores, loss, minimized, scope, executor


OPTIMIZERS = {
    "sgd": lambda: paddle.optimizer.SGD(0.1),
    "momentum": lambda: paddle.optimizer.Momentum(0.1),
    "adam": lambda: paddle.optimizer.Adam(paddle.optimizer.lr.ExponentialDecay(0.1, 0.9)),
    "lamb": lambda: paddle.optimizer.Lamb(0.1),
    "clipped": lambda: paddle.optimizer.AdamW(0.1, grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0)),
}


def changed(before, scope):
    return {name for name in before if not np.array_equal(before[name], scope[name])}


def held(scope):
    return {name: np.array(scope[name]) for name in scope}


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_is_left_out(name, amp):
    main, scores, loss, minimized, scope, executor = net(OPTIMIZERS[name](), amp=amp)
    before = held(scope)
    executor.run(main, {"x": FEED["x"]}, [scores], scope=scope, use_prune=True)  # what is fetched needs no label
    for _ in range(2):
        executor.run(main, FEED, [loss], scope=scope, use_prune=True)
    statistics = {name for name, info in main.persistables.items() if info.kind == "statistic"} | {"@random_step@"}
    assert changed(before, scope) == statistics & set(before), "the forward pass alone replaces values"
    for fetch in ([loss, minimized], [loss, minimized[0]], [minimized]):
        before = held(scope)
        executor.run(main, FEED, fetch, scope=scope, use_prune=True)
        assert changed(before, scope) >= {"fc_0.w_0", "fc_1.w_0"}, "what minimize returned is fetched, too"
    before = held(scope)
    executor.run(main, FEED, [loss], scope=scope)
    assert changed(before, scope) >= {"fc_0.w_0", "fc_1.w_0"}


def test_pruned_and_whole_runs_have_sessions_of_their_own():
    main, _, loss, _, scope, executor = net(OPTIMIZERS["sgd"]())
    weights = [np.array(scope["fc_1.w_0"])]
    for prune in (True, False, True, False):
        executor.run(main, FEED, [loss], scope=scope, use_prune=prune)
        weights.append(np.array(scope["fc_1.w_0"]))
    same = [np.array_equal(a, b) for a, b in itertools.pairwise(weights)]
    assert same == [True, False, True, False]
    assert len(executor._pruned[main]) == 1


def test_a_persistable_value_is_fetched_as_it_is():
    main, _, loss, _, scope, executor = net(OPTIMIZERS["sgd"]())
    _, weight = executor.run(main, FEED, [loss, "fc_1.w_0"], scope=scope, use_prune=True)
    np.testing.assert_array_equal(weight, scope["fc_1.w_0"])


# ---- feeds that are not read ----

EXTRA = {
    "one": {"mask": array(3)},
    "several": {"mask": array(3), "weights": array(2, 2)},
    "no array": {"ids": ["a", "b"]},
    "like an input that is fed": {"x2": array(4, 6)},
    "text": {"path": "file.txt"},
}


@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA)
def test_a_feed_that_is_not_read_is_left_out_with_one_warning(extra, caplog):
    main, _, loss, _, scope, executor = net(OPTIMIZERS["sgd"]())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            executor.run(main, {**FEED, **extra}, [loss], scope=scope)
    [said] = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert all(repr(name) in said for name in extra)
    assert "(x, y)" in said


def test_the_program_of_a_saved_model_leaves_labels_out(tmp_path, caplog):
    main, scores, _, _, scope, executor = net(OPTIMIZERS["sgd"]())
    static.save_inference_model(tmp_path / "net", [main.var("x")], [scores], executor, program=main, scope=scope)
    program, _, fetches = static.load_inference_model(tmp_path / "net", executor)
    (value,) = executor.run(program, FEED, fetches)
    (expected,) = executor.run(program, {"x": FEED["x"]}, fetches)
    np.testing.assert_array_equal(value, expected)
    assert "'y' of what is fed is no input" in caplog.text


MISSING = [({"xx": FEED["x"], "y": FEED["y"]}, "did you mean 'x'"), ({"y": FEED["y"]}, "'x'")]


@pytest.mark.parametrize(("feed", "said"), MISSING)
def test_what_is_missing_is_still_an_error(feed, said):
    main, _, loss, _, scope, executor = net(OPTIMIZERS["sgd"]())
    with pytest.raises(InputError, match=said):
        executor.run(main, feed, [loss], scope=scope)
