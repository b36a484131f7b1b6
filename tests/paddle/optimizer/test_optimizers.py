"""Optimizers against torch's, and against numpy where torch has none; master weights; skipped steps."""

import importlib.util
import inspect
import logging

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.roles import role_of
from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.paddle.framework.programs import data, program_guard
from amp_transpiler.paddle.optimizer import SGD, Adam, Adamax, AdamW, Lamb, Momentum, lr
from amp_transpiler.paddle.regularizer import L1Decay, L2Decay
from amp_transpiler.program.program import Persistable, Program
from tests.paddle.optimizer.programs import gradient_fed, linear, started

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch, the oracle, is not installed"
)

FLOAT16, BFLOAT16 = ir.DataType.FLOAT16, ir.DataType.BFLOAT16
ALL = [SGD, Momentum, Adam, Adamax, AdamW, Lamb]
ADAPTIVE = [Adam, AdamW, Lamb]


def draw(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


TORCH = {
    "sgd": (SGD(0.01), "SGD", {"lr": 0.01}),
    "sgd-decay": (SGD(0.01, weight_decay=0.1), "SGD", {"lr": 0.01, "weight_decay": 0.1}),
    "momentum": (Momentum(0.005, 0.9), "SGD", {"lr": 0.005, "momentum": 0.9}),
    "nesterov": (
        Momentum(0.005, 0.8, use_nesterov=True, weight_decay=L2Decay(0.1)),
        "SGD",
        {"lr": 0.005, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
    ),
    "adam": (Adam(0.05), "Adam", {"lr": 0.05}),
    "adam-options": (
        Adam(0.05, 0.8, 0.95, 1e-4, weight_decay=0.1),
        "Adam",
        {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1},
    ),
    "adam-amsgrad": (Adam(0.05, beta2=0.6, amsgrad=True), "Adam", {"lr": 0.05, "betas": (0.9, 0.6), "amsgrad": True}),
    "adamax": (Adamax(0.05), "Adamax", {"lr": 0.05}),
    "adamax-options": (
        Adamax(0.05, 0.8, 0.95, weight_decay=0.1),
        "Adamax",
        {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1},
    ),
    "adamw": (AdamW(0.05, weight_decay=0.2), "AdamW", {"lr": 0.05, "weight_decay": 0.2}),
    "adamw-amsgrad": (
        AdamW(0.05, beta2=0.6, weight_decay=0.2, amsgrad=True),
        "AdamW",
        {"lr": 0.05, "betas": (0.9, 0.6), "weight_decay": 0.2, "amsgrad": True},
    ),
    "adamw-default": (AdamW(0.05), "AdamW", {"lr": 0.05, "weight_decay": 0.01}),
}


# Paddle's signatures, in order; what is not among the defaults is None or False.
ADAM_DEFAULTS = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
SIGNATURES = [
    (SGD, "learning_rate parameters weight_decay grad_clip multi_precision name", {"learning_rate": 0.001}),
    (
        Momentum,
        (
            "learning_rate momentum parameters use_nesterov weight_decay grad_clip multi_precision rescale_grad "
            "use_multi_tensor name"
        ),
        {"learning_rate": 0.001, "momentum": 0.9, "rescale_grad": 1.0},
    ),
    (
        Adam,
        (
            "learning_rate beta1 beta2 epsilon parameters weight_decay grad_clip lazy_mode multi_precision "
            "use_multi_tensor amsgrad name"
        ),
        ADAM_DEFAULTS,
    ),
    (Adamax, "learning_rate beta1 beta2 epsilon parameters weight_decay grad_clip name", ADAM_DEFAULTS),
    (
        AdamW,
        (
            "learning_rate beta1 beta2 epsilon parameters weight_decay lr_ratio apply_decay_param_fun grad_clip "
            "lazy_mode multi_precision amsgrad name"
        ),
        {**ADAM_DEFAULTS, "weight_decay": 0.01},
    ),
    (
        Lamb,
        (
            "learning_rate lamb_weight_decay beta1 beta2 epsilon parameters grad_clip exclude_from_weight_decay_fn "
            "multi_precision always_adapt name"
        ),
        {**ADAM_DEFAULTS, "lamb_weight_decay": 0.01, "epsilon": 1e-6},
    ),
]


@pytest.mark.parametrize(("optimizer", "names", "defaults"), SIGNATURES)
def test_the_signature_is_paddles(optimizer, names, defaults):
    arguments = inspect.signature(optimizer).parameters
    assert list(arguments) == names.split()
    assert {name: p.default for name, p in arguments.items() if p.default not in (None, False)} == defaults
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in arguments.values())


@pytest.mark.parametrize("kind", ALL)
def test_two_optimizers_of_equal_settings_are_two(kind):
    first, second = kind(0.1), kind(0.1)
    assert first != second
    assert len({first, second}) == 2


@needs_torch
@pytest.mark.parametrize(("optimizer", "theirs", "options"), TORCH.values(), ids=TORCH)
def test_ten_steps_of_a_linear_model_as_torch(optimizer, theirs, options):
    import torch

    w = draw(5, 1, seed=1)
    ours = linear(optimizer, w)
    weight = torch.nn.Parameter(torch.tensor(w, dtype=torch.float64))
    oracle = getattr(torch.optim, theirs)([weight], **options)
    for step in range(10):
        x, y = draw(8, 5, seed=10 + step), draw(8, 1, seed=50 + step)
        (loss,) = ours.run({"x": x, "y": y}, [ours.main.outputs[0]])
        oracle.zero_grad()
        error = ((torch.tensor(x).double() @ weight - torch.tensor(y)) ** 2).sum()
        error.backward()
        oracle.step()
        np.testing.assert_allclose(loss.item(), error.item(), rtol=1e-5)
    np.testing.assert_allclose(ours.scope["w"], weight.detach().numpy(), rtol=2e-5, atol=2e-6)
    assert np.abs(ours.scope["w"] - w).max() > 0.01


def lamb_step(w, g, m, v, t, *, rate, decay, adapt, beta1=0.9, beta2=0.999, epsilon=1e-6):
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    direction = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon) + decay * w
    norms = np.linalg.norm(w), np.linalg.norm(direction)
    ratio = norms[0] / norms[1] if adapt and min(norms) > 0 else 1.0
    return w - rate * ratio * direction, m, v


