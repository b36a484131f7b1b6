"""The loss scale and its counters, driven by real overflow."""

import dataclasses
import itertools

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler import optimizer, static
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.program.program import Persistable
from amp_transpiler.update_passes.loss_scaling import (
    ScalingRule,
    check_finite,
    is_count,
    is_positive,
    unscale,
    update_loss_scaling,
    zero_if,
)
from tests.paddle import nets

NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
PAPER = ScalingRule(incr_every_n_steps=1000, decr_every_n_nan_or_inf=2, incr_ratio=2.0, decr_ratio=0.8)


# ---- the two operators by themselves ----


def check(arrays, scale):
    """Run the check over arrays, and unscale them; returns what it makes of them, and the flag."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        fed = {f"g{i}": a for i, a in enumerate(arrays)}
        grads = [static.data(name, list(a.shape), a.dtype.name).value for name, a in fed.items()]
        builder = main.builder()
        is_bad, inverse = check_finite(builder, grads, builder.constant(np.float32(scale)))
        unscaled = [unscale(builder, grad, inverse) for grad in grads]
    *results, flag = static.Executor(nets.CPU).run(main, feed=fed, fetch_list=[v.name for v in (*unscaled, is_bad)])
    return results, bool(flag)


class Rule:
    """update_loss_scaling and the zeroing, in a program of their own; a feed tells whether the step is bad."""

    def __init__(self, rule, scale, good=0, bad=0, dtype="float32"):
        self.scope, self.main, startup = static.Scope(), static.Program(), static.Program()
        with static.program_guard(self.main, startup):
            flag = static.data("flag", [], "bool").value
            grads = [static.data(name, [2, 2], dtype).value for name in ("g0", "g1")]
            started = (("scale", scale, "float32"), ("good", good, "int32"), ("bad", bad, "int32"))
            held = [create_persistable(Persistable(n, "state"), (1,), v, parse_dtype(t)) for n, v, t in started]
            builder = self.main.builder()
            new = update_loss_scaling(builder, flag, *(v.value for v in held), rule)
            self.main.updates |= {v.name: str(n.name) for v, n in zip(held, new, strict=True)}
            self.zeroed = [str(zero_if(builder, flag, grad).name) for grad in grads]
        self.grads = {name: np.array([[1, -2], [3, 4]], NUMPY[dtype]) for name in ("g0", "g1")}
        self.executor = static.Executor(nets.CPU)
        self.executor.run(startup, scope=self.scope)

    def step(self, bad):
        """One step; returns the gradients as they leave it."""
        feed = {"flag": np.array(bad), **self.grads}
        return self.executor.run(self.main, feed=feed, fetch_list=self.zeroed, scope=self.scope)

    @property
    def state(self):
        return tuple(self.scope[name].item() for name in ("scale", "good", "bad"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_thousandth_good_step_doubles_the_scale(dtype):
    """Good 999 -> 1000, 2048 -> 4096, counters 0, gradients as they were, in each element type."""
    rule = Rule(PAPER, 2048.0, good=999, bad=1, dtype=dtype)
    left = rule.step(bad=False)
    assert rule.state == (4096.0, 0, 0)
    for gradient, name in zip(left, rule.grads, strict=True):
        assert gradient.dtype == NUMPY[dtype]
        np.testing.assert_array_equal(gradient, rule.grads[name])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_second_bad_step_shrinks_the_scale(dtype):
    """Bad 1 -> 2, 2048 -> 1638.4, gradients all zero, counters 0."""
    rule = Rule(PAPER, 2048.0, good=999, bad=1, dtype=dtype)
    left = rule.step(bad=True)
    assert rule.state == (np.float32(1638.4), 0, 0)
    assert all(gradient.dtype == NUMPY[dtype] and not gradient.any() for gradient in left)


SMALL = ScalingRule(incr_every_n_steps=3, decr_every_n_nan_or_inf=2, incr_ratio=2.0, decr_ratio=0.5)
SEQUENCES = {
    # name: (rule, first scale, steps (x is bad), the scale after each)
    "it grows after exactly n good steps": (SMALL, 8.0, "......", [8, 8, 16, 16, 16, 32]),
    "a bad step starts the count of good ones anew": (SMALL, 8.0, "..x...", [8, 8, 8, 8, 8, 16]),
    "it shrinks after n bad steps": (SMALL, 8.0, "xxxx", [8, 4, 4, 2]),
    "bad steps must follow one another": (SMALL, 8.0, "x.x.x", [8, 8, 8, 8, 8]),
    "it never falls below 1": (SMALL, 1.5, "xxxx", [1.5, 1, 1, 1]),
    "a scale below 1 is raised to it": (SMALL, 0.5, "xx", [0.5, 1]),
    "growth 2, backoff .25, interval 2": (ScalingRule(2, 1, 2.0, 0.25), 4.0, "..x", [4, 8, 2]),
    "it does not grow to infinity": (ScalingRule(1, 1, 2.0, 0.5), 2.0**127, "..", [2.0**127, 2.0**127]),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_update_rule(name):
    """Floor 1, no ceiling but finiteness, counters that must not be interrupted."""
    scale, first, steps, expected = SEQUENCES[name]
    rule = Rule(scale, first)
    scales = []
    for step in steps:
        rule.step(bad=step == "x")
        scales.append(rule.state[0])
    assert scales == expected


def test_the_counter_starts_anew_where_the_scale_cannot_grow():
    rule = Rule(dataclasses.replace(SMALL, incr_every_n_steps=1), 2.0**127)
    rule.step(bad=False)
    assert rule.state == (2.0**127, 0, 0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_finite_gradients_are_divided(dtype):
    """They are divided by the scale, flag 0. Other than Paddle's, the result is float32 and stays so."""
    x = np.linspace(-4, 4, 12).reshape(3, 4).astype(NUMPY[dtype])
    (result,), flag = check([x], 128.0)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, x.astype(np.float32) / 128)
    assert not flag


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_one_bad_element_raises_the_flag(dtype, poison, place):
    """A single NaN or infinity, in whichever gradient, gives flag 1."""
    grads = [np.ones((2, 3), NUMPY[dtype]), np.ones(5, NUMPY[dtype])]
    grads[place].flat[-1] = poison
    assert check(grads, 128.0)[1]


