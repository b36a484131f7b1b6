"""A checkpoint of pure float16 training in a float32 program: its master weights are the parameters."""

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.paddle import optimizer, static

RANDOM = np.random.default_rng(5)
FEED = {"x": RANDOM.normal(size=(6, 4)).astype(np.float32), "y": RANDOM.integers(0, 3, (6, 1))}
MASTER = "fc_0.w_0_fp32_master_0"


def network(*, low=None, train=True):
    """Return main program, startup program, loss and optimizer of a small network."""
    main, startup, chosen = static.Program(), static.Program(), None
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        hidden = static.nn.batch_norm(static.nn.fc(static.data("x", [None, 4]), 8))
        labels = static.data("y", [None, 1], "int64")
        loss = paddle.mean(paddle.nn.functional.cross_entropy(static.nn.fc(hidden, 3), labels))
        if train:
            chosen = optimizer.Adam(0.01)
            if low:
                chosen = static.amp.decorate(chosen, level="O2", dtype=low, init_loss_scaling=8.0)
            chosen.minimize(loss)
    return main, startup, loss, chosen


@pytest.fixture(params=["float16", "bfloat16"])
def trained(request, tmp_path):
    """Return a checkpoint of three steps of low training, and the scope that it was saved from."""
    main, startup, loss, chosen = network(low=request.param)
    executor, scope = static.Executor("cpu"), static.Scope()
    executor.run(startup, scope=scope)
    with static.scope_guard(scope):
        chosen.amp_init("cpu")
        for _ in range(3):
            executor.run(main, FEED, [loss])
        static.save(main, str(tmp_path / "low"))
    assert MASTER in scope
    return tmp_path / "low", scope, main


def loaded(program, startup, path):
    scope = static.Scope()
    static.Executor("cpu").run(startup, scope=scope)
    static.load(program, path, scope=scope)
    return scope


def test_an_evaluation_reads_the_master_weights(trained):
    path, held, _ = trained
    main, startup, _, _ = network(train=False)
    scope = loaded(main, startup, path)
    for name in ("fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"):
        np.testing.assert_array_equal(scope[name], held[f"{name}_fp32_master_0"])
        assert scope[name].dtype == np.float32
    np.testing.assert_array_equal(scope["batch_norm_0.w_1"], held["batch_norm_0.w_1"])


def test_training_goes_on_in_float32(trained):
    """The same as if the master weights and their moments were written to the scope by hand."""
    path, held, _ = trained
    main, startup, loss, _ = network()
    scope, by_hand, executor = loaded(main, startup, path), static.Scope(), static.Executor("cpu")
    executor.run(startup, scope=by_hand)
    for name in main.persistables:
        weight = next((w for w in ("fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0") if name.startswith(w)), "")
        by_hand[name] = held[name.replace(weight, f"{weight}_fp32_master_0") if weight else name]
    for _ in range(2):
        got, want = (executor.run(main, FEED, [loss], scope=values)[0] for values in (scope, by_hand))
        assert got == want
    for name in main.persistables:
        np.testing.assert_array_equal(scope[name], by_hand[name])


def test_a_low_parameter_that_was_set_after_its_master_counts(trained, tmp_path):
    _, held, low = trained
    held["fc_0.w_0"] = np.full((4, 8), 0.5).astype(held["fc_0.w_0"].dtype)
    with static.scope_guard(held):
        static.save(low, str(tmp_path / "set"))
    main, startup, _, _ = network(train=False)
    scope = loaded(main, startup, tmp_path / "set")
    np.testing.assert_array_equal(scope["fc_0.w_0"], np.full((4, 8), 0.5, np.float32))
    np.testing.assert_array_equal(scope["fc_1.w_0"], held["fc_1.w_0_fp32_master_0"])
