"""`diagnose_training` names the guilty parameter or layer: faults are planted, and it has to name their place."""

import json
import math

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.amp.side_by_side import first_bad, relative_error
from amp_transpiler.paddle.static import training

fc = paddle.static.nn.fc
diagnose = paddle.amp.debugging.diagnose_training


def perceptron(x):
    return fc(F.relu(fc(F.relu(fc(x, 16)), 16)), 1)


def tiny(x):
    return perceptron(x) * 1e-5


def loses_epsilon(x):
    """In float16 the epsilon is zero, and the quotient infinite."""
    hidden = fc(x, 16)
    return fc(hidden + hidden / (paddle.abs(hidden - hidden) + 1e-8) * 1e-8, 1)


def grows(x):
    """A residual stream in which the weights of the second branch are learned much too fast."""
    stream = fc(x, 16)
    for rate in (1.0, 2000.0, 1.0):
        stream = stream + fc(F.relu(stream), 16, weight_attr=paddle.ParamAttr(learning_rate=rate), bias_attr=False)
    return -stream


class Net:
    def __init__(self, body, level="O2", scale=2.0**10, optimizer=None, **options):
        self.main, startup = paddle.static.Program(), paddle.static.Program()
        self.main.random_seed = startup.random_seed = 5
        with paddle.static.program_guard(self.main, startup), paddle.utils.unique_name.guard():
            x, y = paddle.static.data("x", [None, 16]), paddle.static.data("y", [None, 1])
            result = body(x)
            self.loss = paddle.mean(result) if body is grows else F.mse_loss(result, y)
            optimizer = paddle.optimizer.SGD(0.01) if optimizer is None else optimizer()
            if level != "O0":
                scaling = {"init_loss_scaling": scale, **options}
                optimizer = paddle.static.amp.decorate(optimizer, level=level, **scaling)
            optimizer.minimize(self.loss)
        self.scope, self.executor = paddle.static.Scope(), paddle.static.Executor(paddle.CPUPlace())
        self.executor.run(startup, scope=self.scope)


def feeds(count=3):
    random = np.random.default_rng(0)
    return [
        {"x": random.normal(size=(8, 16)).astype("float32"), "y": random.normal(size=(8, 1)).astype("float32")}
        for _ in range(count)
    ]


def diagnosed(body, *, reference=True, steps=3, loss_scales=(1.0, 2.0**8, 2.0**15), **options):
    net = Net(body, **options)
    other = Net(body, "O0", optimizer=options.get("optimizer")).main if reference else None
    return diagnose(
        net.main, feeds(steps), reference=other, scope=net.scope, executor=net.executor, loss_scales=loss_scales
    )


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"level": "O1"},
        {"dtype": "bfloat16", "scale": 1.0},
        {"level": "O0"},
        {"optimizer": lambda: paddle.optimizer.Adam(0.001)},
    ],
)
def test_a_sound_training_has_no_fault(reference, options):
    diagnosis = diagnosed(perceptron, reference=reference, **options)
    assert (diagnosis.faults, diagnosis.guilty, str(diagnosis)) == ((), None, "3 steps: no fault")
    assert [row.step for row in diagnosis.losses] == [1, 2, 3]
    scaled = "dtype" not in options and options.get("level") != "O0"
    assert {row.loss_scale for row in diagnosis.gradients} == ({1.0, 2.0**8, 2.0**10, 2.0**15} if scaled else {None})
    assert len(diagnosis.gradients) == 6 * (4 if scaled else 1)
    assert all((row.error is not None) is reference for row in diagnosis.tensors)


@pytest.mark.parametrize("reference", [True, False])
def test_a_loss_scale_that_is_too_large(reference):
    diagnosis = diagnosed(perceptron, reference=reference, scale=2.0**40)
    assert (diagnosis.faults[0].kind, diagnosis.guilty) == ("overflow", "fc_2.b_0")
    assert "at the loss scale 2.74878e+11: 1 of 1 numbers are not finite, in each step; at 32768 all are finite" in str(
        diagnosis
    )
    assert "test_training_diagnosis.py:" in str(diagnosis)
    assert all(row.overflowed for row in diagnosis.losses)