@pytest.mark.parametrize(
    ("options", "decay", "adapt"),
    [
        ({"lamb_weight_decay": 0.1}, 0.1, True),
        ({"lamb_weight_decay": 0.1, "exclude_from_weight_decay_fn": lambda p: p.name == "w"}, 0.0, False),
        ({"exclude_from_weight_decay_fn": lambda _: True, "always_adapt": True}, 0.0, True),
        ({"exclude_from_weight_decay_fn": lambda p: p.name == "other"}, 0.01, True),
    ],
)
@pytest.mark.parametrize("zero", [False, True])
def test_lamb_as_its_formula(options, decay, adapt, zero):
    w = np.zeros((3, 4)) if zero else draw(3, 4).astype(np.float64)
    ours = gradient_fed(Lamb(0.1, **options), {"w": w.astype(np.float32)})
    m, v = np.zeros((3, 4)), np.zeros((3, 4))
    for t in range(1, 11):
        g = draw(3, 4, seed=t)
        ours.run({"g_w": g})
        w, m, v = lamb_step(w, g, m, v, t, rate=0.1, decay=decay, adapt=adapt)
    np.testing.assert_allclose(ours.scope["w"], w, rtol=1e-4, atol=1e-6)


def test_momentum_rescales_before_it_regularises():
    w, g = draw(4), draw(4, seed=1)
    ours = gradient_fed(Momentum(0.1, 0.9, weight_decay=0.5, rescale_grad=0.25), {"w": w})
    ours.run({"g_w": g})
    np.testing.assert_allclose(ours.scope["w"], w - 0.1 * (0.25 * g + 0.5 * w), rtol=1e-6)


