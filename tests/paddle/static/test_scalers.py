"""Loss scaling as PyTorch and MXNet do it."""

import itertools
import pickle

import ml_dtypes
import numpy as np
import pytest

from amp_transpiler import optimizer, static, tensor
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.update_passes.loss_scaling import ScalingRule, check_finite, unscale, update_loss_scaling
from tests.paddle import nets, text_nets
from tests.support import array

GOOD, BAD = 1.0, 60000.0  # times the weights, BAD leaves float16
TORCH_KEYS = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
OPTIMIZERS = {
    "SGD": lambda **o: optimizer.SGD(0.125, weight_decay=0.5, **o),
    "Momentum": lambda **o: optimizer.Momentum(0.125, 0.5, weight_decay=0.5, **o),
    "Adam": lambda **o: optimizer.Adam(0.01, **o),
    "AdamW": lambda **o: optimizer.AdamW(0.01, weight_decay=0.5, **o),
    "Lamb": lambda **o: optimizer.Lamb(0.01, **o),
}


def net(scaler="torch", inner=None, **decorated):
    """A `OneLayer` at O2 whose float16 product overflows on BAD."""
    inner = optimizer.SGD(0.01, multi_precision=True) if inner is None else inner
    return nets.one_layer(inner, **{"level": "O2", "init_loss_scaling": 64.0, "scaler": scaler, **decorated})


def high_loss(scaler, **decorated):
    """The same at O1 with everything but the product in float32, so that a huge scale is no overflow by itself."""
    lists = static.amp.AutoMixedPrecisionLists(custom_black_list=["Sub", "Mul", "ReduceMean"])
    return net(scaler, **{"level": "O1", "amp_lists": lists, **decorated})


def decorated(**keywords):
    return static.amp.decorate(optimizer.SGD(0.1), **keywords).options


# ---- the table ----