def test_a_scale_that_comes_down_in_time_is_no_fault():
    diagnosis = diagnosed(perceptron, scale=2.0**17, steps=6)
    assert [row.overflowed for row in diagnosis.losses][::5] == [True, False]
    assert not diagnosis.faults


@pytest.mark.parametrize("reference", [True, False])
def test_gradients_that_vanish(reference):
    diagnosis = diagnosed(tiny, reference=reference, scale=1.0)
    assert diagnosis.faults[0].kind == "underflow"
    rows = {row.loss_scale: row for row in diagnosis.gradients if row.parameter == diagnosis.guilty}
    assert rows[1.0].vanished_share == max(row.vanished_share for row in diagnosis.gradients)
    assert rows[1.0].vanished_share > 0.05 > rows[256.0].vanished_share
    assert f"'{diagnosis.guilty}'" in str(diagnosis)
    assert "vanishes at the loss scale 1: " in str(diagnosis)


def test_shares_are_those_of_numpy():
    """One layer: its gradient is a product that rounds to float16 twice."""
    scales = [2.0**-4, 1.0, 2.0**6, 2.0**10, 2.0**15]
    diagnosis = diagnosed(lambda x: fc(x, 1, bias_attr=False) * 1e-6, steps=1, loss_scales=scales)
    net, [feed] = Net(lambda x: fc(x, 1, bias_attr=False) * 1e-6), feeds(1)
    x, w = feed["x"].astype(np.float16).astype(np.float32), np.array(net.scope["fc_0.w_0"], np.float32)
    for scale in scales:
        with np.errstate(over="ignore"):
            upper = (2 / 8 * scale * (x @ w * 1e-6 - feed["y"])).astype(np.float16)
            lower = (upper.astype(np.float32) * np.float32(1e-6)).astype(np.float16)
            gradient = (x.T @ lower.astype(np.float32)).astype(np.float16)
        [row] = [row for row in diagnosis.gradients if row.loss_scale == scale]
        assert row.numel == 16
        assert row.zero_share == pytest.approx((gradient == 0).mean(), abs=0.13)
        assert row.non_finite_share == pytest.approx((~np.isfinite(gradient)).mean(), abs=0.13)
    shares = [row.zero_share for row in sorted(diagnosis.gradients, key=lambda row: row.loss_scale)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5


@pytest.mark.parametrize(("reference", "kind"), [(True, "departure"), (False, "not finite")])
def test_a_lost_epsilon(reference, kind):
    diagnosis = diagnosed(loses_epsilon, reference=reference)
    first = diagnosis.faults[0]
    maker = next(row for row in diagnosis.tensors if row.tensor == diagnosis.guilty)
    assert first.kind == kind
    assert maker.operator == ("elementwise_add" if reference else "elementwise_div")
    assert "step 1" in first.sentence or "first step" in first.sentence
    assert f"{maker.operator}, at tests/paddle/test_training_diagnosis.py:" in first.sentence


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_a_stream_that_grows(level):
    diagnosis = diagnosed(grows, reference=False, level=level, steps=6, scale=1.0)
    rows = {row.tensor: row for row in diagnosis.tensors}
    products = [row for row in rows.values() if row.operator == "matmul_v2"]
    assert max(products[:3], key=lambda row: row.growth) is products[2]
    growth = [fault for fault in diagnosis.faults if fault.kind == "growth"]
    assert [fault.name for fault in growth] == ([products[2].tensor] if level == "O2" else [])  # float32 has room
    for fault in growth:
        assert "times a step" in fault.sentence
        assert fault.sentence.endswith("it reads the parameter 'fc_2.w_0'")


def test_the_scope_stays_as_it_is():
    net = Net(perceptron)
    before = {name: np.array(net.scope[name]) for name in net.scope}
    diagnose(net.main, feeds(), reference=Net(perceptron, "O0").main, scope=net.scope, executor=net.executor)
    assert all(np.array_equal(before[name], net.scope[name]) for name in net.scope)
    assert set(net.scope) == set(before)


def test_the_reference_starts_from_master_weights_and_moments():
    def dropped(x):
        return fc(F.dropout(fc(x, 16), 0.5), 1)

    def adam():
        return paddle.optimizer.Adam(0.05)

    net, reference = Net(dropped, optimizer=adam), Net(dropped, "O0", optimizer=adam)
    for feed in feeds(5):
        net.executor.run(net.main, feed, [], scope=net.scope)
    diagnosis = diagnose(
        net.main, feeds(), reference=reference.main, scope=net.scope, executor=net.executor, loss_scales=[1.0]
    )
    assert not diagnosis.faults
    for row in diagnosis.losses:
        assert row.loss == pytest.approx(row.reference_loss, rel=5e-3)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"feeds": []}, InputError, "there is no feed"),
        ({"loss_scales": [0.0]}, OptionError, "loss_scales must be positive"),
        ({"loss_scales": [math.inf]}, OptionError, "loss_scales must be positive"),
        ({"tolerance": -1.0}, OptionError, "tolerance must be positive"),
        ({"loss": "nothing"}, InputError, "there is no variable 'nothing'"),
        ({"reference": lambda: Net(lambda x: fc(x, 1), "O0").main}, InputError, "has no gradient of 'fc_1.w_0'"),
        (
            {"reference": lambda: Net(lambda x: fc(perceptron(x), 1), "O0").main},
            InputError,
            "'fc_3.w_0' of the reference",
        ),
        ({"program": lambda net: net.main.clone(for_test=True)}, InputError, "trains nothing"),
        ({"program": lambda net: unnamed(net)}, InputError, "names no loss"),
    ],
)
def test_what_cannot_be_diagnosed(change, error, message):
    net = Net(perceptron)
    program = change.pop("program", lambda net: net.main)(net)
    reference = change.pop("reference", lambda: None)()
    batches = change.pop("feeds", feeds())
    with pytest.raises(error, match=message):
        diagnose(program, batches, reference=reference, scope=net.scope, executor=net.executor, **change)