def test_the_check_looks_at_what_the_optimizer_reads():
    """60000 / 0.5 is infinite in float16, where Paddle writes it, but not in float32."""
    (low, high), flag = check([np.array([60000], np.float16), np.array([1], np.float32)], 0.5)
    assert not flag
    np.testing.assert_array_equal((low, high), [[120000], [2]])


def test_a_scale_of_zero_is_no_good_step():
    """Its inverse is infinite, whatever the gradients are."""
    assert check([np.zeros(2, np.float16)], 0.0)[1]
    assert check([np.zeros(2, np.float32)], 0.0)[1]


def test_large_float32_gradients_are_not_taken_for_overflow():
    grads = [np.full(8, 3e38, np.float32), np.full(8, -3e38, np.float32)]
    assert not check(grads, 1.0)[1]


def test_no_gradients_are_finite():
    assert check([], 128.0) == ([], False)


@pytest.mark.parametrize(("count", "sums"), [(1, 0), (2, 1), (3, 1)])
def test_the_check_is_one_sum_over_all(count, sums):
    main = static.Program()
    with static.program_guard(main, static.Program()):
        grads = [static.data(f"g{i}", [2], "float32").value for i in range(count)]
        check_finite(main.builder(), grads, main.builder().constant(np.float32(2)))
    assert len(nets.nodes(main, "Sum")) == sums
    assert len(nets.nodes(main, "IsNaN")) == 1


POSITIVE = [1, 0.5, 1.5e-45, 3.4028234e38, np.float32(2), np.int64(3), np.float16(0.5), np.uint8(1)]
NOT_POSITIVE = [0, 0.0, -1, -0.5, 1e-46, 3.5e38, 10**39, 10**400, float("nan"), float("inf"), True, "1", None, [1]]


@pytest.mark.parametrize("value", POSITIVE + NOT_POSITIVE, ids=str)
def test_positive_numbers_are_those_that_float32_holds(value):
    assert is_positive(value) is any(value is number for number in POSITIVE)


COUNTS = [(1, 1), (5, 1), (2**31 - 1, 1), (np.int32(3), 1), (0, 0), (np.uint8(0), 0)]
NO_COUNTS = [(0, 1), (-1, 0), (2**31, 1), (True, 0), (1.0, 1), ("1", 1), (None, 0), (np.float32(1), 1), (4, 5)]


@pytest.mark.parametrize(("value", "least"), COUNTS + NO_COUNTS, ids=str)
def test_counts_are_those_that_int32_holds(value, least):
    assert is_count(value, least) is any(value is number for number, low in COUNTS if low == least)