@pytest.mark.parametrize(
    ("own", "of_all", "term"),
    [
        (None, L1Decay(0.2), lambda w: 0.2 * np.sign(w)),
        (None, 0.2, lambda w: 0.2 * w),
        (L1Decay(0.3), 0.2, lambda w: 0.3 * np.sign(w)),
        (L2Decay(0.0), 0.2, lambda w: 0.0 * w),
        (L2Decay(0.3), None, lambda w: 0.3 * w),
    ],
)
def test_a_parameters_regularizer_goes_before_the_optimizers(own, of_all, term):
    w, g = draw(4), draw(4, seed=1)
    ours = gradient_fed(SGD(0.1, weight_decay=of_all), {"w": w}, w={"regularizer": own})
    ours.run({"g_w": g})
    np.testing.assert_allclose(ours.scope["w"], w - 0.1 * (g + term(w)), rtol=1e-6)


def test_learning_rates_of_parameters_and_layers():
    a, b, g = draw(4), draw(4, seed=2), draw(4, seed=1)
    ours = gradient_fed(SGD(0.1), {"a": a, "b": b}, b={"learning_rate": 0.5})
    ours.run({"g_a": g, "g_b": g})
    np.testing.assert_allclose(ours.scope["a"], a - 0.1 * g, rtol=1e-6)
    np.testing.assert_allclose(ours.scope["b"], b - 0.05 * g, rtol=1e-6)
    ratio, plain = (AdamW(0.1, lr_ratio=f) for f in (lambda p: 0.5 if p.name == "b" else 1.0, None))
    ours, same = gradient_fed(ratio, {"a": a, "b": b}), gradient_fed(plain, {"b": b}, b={"learning_rate": 0.5})
    ours.run({"g_a": g, "g_b": g})
    same.run({"g_b": g})
    np.testing.assert_array_equal(ours.scope["b"], same.scope["b"])
    assert np.abs(ours.scope["b"] - b).max() < 0.6 * np.abs(ours.scope["a"] - a).max()


def test_adamw_decays_what_it_is_told_to():
    w, zero = draw(4), np.zeros(4, np.float32)
    ours = gradient_fed(AdamW(0.1, weight_decay=0.5, apply_decay_param_fun="a".__eq__), {"a": w, "b": w})
    ours.run({"g_a": zero, "g_b": zero})
    np.testing.assert_allclose(ours.scope["a"], w * (1 - 0.1 * 0.5), rtol=1e-6)
    np.testing.assert_array_equal(ours.scope["b"], w)


# Names and state.


def test_state_is_named_as_paddle_names_it_and_starts_as_it_should():
    ours = gradient_fed(Adam(0.25, 0.8, 0.9), {"w": draw(3, 2)})
    assert set(ours.scope) == {
        "w",
        "learning_rate_0",
        "w_moment1_0",
        "w_moment2_0",
        "w_beta1_pow_acc_0",
        "w_beta2_pow_acc_0",
    }
    assert set(ours.main.updates) == set(ours.scope) - {"learning_rate_0"}
    assert ours.scope["learning_rate_0"] == np.float32(0.25)
    assert ours.scope["w_moment1_0"].shape == (3, 2)
    assert not ours.scope["w_moment2_0"].any()
    ours.run({"g_w": draw(3, 2)})
    np.testing.assert_allclose(ours.scope["w_beta1_pow_acc_0"], 0.8**2, rtol=1e-6)
    np.testing.assert_allclose(ours.scope["w_beta2_pow_acc_0"], 0.9**2, rtol=1e-6)
    assert {role_of(node) for node in ours.main.model.graph} == {"optimize"}
    assert all(p.kind == "state" for name, p in ours.main.persistables.items() if name != "w")


def test_the_largest_average_is_kept_under_paddles_name():
    ours = gradient_fed(Adam(0.1, beta2=0.5, amsgrad=True), {"w": draw(3)})
    for size in (2.0, 0.1):
        ours.run({"g_w": np.full(3, size, np.float32)})
    np.testing.assert_allclose(ours.scope["w_moment2_max_0"], 2.0, rtol=1e-6)
    assert (ours.scope["w_moment2_0"] < 1.1).all()