def unnamed(net):
    program = net.main.clone()
    program.outputs.clear()
    return program


@pytest.mark.parametrize(
    ("low", "exact", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([3.0, 4.0], [0.0, 0.0], math.inf),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([3.0, 0.0], [3.0, 4.0], 0.8),
        ([np.inf, 1.0], [1.0, 1.0], math.inf),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([1.0], [1.0, 1.0], math.inf),
    ],
)
def test_relative_differences(low, exact, error):
    assert relative_error(np.array(low), np.array(exact)) == pytest.approx(error)


def test_the_first_bad_value_is_looked_for_through_unknown_ones():
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        a = F.relu(paddle.static.data("x", [2]))
        b = paddle.exp(a)
        c = paddle.log(b)
        d = paddle.abs(a)
        e = c + d
    names = {"a": a.name, "c": c.name, "d": d.name, "e": e.name}  # b is not known

    def problems_of(*bad):
        verdicts = {name: key in bad for key, name in names.items()}
        return first_bad(program, [e.name], verdicts)

    assert problems_of() == []
    assert problems_of("e") == [e.name]
    assert problems_of("a", "c", "e") == [a.name]
    assert problems_of("c", "d", "e") == [c.name, d.name]
    assert problems_of("a", "c") == [a.name]  # the end is looked through as well


# ---- TrainingLog ----