DEFAULTS = {
    # name: (keywords, first scale, rule)
    "torch": ({"scaler": "torch"}, 2.0**16, (2000, 1, 2.0, 0.5, None, None, True, False)),
    "mxnet": ({"scaler": "mxnet"}, 2.0**16, (2000, 1, 2.0, 0.5, None, 2.0**24, True, True)),
    "paddle": ({"scaler": "paddle"}, 2.0**16, (2000, 1, 2.0, 0.5, 1.0, None, False, False)),
    "nothing said": ({}, 2.0**16, (2000, 1, 2.0, 0.5, 1.0, None, False, False)),
    "paddle, first overload": (
        {"scaler": "paddle", "use_pure_fp16": True},
        2.0**15,
        (1000, 2, 2.0, 0.8, 1.0, None, False, False),
    ),
    "torch, first overload": (
        {"scaler": "torch", "use_pure_fp16": True},
        2.0**16,
        (2000, 1, 2.0, 0.5, None, None, True, False),
    ),
    "a caller's numbers": (
        {"scaler": "TORCH", "init_loss_scaling": 8, "incr_every_n_steps": 3, "incr_ratio": 4.0, "decr_ratio": 0.25},
        8.0,
        (3, 1, 4.0, 0.25, None, None, True, False),
    ),
    "mxnet with another interval": (
        {"scaler": "mxnet", "incr_every_n_steps": 5, "decr_every_n_nan_or_inf": 1},
        2.0**16,
        (5, 1, 2.0, 0.5, None, 2.0**24, True, True),
    ),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_a_system_starts_from_and_what_a_caller_changes(name):
    keywords, first, (interval, bad, growth, backoff, floor, ceiling, skips, delayed) = DEFAULTS[name]
    optimizer_state = decorated(**keywords)
    rule = optimizer_state.rule
    assert optimizer_state.init_loss_scaling == first
    assert (rule.incr_every_n_steps, rule.decr_every_n_nan_or_inf) == (interval, bad)
    assert (rule.incr_ratio, rule.decr_ratio, rule.floor, rule.ceiling) == (growth, backoff, floor, ceiling)
    assert (rule.skips_all, rule.delayed, rule.counts_bad_steps) == (skips, delayed, not skips)


REFUSED = {
    "no such scaler": ({"scaler": "apex"}, "'paddle', 'torch', 'mxnet'"),
    "no name": ({"scaler": None}, "'paddle', 'torch', 'mxnet'"),
    "bad steps counted by torch": ({"scaler": "torch", "decr_every_n_nan_or_inf": 2}, "decr_every_n_nan_or_inf=2"),
    "bad steps counted by mxnet": ({"scaler": "mxnet", "decr_every_n_nan_or_inf": 2}, "decr_every_n_nan_or_inf=2"),
    "growth of 1": ({"scaler": "torch", "incr_ratio": 1.0}, "growth factor.*above 1"),
    "backoff of 1": ({"scaler": "torch", "decr_ratio": 1.0}, "backoff factor.*below 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_scaler_cannot_do_is_refused(name):
    """PyTorch's two assertions; bad steps are counted by Paddle alone."""
    keywords, words = REFUSED[name]
    with pytest.raises(OptionError, match=words):
        decorated(**keywords)


@pytest.mark.parametrize("scaler", ["paddle", "torch", "mxnet"])
def test_bfloat16_is_not_scaled_unless_asked_for(scaler):
    wrapped = decorated(scaler=scaler, dtype="bfloat16")
    assert (wrapped.dynamic, wrapped.init_loss_scaling) == (False, 1.0)
    wrapped = decorated(scaler=scaler, dtype="bfloat16", init_loss_scaling=8.0)
    assert (wrapped.dynamic, wrapped.init_loss_scaling) == (False, 8.0)


# ---- the scale moves ----


def test_growth_backoff_and_tracker():
    """Growth 2, backoff .25, interval 2, scale 4: 4, 8, then 2; tracker 1, 0, 0."""
    trainer = net(init_loss_scaling=4.0, incr_ratio=2.0, decr_ratio=0.25, incr_every_n_steps=2)
    rows = []
    for x in (GOOD, GOOD, BAD):
        trainer.run(x)
        state = trainer.optimizer.state_dict(trainer.scope)
        rows.append((state["scale"], state["_growth_tracker"]))
    assert rows == [(4.0, 1), (8.0, 0), (2.0, 0)]


SEQUENCES = {
    # name: (scaler, keywords, steps (x overflows), the scale after each)
    "torch backs off on every bad step": ("torch", {}, "xx.x", [32, 16, 16, 8]),
    "torch has no floor": ("torch", {"init_loss_scaling": 1.0}, "xxx", [0.5, 0.25, 0.125]),
    "a bad step starts torch's count anew": ("torch", {"incr_every_n_steps": 2}, ".x..", [64, 32, 32, 64]),
    "mxnet's scale is one check late": ("mxnet", {}, "x...", [64, 32, 32, 32]),
    "so a second bad step halves what the first left": ("mxnet", {}, "xx..", [64, 32, 16, 16]),
    "mxnet grows one check late": ("mxnet", {"incr_every_n_steps": 2}, "..x.", [64, 64, 128, 64]),
    "mxnet has no floor": ("mxnet", {"init_loss_scaling": 1.0}, "xxx", [1, 0.5, 0.25]),
    "a scale that stays": ("torch", {"use_dynamic_loss_scaling": False}, "x.x", [64, 64, 64]),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_scale_moves_with_real_overflow(name):
    """In a program whose float16 products overflow."""
    scaler, keywords, steps, expected = SEQUENCES[name]
    trainer, scales = net(scaler, **keywords), []
    for step in steps:
        trainer.run(BAD if step == "x" else GOOD)
        scales.append(trainer.scope[trainer.scale_name].item())
    assert scales == expected


def upstream_mxnet(steps, scale, interval):
    """MXNet's LossScaler as it is written: the scale after every check."""
    pending, unskipped = scale, 0
    for step in steps:
        scale = pending
        if step == "x":
            pending, unskipped = scale / 2, 0
        else:
            unskipped += 1
        if unskipped == interval:
            pending, unskipped = min(2.0**24, scale * 2), 0
        yield scale


@pytest.mark.parametrize("first", [64.0, 2.0**23, 2.0**24])
def test_mxnet_is_what_its_loss_scaler_does_up_to_its_ceiling(first):
    """`unskipped` and the two scales, step by step."""
    steps = "......x..x.xx......."
    trainer = high_loss("mxnet", init_loss_scaling=first, incr_every_n_steps=2)
    rows = []
    for step in steps:
        trainer.run(BAD if step == "x" else GOOD, factor=2.0**-20)
        rows.append(trainer.scope[trainer.scale_name].item())
    assert rows == list(upstream_mxnet(steps, first, 2))
    assert max(rows) == min(2.0**24, first * 8)


def test_torch_keeps_a_scale_that_would_grow_to_infinity():
    """Growth is kept only if it is finite, and the tracker starts anew."""
    trainer = high_loss("torch", init_loss_scaling=2.0**127, incr_every_n_steps=1)
    trainer.run(GOOD, factor=0.0)
    state = trainer.optimizer.state_dict(trainer.scope)
    assert (state["scale"], state["_growth_tracker"]) == (2.0**127, 0)


def test_gradients_are_divided_by_the_scale_that_multiplied_them():
    """MXNet's pending scale must not unscale the step that it was not used in."""
    rows = []
    for scaler in ("mxnet", "torch"):
        trainer = net(scaler, inner=optimizer.SGD(0.125, multi_precision=True), incr_every_n_steps=1)
        for _ in range(4):
            trainer.run(GOOD)
        rows.append(trainer.scope[trainer.master])
    np.testing.assert_array_equal(*rows)


# ---- a bad step is skipped ----


@pytest.mark.parametrize("scaler", ["torch", "mxnet"])
@pytest.mark.parametrize("masters", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_skips_a_step_that_overflows(name, masters, scaler):
    """Parameters, masters, velocity, moments, powers of beta, weight decay: nothing moves."""
    keywords = {} if masters else {"master_weight": False}
    trainer = net(scaler, inner=OPTIMIZERS[name](multi_precision=masters), **keywords)
    trainer.run(GOOD)
    before = trainer.state()
    trainer.run(BAD)
    after = trainer.state()
    moved = {key for key in before if not np.array_equal(before[key], after[key])}
    scaling = {key for key in before if "loss_scaling" in key or "num_good_steps" in key}
    assert moved
    assert moved <= scaling
    trainer.run(GOOD)
    trainer.run(GOOD)
    assert not np.array_equal(trainer.state()["w"], after["w"]), "training does not go on"


def test_a_skipped_step_counts_for_no_schedule():
    schedule = optimizer.lr.ExponentialDecay(learning_rate=0.01, gamma=0.5, steps_per_epoch=1)
    trainer = net(inner=optimizer.SGD(schedule, multi_precision=True))
    trainer.run(GOOD)
    [counter] = [name for name in trainer.state() if "lr_step" in name]
    before = trainer.scope[counter]
    trainer.run(BAD)
    assert trainer.scope[counter] == before
    trainer.run(GOOD)
    assert trainer.scope[counter] == before + 1


def test_an_optimizer_decorated_again_for_paddle_takes_bad_steps_again():
    """The skip belongs to the scaler, not to the optimizer."""
    sgd = optimizer.SGD(0.125, weight_decay=0.5, multi_precision=True)
    net(inner=sgd)
    trainer = net("paddle", inner=sgd)
    before = trainer.scope[trainer.master]
    trainer.run(BAD)
    np.testing.assert_allclose(trainer.scope[trainer.master], before * (1 - 0.125 * 0.5), rtol=1e-6)


@pytest.mark.parametrize("scaler", ["torch", "mxnet"])
def test_the_program_has_no_if_and_no_counter_that_nobody_reads(scaler):
    trainer = net(scaler)
    assert not nets.nodes(trainer.main, "If")
    assert not [name for name in trainer.main.persistables if "num_bad_steps" in name]
    assert ("next_loss_scaling_0" in trainer.main.persistables) == (scaler == "mxnet")


# ---- the check ----


def check(arrays, scale):
    """Run the check over arrays, and unscale them; returns what it makes of them, and the flag."""
    main = static.Program()
    with static.program_guard(main, static.Program()):
        fed = {f"g{i}": a for i, a in enumerate(arrays)}
        grads = [static.data(name, list(a.shape), a.dtype.name).value for name, a in fed.items()]
        builder = main.builder()
        is_bad, inverse = check_finite(builder, grads, builder.constant(np.float32(scale)))
        unscaled = [unscale(builder, grad, inverse) for grad in grads]
    *results, flag = static.Executor(nets.CPU).run(main, feed=fed, fetch_list=[v.name for v in (*unscaled, is_bad)])
    return results, bool(flag)


ONES = np.ones((2, 3), np.float32)
EMPTY = np.ones((0, 3), np.float32)
LAST = {poison: np.array([1, 2, poison], np.float32) for poison in (np.inf, -np.inf, np.nan)}
FLAGS = {
    # each row: tensors, and the flag
    "one that is finite": ([ONES], False),
    "one with infinity": ([LAST[np.inf]], True),
    "one with minus infinity": ([LAST[-np.inf]], True),
    "one with NaN": ([LAST[np.nan]], True),
    "infinities that cancel": ([np.array([np.inf, -np.inf], np.float32)], True),
    "the largest number": ([np.array([3.4e38, -3.4e38], np.float32)], False),
    "an empty one": ([EMPTY], False),
    "many that are finite": ([ONES, EMPTY, ONES * 3, np.float32(2).reshape(())], False),
    "many, the first bad": ([LAST[np.nan], ONES, ONES], True),
    "many, the last bad": ([ONES, EMPTY, LAST[-np.inf]], True),
    "many, infinities that cancel": ([LAST[np.inf], LAST[-np.inf]], True),
    "none at all": ([], False),
}


@pytest.mark.parametrize("name", FLAGS)
def test_all_finite_and_multi_all_finite(name):
    """The flag over one tensor and over many."""
    tensors, flag = FLAGS[name]
    assert check(tensors, 1.0)[1] is flag


MIXED = [np.float16, np.float32, ml_dtypes.bfloat16, np.float16, np.float32]


@pytest.mark.parametrize("place", [None, *range(len(MIXED))])
def test_an_infinity_in_any_gradient_of_mixed_types_is_found(place):
    """Whichever it is in; without one, the unscaled gradients are exact."""
    grads = [np.full((3, 2), 8.0 * (i + 1)).astype(kind) for i, kind in enumerate(MIXED)]
    if place is not None:
        grads[place][1, 1] = np.inf
    results, flag = check(grads, 4.0)
    assert flag is (place is not None)
    for i, (result, grad) in enumerate(zip(results, grads, strict=True)):
        assert result.dtype == np.float32
        if i != place:
            np.testing.assert_array_equal(result, grad.astype(np.float32) / 4)


# ---- state ----


@pytest.mark.parametrize(
    ("scaler", "more"),
    [("torch", set()), ("mxnet", {"_next_scale"}), ("paddle", {"_bad_step_tracker", "decr_every_n_nan_or_inf"})],
)
def test_the_state_goes_through_a_pickle_and_the_run_goes_on_from_it(scaler, more):
    """PyTorch's keys, Python's numbers; a run that continues is the run that was not interrupted."""
    steps = [GOOD, GOOD, BAD, GOOD, BAD, GOOD, GOOD]
    options = {"incr_every_n_steps": 3} | ({"decr_every_n_nan_or_inf": 2} if scaler == "paddle" else {})
    whole, states = net(scaler, **options), []
    for x in steps:
        states.append(whole.optimizer.state_dict(whole.scope))
        whole.run(x)
    assert len({tuple(state.items()) for state in states}) > 3
    for state in states:
        assert set(state) == TORCH_KEYS | more
        assert all(type(value) in (int, float) for value in state.values())
    for at, state in enumerate(states):
        other = net(scaler, **options)
        unpickled = pickle.loads(pickle.dumps(state))
        other.optimizer.load_state_dict(unpickled, other.scope)
        assert other.optimizer.state_dict(other.scope) == state
        for x, expected in zip(steps[at:], itertools.islice([*states[1:], None], at, None), strict=True):
            other.run(x)
            if expected is not None:
                assert other.optimizer.state_dict(other.scope) == expected


@pytest.mark.parametrize("scaler", ["torch", "mxnet"])
def test_three_good_steps_and_a_skipped_one_are_three_steps_of_fp32(scaler):
    """Parameters match an fp32 control that never saw the bad batch; the scaler is pickled in between."""
    text = "(float[n,8] x) => (float[n,4] y) { h = Gemm (x, w1, b1) r = Relu (h) y = Gemm (r, w2, b2) }"
    weights = {"w1": array(8, 8, seed=1, scale=0.3), "b1": array(8, seed=2, scale=0.1)}
    weights |= {"w2": array(8, 4, seed=3, scale=0.3), "b2": array(4, seed=4, scale=0.1)}
    batches = [{"x": array(4, 8, seed=s), "target": array(4, 4, seed=s + 9, scale=0.5)} for s in range(4)]
    skipped = 2
    keywords = {"level": "O1", "scaler": scaler, "init_loss_scaling": 128.0, "incr_every_n_steps": 1}
    rows = []
    for options in (keywords, {}):
        momentum = optimizer.Momentum(0.1, 0.9, weight_decay=0.01)
        trainer = text_nets.trainer(momentum, text, weights, target=(None, 4), **options)
        for step, batch in enumerate(batches):
            if step == skipped and not options:
                continue
            feed = batch if step != skipped else {**batch, "x": batch["x"] * 1e6}
            trainer.step(feed)
            if options:
                state = pickle.dumps(trainer.optimizer.state_dict(trainer.scope))
                trainer.optimizer.update_scale(1.0, trainer.scope)
                trainer.optimizer.load_state_dict(pickle.loads(state), trainer.scope)
        rows.append(trainer)
    mixed, control = rows
    for name, start in weights.items():
        assert not np.allclose(control.scope[name], start, atol=1e-3)
        np.testing.assert_allclose(mixed.scope[name], control.scope[name], atol=1e-3)
    scale = mixed.optimizer.state_dict(mixed.scope)["scale"]
    assert scale == {"torch": 128.0 * 2**3 * 0.5, "mxnet": 128.0 * 2 * 2 / 2}[scaler]


def state(**changed):
    """A state of the scaler that `net` makes, changed; None takes a key away."""
    whole = {"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 7}
    return {key: value for key, value in (whole | changed).items() if value is not None}


WRONG = {
    # name: (state, error, what it says)
    "a missing key": (state(scale=None, _growth_tracker=None), InputError, "has no _growth_tracker, scale"),
    "an unknown key": (state(more=1), InputError, "has more"),
    "an empty state": ({}, InputError, "has no _growth_tracker"),
    "no dictionary": ([1.0], InputError, "needs a dictionary"),
    "mxnet's": (state(_next_scale=4.0), InputError, "has _next_scale.*same scaler="),
    "another growth": (state(growth_factor=3.0), OptionError, "growth_factor is 3.0.*incr_ratio=3.0"),
    "another backoff": (state(backoff_factor=0.25), OptionError, "backoff_factor is 0.25.*decr_ratio=0.25"),
    "another interval": (state(growth_interval=5), OptionError, "growth_interval is 5.*incr_every_n_steps=5"),
    "an infinite scale": (state(scale=float("inf")), InputError, "positive number"),
    "a scale below nothing": (state(scale=-1.0), InputError, "positive number"),
    "no number": (state(scale=float("nan")), InputError, "positive number"),
    "a scale beyond float32": (state(scale=1e39), InputError, "float32"),
    "a scale in words": (state(scale="8"), InputError, "positive number"),
    "half a step": (state(_growth_tracker=0.5), InputError, "whole number of steps"),
    "fewer than no steps": (state(_growth_tracker=-1), InputError, "whole number of steps"),
}


@pytest.fixture(scope="module")
def shared():
    return net()


@pytest.mark.parametrize("name", WRONG)
def test_a_state_that_does_not_fit_changes_nothing(shared, name):
    wrong, error, words = WRONG[name]
    before = shared.state()
    with pytest.raises(error, match=words):
        shared.optimizer.load_state_dict(wrong, shared.scope)
    assert all(np.array_equal(value, before[key]) for key, value in shared.state().items())


def test_a_state_of_pytorchs_own_fits(shared):
    shared.optimizer.load_state_dict(state(), shared.scope)
    assert shared.optimizer.state_dict(shared.scope) == state()


@pytest.mark.parametrize("scaler", ["paddle", "torch", "mxnet"])
def test_update_scale_holds_until_the_scale_moves(scaler):
    """`update(new_scale)` overrides; the tracker stays."""
    trainer = net(scaler)
    trainer.run(GOOD)
    trainer.optimizer.update_scale(16, trainer.scope)
    loss, scaled = trainer.run(GOOD, fetch=[trainer.loss, trainer.optimizer.get_scaled_loss()])
    np.testing.assert_allclose(scaled, 16 * loss.astype(np.float32), rtol=1e-6)
    saved_state = trainer.optimizer.state_dict(trainer.scope)
    assert (saved_state["scale"], saved_state["_growth_tracker"]) == (16.0, 2)
    for wrong in (-1.0, 0.0, float("nan"), float("inf"), True, "8"):
        with pytest.raises(InputError, match="positive number"):
            trainer.optimizer.update_scale(wrong, trainer.scope)


def test_the_state_of_a_scale_that_stays_is_the_scale():
    trainer = net(use_dynamic_loss_scaling=False)
    assert trainer.optimizer.state_dict(trainer.scope) == {"scale": 64.0}
    trainer.optimizer.load_state_dict({"scale": 32.0}, trainer.scope)
    assert trainer.scope[trainer.scale_name].item() == 32.0


def test_a_program_that_does_not_scale_has_no_state():
    trainer = net(dtype="bfloat16", init_loss_scaling=1.0)
    assert trainer.optimizer.state_dict(trainer.scope) == {}
    trainer.optimizer.load_state_dict({}, trainer.scope)
    with pytest.raises(InputError, match="does not scale"):
        trainer.optimizer.load_state_dict(state(), trainer.scope)
    with pytest.raises(InputError, match="does not scale"):
        trainer.optimizer.update_scale(2.0, trainer.scope)


def test_the_state_needs_minimize_and_the_startup_program():
    wrapped = static.amp.decorate(optimizer.SGD(0.1), scaler="torch")
    with pytest.raises(RuntimeError, match="call minimize"):
        wrapped.state_dict()
    with pytest.raises(RuntimeError, match="call minimize"):
        wrapped.load_state_dict(state())
    trainer = nets.one_layer(optimizer.SGD(0.1), start=False, scaler="torch")
    with pytest.raises(InputError, match="run the startup program"):
        trainer.optimizer.state_dict(trainer.scope)


def test_a_rule_is_paddles_unless_more_is_said():
    assert ScalingRule(2000, 1, 2.0, 0.5) == decorated(scaler="paddle").rule


# ---- growth up to the largest number ----

LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("ratio", "scale"),
    [
        (2.0, LARGEST / 2),
        (2.0, np.nextafter(LARGEST / 2, LARGEST)),
        (1.001, 3.399e38),
        (1.001, 3.4e38),
        (1e30, 3.4028234e8),
        (1e30, 3.4028236e8),
        (1.0, LARGEST),
    ],
)
def test_the_scale_grows_unless_it_would_be_infinite(ratio, scale):
    scale = np.array([scale], np.float32)
    main = static.Program()
    with static.program_guard(main, static.Program()):
        scale_before, is_bad = static.data("scale", [1], "float32").value, static.data("found", [], "bool").value
        good = static.data("good", [1], "int32").value
        rule = ScalingRule(1, 1, ratio, 0.5)
        grown, _, _ = update_loss_scaling(main.builder(), is_bad, scale_before, good, None, rule)
    fed = {"scale": scale, "found": np.array(False), "good": np.zeros(1, np.int32)}
    (result,) = static.Executor(nets.CPU).run(main, feed=fed, fetch_list=[grown.name])
    with np.errstate(over="ignore"):
        product = scale * np.float32(ratio)
    np.testing.assert_array_equal(result, product if np.isfinite(product[0]) else scale)


@pytest.mark.parametrize("kind", ["SGD", "Momentum", "Adam", "Adamax"])
@pytest.mark.parametrize("scaler", ["paddle", "torch"])
def test_a_scale_without_inverse_is_a_bad_step(kind, scaler):
    """The gradients are zeros then, and zeros times an infinite inverse would not be."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [2, 3])
        loss = tensor.mean(static.nn.fc(x, 2, bias_attr=False))
        wrapped = static.amp.decorate(getattr(optimizer, kind)(0.1), level="O1", scaler=scaler)
        wrapped.minimize(loss, startup)
    scope, exe = static.Scope(), static.Executor(nets.CPU)
    exe.run(startup, scope=scope)
    (weight,) = main.all_parameters()
    before = scope[weight.name]
    scope[wrapped.get_loss_scaling().name] = np.zeros(1, np.float32)
    exe.run(main, feed={"x": np.ones((2, 3), np.float32)}, fetch_list=[loss], scope=scope)
    np.testing.assert_array_equal(scope[weight.name], before)