def test_set_lr_reaches_the_scope():
    optimizer = SGD(0.1)
    w, g = draw(4), draw(4, seed=1)
    ours = gradient_fed(optimizer, {"w": w})
    optimizer.set_lr(0.5, ours.scope)
    assert optimizer.get_lr() == 0.5
    ours.run({"g_w": g})
    np.testing.assert_allclose(ours.scope["w"], w - 0.5 * g, rtol=1e-6)


def test_minimize_trains_only_what_it_is_given():
    main, startup = Program(), Program()
    with program_guard(main, startup):
        x = data("x", [1, 1])
        for name in ("a", "b"):
            create_persistable(Persistable(name, "parameter"), (1, 1), 1.0)
        loss = x @ main.var("a") @ main.var("b")
        _, pairs = Momentum(0.1, parameters=["b"]).minimize(loss, startup)
    assert [p.name for p, _ in pairs] == ["b"]
    assert set(main.updates) == {"b", "b_velocity_0"}


def test_two_optimizers_keep_apart():
    """Learning rates and accumulators of two programs with one startup program are two."""
    main, startup = Program(), Program()
    other = Program()
    for program, rate in ((main, 0.1), (other, 0.2)):
        with program_guard(program, startup):
            create_persistable(Persistable("w", "parameter"), (2,), 1.0)
            Momentum(rate).apply_gradients([(program.var("w"), data("g", [2]))])
    assert "w_velocity_0" in main.persistables
    assert "w_velocity_1" in other.persistables
    assert sum("learning_rate" in name for name in startup.updates) == 2


def test_a_name_that_the_program_uses_already_is_left_alone():
    main, startup = Program(), Program()
    with program_guard(main, startup):
        create_persistable(Persistable("w", "parameter"), (2,), 1.0)
        data("w_velocity_0", [2])
        Momentum(0.1).apply_gradients([(main.var("w"), data("g", [2]))])
    assert set(main.updates) == {"w", "w_velocity_1"}


# Low parameters.


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ALL)
def test_masters_are_updated_unrounded_and_the_parameters_from_them(kind, dtype):
    w = draw(6)
    optimizer = kind(0.01)
    optimizer.multi_precision = True  # as decorate sets it; not every signature has it
    low = gradient_fed(optimizer, {"w": w}, dtype=dtype)
    high = gradient_fed(kind(0.01), {"w": w})
    np.testing.assert_array_equal(low.scope["w_fp32_master_0"], w)
    for step in range(5):
        g = draw(6, seed=step).astype(low.scope["w"].dtype)
        low.run({"g_w": g})
        high.run({"g_w": g.astype(np.float32)})
    master = low.scope["w_fp32_master_0"]
    np.testing.assert_allclose(master, high.scope["w"], rtol=1e-6)
    np.testing.assert_array_equal(low.scope["w"], master.astype(low.scope["w"].dtype))
    others = {name for name in low.scope if name not in {"w", "w_fp32_master_0", "learning_rate_0"}}
    assert all(name.startswith("w_fp32_master_0_") and low.scope[name].dtype == np.float32 for name in others)
    assert len(others) == {SGD: 0, Momentum: 1, Adamax: 3}.get(kind, 4)


def test_small_updates_stall_without_masters(caplog):
    w, g = np.ones(4, np.float32), np.ones(4, np.float16)
    with caplog.at_level(logging.WARNING):
        without = gradient_fed(SGD(1e-4), {"w": w}, dtype=FLOAT16)
    assert "accumulating in float16 for 'w'" in caplog.text
    caplog.clear()
    masters = SGD(1e-4, multi_precision=True)
    with caplog.at_level(logging.WARNING):
        held = gradient_fed(masters, {"w": w}, dtype=FLOAT16)
    assert not caplog.text
    assert masters.master_weights == {"w": "w_fp32_master_0"}
    for _ in range(20):
        without.run({"g_w": g})
        held.run({"g_w": g})
    assert set(without.main.updates) == {"w"}
    np.testing.assert_array_equal(without.scope["w"], w.astype(np.float16))
    np.testing.assert_allclose(held.scope["w_fp32_master_0"], 1 - 20e-4, rtol=1e-6)
    assert (held.scope["w"] < 1).all()