def trained(every, tmp_path, **options):
    net = Net(perceptron, **options)
    log = net.executor.train(
        net.main, feeds(5), 1, scope=net.scope, statistics_every=every, log_file=tmp_path / f"{every}.jsonl"
    )
    return net, log, [json.loads(line) for line in (tmp_path / f"{every}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("options", [{}, {"level": "O1"}, {"level": "O0"}, {"scale": 2.0**40}])
def test_a_training_records_statistics(options, tmp_path):
    net, log, lines = trained(2, tmp_path, **options)
    plain, plain_log, plain_lines = trained(None, tmp_path, **options)
    assert [statistics.step for statistics in log.statistics] == [2, 4]
    assert not plain_log.statistics
    assert ["statistics" in line for line in lines] == [False, True, False, True, False]
    assert not any("statistics" in line for line in plain_lines)
    assert [step.loss for step in log.steps] == [step.loss for step in plain_log.steps]
    assert all(np.array_equal(net.scope[name], plain.scope[name]) for name in plain.scope)


@pytest.mark.parametrize("options", [{}, {"level": "O0"}, {"scale": 2.0**40}, {"scale": 1.0}])
def test_statistics_are_those_of_what_is_fetched(options, tmp_path):
    """The second step of a training, fetched whole, is the oracle."""
    log = trained(2, tmp_path, **options)[1]
    net, (first, second, *_) = Net(perceptron, **options), feeds(5)
    net.executor.run(net.main, first, [], scope=net.scope)
    scale = next((float(net.scope[name].item()) for name in net.scope if name.startswith("loss_scaling")), None)
    statistics = log.statistics[0]
    assert statistics.loss_scale == scale
    names = [f"{row.name}@GRAD" for row in statistics.gradients] + [row.name for row in statistics.tensors]
    arrays = net.executor.run(net.main, second, names, scope=net.scope)
    assert [row.name for row in statistics.gradients] == [f"fc_{i}.{part}_0" for i in range(3) for part in "wb"]
    for row, array in zip([*statistics.gradients, *statistics.tensors], arrays, strict=True):
        wide = array.astype(np.float64)
        finite = np.abs(wide[np.isfinite(wide)])
        assert (row.numel, row.zeros, row.non_finite) == (wide.size, (wide == 0).sum(), (~np.isfinite(wide)).sum())
        assert row.largest == pytest.approx(finite.max(initial=0.0), rel=1e-3)
    text = str(statistics)
    assert text.startswith("step 2: ")
    assert ("gradients are not finite, nearest to the loss 'fc_2.b_0'" in text) is (scale == 2.0**39)
    assert "the largest number of the forward pass is" in text


def test_a_tensor_checker_does_not_see_the_steps_that_are_looked_at(tmp_path, capsys):
    """Only the steps of the training are counted, so that it checks the second one."""
    debugging = paddle.amp.debugging
    config = debugging.TensorCheckerConfig(True, debugging.DebugMode.CHECK_ALL, debug_step=[1, 2])
    debugging.enable_tensor_checker(config)
    seen = []
    try:
        net = Net(perceptron)
        diagnose(net.main, feeds(), scope=net.scope, executor=net.executor)
        assert not capsys.readouterr().out
        net.executor.train(
            net.main,
            feeds(3),
            scope=net.scope,
            statistics_every=1,
            callbacks=[lambda _: seen.append(capsys.readouterr().out.count("tensor=MatMul_out0,"))],
        )
    finally:
        debugging.disable_tensor_checker()
    assert seen == [0, 1, 0]


@pytest.mark.parametrize("every", [0, -1])
def test_statistics_need_a_number_of_steps(every, tmp_path):
    with pytest.raises(OptionError, match="statistics_every must be 1 or more"):
        trained(every, tmp_path)


def test_statistics_are_of_one_process_and_of_gradients(tmp_path, monkeypatch):
    class Several(training.Ranks):
        """More than one process."""

    monkeypatch.setattr(paddle.static.Executor, "ranks", lambda _: Several())
    with pytest.raises(OptionError, match="statistics_every looks at steps of a single process"):
        trained(1, tmp_path)
    with pytest.raises(OptionError, match="diagnose_training runs steps in a single process"):
        diagnosed(perceptron)
    monkeypatch.undo()
    monkeypatch.setattr("amp_transpiler.paddle.static.step_statistics.gradients_of", lambda _: {})
    with pytest.raises(InputError, match="statistics_every needs gradients"):
        trained(1, tmp_path)
