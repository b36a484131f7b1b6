"""`decorate` and the wrapper that it returns."""

import logging

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.program.program import Persistable
from amp_transpiler.runtime.scope import scope_guard
from amp_transpiler.update_passes.loss_scaling import ScalingRule
from tests.paddle import nets

FP16_ONLY = (2.0**15, ScalingRule(1000, 2, 2.0, 0.8))
COMMON = (2.0**16, ScalingRule(2000, 1, 2.0, 0.5))


def adam(**options):
    return optimizer.Adam(0.01, **options)


def decorated(*args, **kwargs):
    return static.amp.decorate(adam(), *args, **kwargs).options


OVERLOADS = {
    # name: (positional arguments after the optimizer, keywords, scale and rule, level)
    "nothing else": ((), {}, COMMON, "O1"),
    "lists": ((None,), {}, COMMON, "O1"),
    "a keyword of both": ((), {"init_loss_scaling": 2.0**16}, COMMON, "O1"),
    "use_promote": ((), {"use_promote": True}, COMMON, "O1"),
    "use_pure_fp16": ((), {"use_pure_fp16": True}, FP16_ONLY, "O2"),
    "use_pure_fp16=False": ((), {"use_pure_fp16": False}, FP16_ONLY, "O1"),
    "use_fp16_guard": ((), {"use_fp16_guard": True}, FP16_ONLY, "O1"),
    "use_bf16=False": ((), {"use_bf16": False}, FP16_ONLY, "O1"),
    "a third argument that is a float": ((None, 2.0**15), {}, FP16_ONLY, "O1"),
    "all of the first overload by position": ((None, 2.0**15, 1000, 2, 2.0, 0.8, True, True), {}, FP16_ONLY, "O2"),
    "a third argument that is a level": ((None, "O2"), {}, COMMON, "O2"),
    "level": ((), {"level": "O2"}, COMMON, "O2"),
    "level, lower case": ((), {"level": "o2"}, COMMON, "O2"),
    "level OD": ((), {"level": "OD"}, COMMON, "OD"),
    "level O0": ((), {"level": "O0"}, COMMON, "O0"),
    "dtype": ((), {"dtype": "float16"}, COMMON, "O1"),
    "master_grad": ((), {"master_grad": True}, COMMON, "O1"),
    "use_amp_guard": ((), {"use_amp_guard": True}, COMMON, "O1"),
}


@pytest.mark.parametrize("name", OVERLOADS)
def test_the_overload_is_chosen_by_its_keywords(name):
    """Which of the two signatures, and so which defaults."""
    args, kwargs, (scale, rule), level = OVERLOADS[name]
    wrapped = decorated(*args, **kwargs)
    assert (wrapped.init_loss_scaling, wrapped.rule, wrapped.level) == (scale, rule, level)
    assert wrapped.dynamic
    assert wrapped.dtype == "float16"


GUARDS = {
    # name: (keywords, whether the guard counts)
    "pure": ({"use_pure_fp16": True}, True),
    "pure, guard off": ({"use_pure_fp16": True, "use_fp16_guard": False}, False),
    "not pure": ({"use_pure_fp16": False}, False),
    "O2": ({"level": "O2"}, False),
    "O2 with guard": ({"level": "O2", "use_amp_guard": True}, True),
}


@pytest.mark.parametrize("name", GUARDS)
def test_use_fp16_guard_is_use_pure_fp16_unless_given(name):
    kwargs, guard = GUARDS[name]
    assert decorated(**kwargs).use_guard is guard


@pytest.mark.parametrize("promote", [False, True])
def test_promotion_is_what_is_asked_for(promote):
    assert decorated(use_promote=promote).use_promote is promote


@pytest.mark.parametrize(("given", "set_by"), [(None, True), (True, True), (False, False)])
def test_master_weight_switches_the_optimizers_multi_precision_on(given, set_by):
    """Anything but False does, in the second overload only."""
    plain = adam()
    static.amp.decorate(plain, level="O2", master_weight=given)
    assert plain.multi_precision is set_by