def test_programs_that_train_one_parameter_share_its_master():
    startup, programs = Program(), (Program(), Program())
    with program_guard(Program(), startup):
        create_persistable(Persistable("w", "parameter"), (2,), 1.0)
    starts = []
    for program in programs:
        with program_guard(program, startup):
            program.add_persistable(Persistable("w", "parameter"), FLOAT16, (2,))
            SGD(0.1, multi_precision=True).apply_gradients([(program.var("w"), data("g", [2], "float16"))])
        starts.append((startup.updates["w_fp32_master_0"], sum(n.op_type == "Cast" for n in startup.model.graph)))
    assert starts[0] == starts[1]
    assert all("w_fp32_master_0" in program.updates for program in programs)


def test_float32_parameters_have_no_master():
    ours = gradient_fed(Adam(multi_precision=True), {"w": draw(2)})
    assert "Cast" not in {node.op_type for node in ours.main.model.graph}
    assert not [name for name in ours.scope if "master" in name]


# Steps whose gradients are not finite.


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, FLOAT16], ids=["float32", "masters"])
@pytest.mark.parametrize("kind", ADAPTIVE)
def test_a_bad_step_leaves_everything_as_it_was(kind, dtype):
    schedule = lr.ExponentialDecay(0.1, 0.5, steps_per_epoch=1)
    ours = gradient_fed(kind(schedule, multi_precision=True), {"w": draw(5)}, dtype=dtype, guard=True)
    clean = gradient_fed(kind(schedule, multi_precision=True), {"w": draw(5)}, dtype=dtype)
    kind_of = ours.scope["w"].dtype
    for step in range(6):
        g = draw(5, seed=step).astype(kind_of)
        if step in {0, 3, 4}:
            before = {name: ours.scope[name] for name in ours.scope}
            g[1] = np.inf
            ours.run({"g_w": g, "bad": np.array(True)})
            for name, value in before.items():
                np.testing.assert_array_equal(ours.scope[name], value, err_msg=name)
        else:
            ours.run({"g_w": g, "bad": np.array(False)})
            clean.run({"g_w": g})
    assert ours.state("@lr_step@_0") == 3
    for name in clean.scope:
        np.testing.assert_array_equal(ours.scope[name], clean.scope[name], err_msg=name)


@pytest.mark.parametrize("shape", [[], [1]])
def test_a_flag_of_one_element_changes_no_shape(shape):
    """The powers of beta are scalars, and stay so."""
    main, startup = Program(), Program()
    with program_guard(main, startup):
        create_persistable(Persistable("w", "parameter"), (2,), 1.0)
        adam = Adam(0.1)
        adam.found_inf = data("bad", shape, "bool").value
        adam.apply_gradients([(main.var("w"), data("g", [2]))])
    assert ("Reshape" in {node.op_type for node in main.model.graph}) is (shape == [1])
    ours = started(main, startup)
    before = {name: np.shape(value) for name, value in ours.scope.items()}
    ours.run({"g": draw(2), "bad": np.zeros(shape, bool)})
    assert {name: np.shape(value) for name, value in ours.scope.items()} == before


def test_momentum_still_moves_in_a_bad_step():
    """It sees zero gradients, and still applies momentum and weight decay."""
    assert not Momentum.skips_on_overflow
    assert not SGD.skips_on_overflow
    assert all(kind.skips_on_overflow for kind in ADAPTIVE)
    w, g = draw(3), draw(3, seed=1)
    ours = gradient_fed(Momentum(0.1, 0.5, weight_decay=0.1), {"w": w}, guard=True)
    assert "bad" not in {str(v.name) for node in ours.main.model.graph for v in node.inputs if v is not None}
    velocity = g + 0.1 * w
    after = w - 0.1 * velocity
    ours.run({"g_w": g, "bad": np.array(False)})
    ours.run({"g_w": np.zeros(3, np.float32), "bad": np.array(True)})
    velocity = 0.5 * velocity + 0.1 * after
    np.testing.assert_allclose(ours.scope["w"], after - 0.1 * velocity, rtol=1e-5)