# ---- in a program: the overflow is real ----

GOOD, BAD = 1.0, 60000.0  # times the weights, BAD leaves float16


def training(wrapped, **decorated):
    """A program of one guarded MatMul, trained by `wrapped`, ready to run."""
    return nets.one_layer(wrapped, **{"use_pure_fp16": True, "init_loss_scaling": 64.0, **decorated})


def test_the_scaled_loss_is_the_loss_times_the_scale():
    """After minimize the wrapper hands out the scale and the scaled loss."""
    net = nets.one_layer(optimizer.SGD(0.1), level="O1", init_loss_scaling=128.0)
    scale, scaled = net.optimizer.get_loss_scaling(), net.optimizer.get_scaled_loss()
    loss, by_scale, held = net.run(GOOD, fetch=[net.loss, scaled, scale])
    assert held.item() == 128.0
    assert held.dtype == by_scale.dtype == np.float32
    np.testing.assert_allclose(by_scale, 128 * loss.astype(np.float32), rtol=1e-6)


def adam():
    return optimizer.Adam(0.01, multi_precision=True)


def adamw():
    return optimizer.AdamW(0.01, multi_precision=True, weight_decay=0.1)


@pytest.mark.parametrize("made", [adam, adamw])
def test_a_step_that_overflows_leaves_adam_as_it_was(made):
    """Parameters, masters, moments and beta powers stay; the scale shrinks."""
    net = training(made(), decr_every_n_nan_or_inf=1, decr_ratio=0.5)
    net.run(GOOD)
    before = net.state()
    net.run(BAD)
    after = net.state()
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert moved == net.scaling_names() - {net.bad_name}
    assert before[net.scale_name].item() == 64.0
    assert after[net.scale_name].item() == 32.0
    net.run(GOOD)
    assert not np.array_equal(net.state()[net.weight], after[net.weight]), "training does not go on"


def test_a_step_that_overflows_leaves_the_schedule_as_it_was():
    """A skipped step counts for no learning-rate schedule."""
    schedule = optimizer.lr.ExponentialDecay(learning_rate=0.01, gamma=0.5, steps_per_epoch=1)
    net = training(optimizer.Adam(schedule, multi_precision=True))
    net.run(GOOD)
    before = net.state()
    net.run(BAD)
    after = net.state()
    assert {n for n in before if not np.array_equal(before[n], after[n])} <= net.scaling_names()


def test_momentum_sees_a_zero_gradient_where_a_step_overflows():
    """Momentum goes on with velocity and weight decay; only its gradient is zero."""
    rate, momentum = 0.125, 0.5
    net = training(optimizer.Momentum(rate, momentum, multi_precision=True), decr_every_n_nan_or_inf=1)
    net.run(GOOD)
    before = net.state()
    net.run(BAD)
    after = net.state()
    [velocity] = [name for name in before if "velocity" in name]
    assert before[velocity].any()
    np.testing.assert_allclose(after[velocity], momentum * before[velocity], rtol=1e-6)
    expected = before[net.master] - rate * momentum * before[velocity]
    np.testing.assert_allclose(after[net.master], expected, rtol=1e-6)
    np.testing.assert_array_equal(after[net.weight], after[net.master].astype(np.float16))


def test_sgd_applies_weight_decay_where_a_step_overflows():
    """The zero gradient comes before regularisation."""
    net = training(optimizer.SGD(0.125, weight_decay=0.5, multi_precision=True))
    before = net.state()[net.master]
    net.run(BAD)
    np.testing.assert_allclose(net.state()[net.master], before * (1 - 0.125 * 0.5), rtol=1e-6)


REAL = {
    # name: (options, feeds (x overflows), the scale after each step)
    "growth after n good steps": ({"incr_every_n_steps": 3}, "......", [64, 64, 128, 128, 128, 256]),
    "the second bad step shrinks it": ({}, "xx.", [64, np.float32(64 * np.float32(0.8)), np.float32(51.2)]),
    "bad steps must follow one another": ({}, "x.x.", [64, 64, 64, 64]),
    "a bad step starts growth anew": ({"incr_every_n_steps": 2}, ".x..", [64, 64, 64, 128]),
    "never below 1": ({"decr_every_n_nan_or_inf": 1, "decr_ratio": 0.0625}, "xxx", [4, 1, 1]),
    "a static scale stays": ({"use_dynamic_loss_scaling": False}, "x.x", [64, 64, 64]),
}