def test_the_first_overload_leaves_multi_precision_to_the_user():
    plain, precise = adam(), adam(multi_precision=True)
    static.amp.decorate(plain, use_pure_fp16=True)
    static.amp.decorate(precise, use_pure_fp16=True)
    assert (plain.multi_precision, precise.multi_precision) == (False, True)


REFUSED = {
    # name: (keywords, error, what it says)
    "an unknown level": ({"level": "O3"}, ValueError, "level should be O0, OD, O1 or O2"),
    "an unknown dtype": ({"dtype": "int64"}, ValueError, "float16"),
    "keywords of both overloads": ({"use_pure_fp16": True, "level": "O2"}, TypeError, "use_pure_fp16"),
    "how the mixed ones are written": (
        {"use_bf16": True, "level": "O2"},
        TypeError,
        "use_bf16 of the first.*level of the",
    ),
    "an unknown keyword": ({"use_fp8": True}, TypeError, "decorate: neither of its two overloads.*'use_fp8'"),
    "a misspelt keyword": ({"use_pure_fp": True}, TypeError, "did you mean use_pure_fp16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name):
    kwargs, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        decorated(**kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((None, "O2"), {"level": "O1"}, "decorate: multiple values for argument 'level'"),
        (tuple(range(20)), {"level": "O1"}, "decorate: (too many positional|multiple values)"),
    ],
)
def test_a_wrong_call_names_decorate_and_no_private_class(args, kwargs, message):
    with pytest.raises(TypeError, match=message) as raised:
        decorated(*args, **kwargs)
    assert "_Common" not in str(raised.value)


@pytest.mark.parametrize("kwargs", [{}, {"use_pure_fp16": True}])
def test_only_optimizers_are_decorated(kwargs):
    with pytest.raises(RuntimeError, match="optimizer"):
        static.amp.decorate("adam", **kwargs)


def test_level_od_leaves_the_lists_out_with_a_warning(caplog):
    """Passed lists are ignored, and rebuilt."""
    lists = amp.AutoMixedPrecisionLists(custom_white_list=["Exp"])
    with caplog.at_level(logging.WARNING):
        wrapped = decorated(lists, level="OD")
    assert "OD" in caplog.text
    assert "Exp" not in wrapped.lists.white_list


BFLOAT16 = {
    # name: (keywords, scale, whether it is warned of)
    "defaults": ({"dtype": "bfloat16"}, 1.0, False),
    "capitals": ({"dtype": "BFloat16"}, 1.0, False),
    "dynamic asked for": ({"dtype": "bfloat16", "use_dynamic_loss_scaling": True}, 1.0, True),
    "the first overload": ({"use_bf16": True}, 1.0, True),
    "a static scale": ({"dtype": "bfloat16", "init_loss_scaling": 8.0}, 8.0, False),
    "a static scale, first overload": (
        {"use_bf16": True, "use_dynamic_loss_scaling": False, "init_loss_scaling": 8.0},
        8.0,
        False,
    ),
}


@pytest.mark.parametrize("name", BFLOAT16)
def test_bfloat16_is_not_scaled_dynamically(name, caplog):
    """Bfloat16 has no scale; that a scale of 65536 stays where nobody asked for one is a quirk we leave out."""
    kwargs, scale, warned = BFLOAT16[name]
    with caplog.at_level(logging.WARNING):
        wrapped = decorated(**kwargs)
    assert (wrapped.dtype, wrapped.dynamic, wrapped.init_loss_scaling) == ("bfloat16", False, scale)
    assert bool(caplog.records) is warned


# ---- the wrapper ----


def test_nothing_is_scaled_before_minimize():
    """`get_loss_scaling` asserts, `get_scaled_loss` is None."""
    wrapped = static.amp.decorate(adam())
    assert wrapped.get_scaled_loss() is None
    with pytest.raises(RuntimeError, match="minimize"):
        wrapped.get_loss_scaling()


@pytest.mark.parametrize("kwargs", [{}, {"use_pure_fp16": True}])
def test_amp_init_comes_after_minimize(kwargs):
    with pytest.raises(RuntimeError, match="call the minimize method first"):
        static.amp.decorate(adam(), **kwargs).amp_init(nets.CPU, static.Scope())


def test_gradients_are_applied_after_backward():
    with pytest.raises(RuntimeError, match="backward"):
        static.amp.decorate(adam()).apply_gradients([])


def test_the_wrapped_optimizer_shows_through():
    """A wrapped optimizer still hands out all of its attributes."""
    wrapped = static.amp.decorate(optimizer.Adam(0.25), level="O2")
    assert wrapped.get_lr() == 0.25
    assert wrapped.multi_precision is True


def test_gradients_are_unscaled_before_they_are_clipped_and_decayed():
    """Unscale and check, update the scale, then the optimizer with its clip.

    With a scale of 2**10, clipping the scaled gradient would leave next to nothing of it.
    """
    clip = amp.nn.ClipGradByGlobalNorm(1e6)
    moved = {}
    for scale in (1.0, 2.0**10):
        options = {"init_loss_scaling": scale, "use_dynamic_loss_scaling": False, "level": "O1"}
        net = nets.one_layer(optimizer.SGD(2.0**-4, grad_clip=clip, weight_decay=0.5), **options)
        before = net.state()[net.weight]
        net.run(1.0)
        moved[scale] = before - net.state()[net.weight]
    assert moved[1.0].any()
    np.testing.assert_allclose(moved[2.0**10], moved[1.0], rtol=1e-3)


def test_clipping_sees_what_is_unscaled():
    """As above, with a norm that does clip: the step has that length whatever the scale."""
    options = {"init_loss_scaling": 2.0**10, "use_dynamic_loss_scaling": False, "level": "O1"}
    net = nets.one_layer(optimizer.SGD(1.0, grad_clip=amp.nn.ClipGradByGlobalNorm(0.125)), **options)
    before = net.state()[net.weight]
    net.run(1.0)
    assert np.linalg.norm(before - net.state()[net.weight]) == pytest.approx(0.125, rel=1e-3)


def test_level_o0_is_the_plain_optimizer():
    """Paddle's static wrapper runs O0 as O1, a quirk that we leave out."""
    net, plain = nets.one_layer(adam(), level="O0"), nets.one_layer(adam(), level="O1", dtype="float16")
    assert not [node for node in nets.nodes(net.main) if "FLOAT16" in nets.makes(node)]
    assert not nets.nodes(net.main, "IsNaN")
    assert nets.nodes(plain.main, "IsNaN")


def test_a_static_scale_of_one_is_no_scale():
    """Neither a product nor a finite check; the loss is its own scaled loss."""
    net = nets.one_layer(adam(), use_pure_fp16=True, use_dynamic_loss_scaling=False, init_loss_scaling=1.0)
    assert not nets.nodes(net.main, "IsNaN")
    assert not net.has_counters
    loss, scaled = net.run(1.0, fetch=[net.loss, net.optimizer.get_scaled_loss()])
    np.testing.assert_array_equal(loss, scaled)


def test_a_static_scale_is_checked_but_does_not_move():
    net = nets.one_layer(adam(), use_pure_fp16=True, use_dynamic_loss_scaling=False, init_loss_scaling=8.0)
    assert nets.nodes(net.main, "IsNaN")
    assert not net.has_counters
    assert net.scale_name not in net.main.updates


def test_minimize_returns_the_optimizers_nodes_and_the_scaled_gradients():
    """As Paddle's `minimize` does: (optimize_ops, scaled_params_grads)."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [1, 4])
        w = create_persistable(Persistable("w", "parameter"), (4, 1), 0.5)
        loss = x @ w
        wrapped = static.amp.decorate(optimizer.SGD(0.5), init_loss_scaling=32.0, use_dynamic_loss_scaling=False)
        names, [(parameter, gradient)] = wrapped.minimize(loss, startup)
    assert names
    assert set(names) <= {node.name for node in nets.nodes(main, role="optimize")}
    assert parameter.name == "w"
    net = nets.Net(main, startup, loss, wrapped).start()
    (scaled,) = net.step({"x": np.ones((1, 4), np.float32)}, [gradient])
    np.testing.assert_array_equal(scaled, np.full((4, 1), 32.0))


def test_minimize_takes_the_startup_program_that_it_is_given():
    """The use case calls it outside every program_guard: masters and moments must start in that startup program."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        w = create_persistable(Persistable("w", "parameter"), (4, 1), 0.5)
        loss = static.data("x", [1, 4]) @ w
    wrapped = static.amp.decorate(adam(multi_precision=True), use_pure_fp16=True)
    wrapped.minimize(loss, startup)
    net = nets.Net(main, startup, loss, wrapped).start()
    assert set(main.persistables) <= set(net.scope)
    net.step({"x": np.ones((1, 4), np.float32)})


def test_only_the_optimizers_own_parameters_are_trained():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        w, v = (create_persistable(Persistable(name, "parameter"), (4, 4), 0.5) for name in "wv")
        product = static.data("x", [4, 4]) @ w @ v
        loss = static.Variable(main, main.builder().mean(product.value, keepdims=False).name)
        wrapped = static.amp.decorate(optimizer.SGD(0.5, parameters=[v]), level="O1")
        _, pairs = wrapped.minimize(loss, startup)
    assert [parameter.name for parameter, _ in pairs] == ["v"]


BEFORE_MINIMIZE = {
    # call: part of the error
    "get_loss_scaling": (lambda optimizer_of: optimizer_of.get_loss_scaling(), "there is no loss scale yet"),
    "update_scale": (lambda optimizer_of: optimizer_of.update_scale(2.0), "there is no loss scale yet"),
    "apply_gradients": (lambda optimizer_of: optimizer_of.apply_gradients([]), "call backward"),
    "amp_init": (lambda optimizer_of: optimizer_of.amp_init(nets.CPU), "please call the minimize method first"),
}


@pytest.mark.parametrize("name", BEFORE_MINIMIZE)
def test_what_needs_minimize_says_so(name):
    call, words = BEFORE_MINIMIZE[name]
    wrapped = static.amp.decorate(adam())
    assert (wrapped.get_scaled_loss(), wrapped.found_inf) == (None, None)
    with pytest.raises(RuntimeError, match=words):
        call(wrapped)


def test_callbacks_are_refused():
    net, _ = two_programs(level="O1")
    with pytest.raises(OptionError, match="callbacks are Paddle's"):
        static.amp.decorate(adam()).backward(net.loss, callbacks=[print])


SCALED = {
    # name: (keywords, whether the loss is scaled, whether the scale moves)
    "O1": ({"level": "O1"}, True, True),
    "a scale that stays": ({"level": "O1", "use_dynamic_loss_scaling": False, "init_loss_scaling": 8.0}, True, False),
    "a scale of 1 that moves": ({"level": "O1", "init_loss_scaling": 1.0}, True, True),
    "a scale of 1 that stays": (
        {"level": "O1", "use_dynamic_loss_scaling": False, "init_loss_scaling": 1.0},
        False,
        False,
    ),
    "O0": ({"level": "O0"}, False, False),
}


@pytest.mark.parametrize("name", SCALED)
def test_whether_the_loss_is_scaled(name):
    """No scale at O0, nor where it is 1 and stays 1."""
    keywords, scaled, moves = SCALED[name]
    net, _ = two_programs(**keywords)
    assert (net.optimizer.found_inf is not None) is scaled
    assert bool(nets.nodes(net.main, "IsNaN")) is scaled
    assert any("num_good_steps" in name for name in net.main.persistables) is moves
    assert net.main.outputs == [net.loss.name], "the scaled loss is no output"
    net.start()
    loss, held = net.step({"x": np.ones((2, 4), np.float32)}, [net.loss, net.optimizer.get_scaled_loss()])
    factor = net.optimizer.options.init_loss_scaling if scaled else 1.0
    np.testing.assert_allclose(held, factor * loss.astype(np.float32), rtol=1e-6)
    assert (net.optimizer.state_dict(net.scope) != {}) is scaled


def test_the_state_is_that_of_the_global_scope_unless_another_is_given():
    net, _ = two_programs(level="O1")
    net.start()
    with scope_guard(net.scope):
        held = net.optimizer.state_dict()
        net.optimizer.update_scale(4.0)
        assert net.optimizer.state_dict(net.scope)["scale"] == 4.0
        net.optimizer.load_state_dict(held)
    assert net.optimizer.state_dict(net.scope) == held


# ---- amp_init ----


def two_programs(*, level=None, **decorated_with):
    """A training program and a test program that share `w`, not yet started."""
    main, test, startup = static.Program(), static.Program(), static.Program()
    for program in (test, main):
        with static.program_guard(program, startup):
            w = create_persistable(Persistable("w", "parameter"), (4, 4), 1 / 3)
            with amp.fp16_guard():
                product = static.data("x", [None, 4]) @ w
    keywords = decorated_with | ({"level": level} if level else {})
    with static.program_guard(main, startup):
        loss = static.Variable(main, main.builder().mean(product.value, keepdims=False).name)
        wrapped = static.amp.decorate(adam(multi_precision=True), **keywords)
        wrapped.minimize(loss, startup)
    return nets.Net(main, startup, loss, wrapped), test


AMP_INIT = {
    # name: (decorate's keywords, use_fp16_test, the weight's type, whether the test program becomes low)
    "pure": ({"use_pure_fp16": True}, False, np.float16, True),
    "pure, use_fp16_test": ({"use_pure_fp16": True}, True, np.float16, True),
    "O2": ({"level": "O2"}, False, np.float16, True),
    "O1": ({"level": "O1"}, False, np.float32, False),
    "O1, use_fp16_test": ({"level": "O1"}, True, np.float32, True),
}


@pytest.mark.parametrize("name", AMP_INIT)
def test_amp_init_rounds_parameters_and_rewrites_the_test_program(name):
    """At O2 always, at O1 the test program only with use_fp16_test."""
    decorated_with, use_fp16_test, dtype, low = AMP_INIT[name]
    net, test = two_programs(**decorated_with)
    net.start(test_program=test, use_fp16_test=use_fp16_test)
    assert net.scope["w"].dtype == dtype
    [product] = nets.nodes(test, "MatMul")
    assert nets.makes(product) == ["FLOAT16" if low else "FLOAT"]


@pytest.mark.parametrize("rewrite", [False, True])
def test_master_weights_start_unrounded_unless_they_are_rewritten(rewrite):
    """Masters hold what the parameter was before rounding; rewrite_master_weight resets them."""
    net, _ = two_programs(use_pure_fp16=True)
    net.start(rewrite_master_weight=rewrite)
    master = net.scope[net.optimizer.master_weights["w"]]
    low = net.scope["w"]
    third = np.float32(1 / 3)
    assert master.dtype == np.float32
    assert (low == third.astype(np.float16)).all()
    assert (master == (third.astype(np.float16).astype(np.float32) if rewrite else third)).all()


def test_amp_init_takes_the_global_scope_unless_it_is_given_one():
    net, test = two_programs(use_pure_fp16=True)
    with scope_guard(net.scope):
        net.executor.run(net.startup)
        net.optimizer.amp_init(nets.CPU, test_program=test)
    assert net.scope["w"].dtype == np.float16


def test_a_run_without_amp_init_rounds_the_parameters_and_says_so(caplog):
    net, _ = two_programs(use_pure_fp16=True)
    net.executor.run(net.startup, scope=net.scope)
    with caplog.at_level(logging.INFO):
        net.step({"x": np.ones((2, 4), np.float32)})
    assert "'w'" in caplog.text
    assert net.scope["w"].dtype == np.float16


def test_amp_init_before_the_startup_program_warns(caplog):
    """A parameter that the scope lacks is warned of."""
    net, _ = two_programs(use_pure_fp16=True)
    with caplog.at_level(logging.WARNING):
        net.optimizer.amp_init(nets.CPU, net.scope)
    assert "'w'" in caplog.text