@pytest.mark.parametrize(
    ("decay", "own", "method", "coefficient"),
    [
        (L2Decay(0.5), None, "l2_decay", 0.5),
        (0.1, None, "l2_decay", 0.1),
        (None, None, "", 0.0),
        (L1Decay(0.5), None, "", 0.0),
        (0.5, L2Decay(0.1), "l2_decay", 0.1),
        (0.5, L1Decay(0.1), "", 0.0),
    ],
)
def test_the_operator_of_momentum_says_what_decay_it_has_in_it(decay, own, method, coefficient):
    ours = gradient_fed(Momentum(0.1, weight_decay=decay), {"w": np.ones(3, np.float32)}, w={"regularizer": own})
    [operator] = [each for each in ours.main.global_block().ops if each.type == "momentum"]
    assert operator.attr("regularization_method") == method
    assert np.float32(operator.attr("regularization_coeff")) == np.float32(coefficient)


# Refusals.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Adam(beta1=1.0), "beta1"),
        (lambda: Lamb(beta2=-0.1), "beta2"),
        (lambda: Adam(epsilon=-1.0), "epsilon"),
        (lambda: SGD("fast"), "learning_rate"),
        (lambda: SGD(parameters="w"), "must be a list"),
        (lambda: SGD(parameters=[{"params": []}]), "ParamAttr"),
        (lambda: SGD(weight_decay="l2"), "weight_decay"),
        (lambda: AdamW(weight_decay=L2Decay(0.1)), "weight_decay"),
        (lambda: SGD(grad_clip=1.0), "grad_clip"),
    ],
)
def test_arguments_without_a_meaning_are_refused(make, words):
    with pytest.raises(OptionError, match=words):
        make()


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_a_lazy_mode_has_no_effect_and_the_log_says_so(kind, caplog):
    with caplog.at_level("WARNING"):
        kind(lazy_mode=True)
    assert f"{kind.__name__}: lazy_mode=True has no effect" in caplog.text


def test_applying_is_refused_where_it_cannot_work():
    main, startup = Program(), Program()
    with program_guard(main, startup):
        main.add_persistable(Persistable("low", "parameter"), FLOAT16, (2,))
        main.add_persistable(Persistable("wide", "parameter"), ir.DataType.DOUBLE, (2,))
        create_persistable(Persistable("w", "parameter"), (2,), 1.0)
        g = data("g", [2])
        with pytest.raises(InputError, match="initial value"):
            SGD(multi_precision=True).apply_gradients([(main.var("low"), g)])
        with pytest.raises(InputError, match="'wide' is float64"):
            SGD().apply_gradients([(main.var("wide"), g)])
        with pytest.raises(InputError, match="no gradients"):
            SGD().apply_gradients([])
        SGD().apply_gradients([(main.var("w"), g)])
        with pytest.raises(InputError, match="updated by this program already"):
            SGD().apply_gradients([(main.var("w"), g)])
    with pytest.raises(InputError, match="set_lr"):
        SGD(lr.NoamDecay(4, 4)).set_lr(0.1)


@pytest.mark.parametrize("epsilon", [1e-8, 0.0])
@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_a_rate_of_0_changes_no_weight(kind, epsilon):
    """Adam divides by what the rate is part of; a gradient and a weight of 0 are the hardest."""
    weights = np.array([0.0, 1.0, -2.0, 1e-30], np.float32)
    trainer = gradient_fed(kind(0.0, epsilon=epsilon), {"w": weights})
    for gradient in ([0.0, 1.0, 0.0, 1e-3], [1.0, 0.0, 0.0, 1e20]):
        trainer.run({"g_w": np.array(gradient, np.float32)})
        np.testing.assert_array_equal(trainer.scope["w"], weights)