@pytest.mark.parametrize("name", REAL)
def test_the_scale_moves_with_real_overflow(name):
    """In a program whose float16 products overflow."""
    options, steps, expected = REAL[name]
    net = training(adam(), **options)
    scales = []
    for step in steps:
        net.run(BAD if step == "x" else GOOD)
        scales.append(net.state()[net.scale_name].item())
    assert scales == [float(value) for value in expected]


def test_a_growing_scale_overflows_by_itself_and_comes_back():
    """Nothing but the scale grows; it must reach overflow, and training must outlive that."""
    options = {"incr_every_n_steps": 1, "decr_every_n_nan_or_inf": 1, "decr_ratio": 0.5, "init_loss_scaling": 2.0**12}
    net = training(adam(), **options)
    scales, losses = [], []
    for _ in range(12):
        losses.append(net.run(GOOD)[0].item())
        scales.append(net.state()[net.scale_name].item())
    assert any(later < earlier for earlier, later in itertools.pairwise(scales)), "it never overflowed"
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


def test_a_static_scale_also_skips_a_step_that_overflows():
    """The flag reaches Adam whether or not the scale moves."""
    net = training(adam(), use_dynamic_loss_scaling=False)
    before = net.state()
    net.run(BAD)
    assert all(np.array_equal(before[name], value) for name, value in net.state().items())
    assert not net.has_counters


SMALL_GRADIENTS = {
    "float32 parameters": {"level": "O1"},
    "float32 gradients of float16 parameters": {"level": "O2", "master_grad": True, "use_amp_guard": True},
}


@pytest.mark.parametrize("name", SMALL_GRADIENTS)
def test_a_gradient_too_small_for_float16_is_learnt_from_when_it_is_scaled(name):
    """The purpose of scaling: 2**-27 is zero in float16, 2**-27 * 2**12 is not."""
    rate, tiny = 2.0**10, 2.0**-26
    moved = {}
    for scale in (1.0, 2.0**12):
        sgd = optimizer.SGD(rate, multi_precision=True)
        options = SMALL_GRADIENTS[name] | {"use_dynamic_loss_scaling": False, "init_loss_scaling": scale}
        net = nets.one_layer(sgd, **options)
        held = net.optimizer.master_weights.get(net.weight, net.weight)
        before = net.state()[held]
        net.run(GOOD, factor=tiny)  # the product is 2, so its gradient is tiny * 2 * (2 - 1) / outputs
        moved[scale] = before - net.state()[held]
    assert not moved[1.0].any()
    np.testing.assert_allclose(moved[2.0**12], rate * tiny * 2 / net.outputs, rtol=1e-2)


def test_unscaled_gradients_stay_in_float32():
    """Paddle makes a float16 gradient float16 again once it is unscaled, where 2**-26 is lost."""
    net = training(optimizer.SGD(2.0**10, multi_precision=True), init_loss_scaling=2.0**12)
    before = net.state()[net.master]
    net.run(GOOD, factor=2.0**-26)
    assert (net.state()[net.master] != before).all()


def test_bfloat16_is_not_scaled():
    """No scale, and no finite check, in a bfloat16 program."""
    net = nets.one_layer(adam(), level="O2", dtype="bfloat16")
    assert not net.has_counters
    assert not nets.nodes(net.main, "IsNaN")
    loss, scaled = net.run(GOOD, fetch=[net.loss, net.optimizer.get_scaled_loss()])
    np.testing.assert_array_equal(loss.astype(np.float32), scaled)


def test_scale_and_counters_have_the_types_and_starts_that_paddle_gives_them():
    """`loss_scaling` is float32 [1], the counters are int32 [1], all zero at first."""
    net = training(adam())
    state = net.state()
    assert (state[net.scale_name].dtype, state[net.scale_name].shape) == (np.float32, (1,))
    for name in (net.good_name, net.bad_name):
        assert (state[name].dtype, state[name].shape, state[name].item()) == (np.int32, (1,), 0)
    assert net.main.value(net.scale_name).dtype == ir.DataType.FLOAT


def test_gradients_are_applied_after_backward_only():
    with pytest.raises(RuntimeError, match="call backward"):
        static.amp.decorate(optimizer.SGD(0.1)).apply_gradients([])


def test_what_was_asked_for_can_be_read():
    lists = static.amp.CustomOpLists(custom_black_list=["relu"])
    asked = static.amp.decorate(optimizer.SGD(0.1), lists, use_promote=True).options
    assert asked.lists is lists
    assert asked.use_promote is True
