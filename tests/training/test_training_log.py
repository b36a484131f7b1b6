"""`TrainingLog`: loss, scale, skipped steps and throughput, from real steps with real overflow."""

import builtins
import itertools
import json

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.errors import EnvironmentProblem, InputError, OutputError
from amp_transpiler.paddle.training_log import TrainingLog, TrainingStep

PNG = b"\x89PNG\r\n\x1a\n"


def ticking(*seconds):
    """A clock that starts at 0 and shows `seconds` later at each look, the last for ever."""
    steps = itertools.chain([0.0], seconds, itertools.repeat(seconds[-1]))
    return itertools.accumulate(steps).__next__


def logged(*losses, **kwargs):
    log = TrainingLog(clock=ticking(1.0), **kwargs)
    for loss in losses:
        log.record(loss, samples=4)
    return log


# ---- plain numbers ----


def test_a_run_without_loss_scaling_fetches_nothing_more():
    log = logged(2.0, np.float32(1.0), np.array([0.5], np.float32))
    assert log.fetch_list == []
    assert [step.loss for step in log.steps] == [2.0, 1.0, 0.5]
    assert [step.step for step in log.steps] == [1, 2, 3]
    assert {step.loss_scale for step in log.steps} == {None}
    assert log.skipped == 0


def test_throughput_is_samples_over_the_time_since_the_step_before():
    log = TrainingLog(clock=ticking(2.0, 0.5, 0.0))
    rates = [log.record(1.0, samples=8).samples_per_second for _ in range(3)]
    assert rates == [4.0, 16.0, float("inf")]


def test_every_callback_sees_every_step_in_order():
    seen = []
    log = logged(callbacks=[lambda step: seen.append(("first", step.loss))])
    log.callbacks.append(lambda step: seen.append(("second", step.loss)))
    log.record(3.0)
    log.record(2.0)
    assert seen == [("first", 3.0), ("second", 3.0), ("first", 2.0), ("second", 2.0)]


def test_what_a_callback_raises_stops_the_training():
    def stop(step):
        raise StopIteration(step.step)

    with pytest.raises(StopIteration, match="1"):
        logged(1.0, callbacks=[stop])


def test_a_resumed_run_counts_on():
    log = logged(1.0, start=40, skipped=3)
    assert (log.steps[0].step, log.skipped) == (41, 3)


def test_a_file_gets_a_line_of_json_a_step(tmp_path, capsys):
    path = tmp_path / "runs" / "log.jsonl"
    first = logged(2.0, 1.0, log_file=path, progress=True)
    second = logged(0.5, start=2, log_file=path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [*first.as_rows(), *second.as_rows()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert capsys.readouterr().err.count("\r") == 2
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="folder cannot be made"):
        TrainingLog(log_file=tmp_path / "file" / "log.jsonl")


def test_rows_are_dictionaries_that_json_takes():
    rows = json.loads(json.dumps(logged(1.5).as_rows()))
    expected = TrainingStep(step=1, loss=1.5, loss_scale=None, overflowed=False, skipped=0, samples_per_second=4.0)
    assert rows == [{name: getattr(expected, name) for name in TrainingStep.__dataclass_fields__}]


@pytest.mark.parametrize(
    ("loss", "fetched", "message"),
    [
        (np.zeros(3), (), r"the loss has shape \[3\], expected one number"),
        (1.0, (np.ones(1),), "fetched has 1 values, expected 0"),
    ],
)
def test_what_cannot_be_recorded_is_refused(loss, fetched, message):
    log = logged()
    with pytest.raises(InputError, match=message):
        log.record(loss, fetched)
    assert log.steps == []


@pytest.mark.parametrize(
    ("losses", "warnings"),
    [
        ([float("nan")] * 9 + [1.0] + [float("nan")] * 9, []),
        ([1.0] + [float("nan")] * 15, ["steps 2 to 11 taught nothing: the loss is not finite. "]),
        (([float("inf")] * 10 + [1.0]) * 2, ["steps 1 to 10 taught", "steps 12 to 21 taught"]),
    ],
)
def test_many_losses_in_a_row_that_are_not_finite_give_one_warning_with_a_remedy(losses, warnings, caplog):
    logged(*losses)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == len(warnings)
    for message, begin in zip(said, warnings, strict=True):
        assert message.startswith(begin)
        assert "FLAGS_check_nan_inf" in message
        assert "custom_black_list" in message


# ---- real steps ----


@pytest.fixture
def scaled():
    """A program whose gradient is x times the scale, pure float16: it overflows where x * scale > 65504."""
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup):
        x = static.data("x", [1, 1])
        loss = amp.nn.functional.mse_loss(static.nn.fc(x, 1), static.data("y", [1, 1]))
        decorated = amp.decorate(
            optimizer.Adam(1e-3), level="O2", init_loss_scaling=2.0**15, decr_every_n_nan_or_inf=1, decr_ratio=0.5
        )
        decorated.minimize(loss)
    exe = static.Executor(amp.CPUPlace())
    exe.run(startup, scope=scope)
    decorated.amp_init(amp.CPUPlace(), scope)

    def step(log, x, y):
        feed = {"x": np.array([[x]], np.float32), "y": np.array([[y]], np.float32)}
        loss_value, *rest = exe.run(main, feed, [loss, *log.fetch_list], scope=scope)
        return log.record(loss_value, rest)

    return decorated, step


def test_a_step_that_overflows_is_seen_where_it_happens(scaled):
    decorated, step = scaled
    log = TrainingLog(decorated)
    readings = [step(log, x, y) for x, y in ((0.01, 0.0), (100.0, 50.0), (0.01, 0.0))]
    assert [row.overflowed for row in readings] == [False, True, False]
    assert [row.skipped for row in readings] == [0, 1, 1]
    assert [row.loss_scale for row in readings] == [2.0**15, 2.0**14, 2.0**14]
    assert log.skipped == 1


def test_gradients_that_overflow_at_every_scale_give_a_warning_with_a_remedy(scaled, caplog):
    decorated, _ = scaled
    log = TrainingLog(decorated)
    for number in range(30):
        log.record(1.0, (2.0 ** (15 - number // 2), True))
    assert "taught nothing" not in caplog.text  # the scale is above 1: it may yet find its place
    for _ in range(5):
        log.record(1.0, (1.0, True))
    assert caplog.text.count("steps 1 to 31 taught nothing: a gradient is not finite at a loss scale of 1. ") == 1
    assert caplog.text.count("taught nothing") == 1
    assert 'level="O1"' in caplog.text


def test_a_loss_that_is_infinite_at_every_scale_is_told_of_sooner(scaled, caplog):
    decorated, step = scaled
    log = TrainingLog(decorated)
    for _ in range(10):
        step(log, 1e9, 5e8)
    assert "steps 1 to 10 taught nothing: the loss is not finite at a loss scale of 32. " in caplog.text
    assert "FLAGS_check_nan_inf" in caplog.text


@pytest.mark.parametrize(("level", "dtype"), [("O0", "float16"), ("O1", "bfloat16")])
def test_a_decorated_run_that_scales_nothing_has_no_scale(level, dtype):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        loss = amp.nn.functional.mse_loss(static.nn.fc(static.data("x", [1, 1]), 1), static.data("y", [1, 1]))
        decorated = amp.decorate(optimizer.SGD(0.1), level=level, dtype=dtype)
        decorated.minimize(loss)
    assert TrainingLog(decorated).fetch_list == []


def test_a_log_of_an_optimizer_that_did_not_minimize_is_refused():
    with pytest.raises(RuntimeError, match="minimize"):
        TrainingLog(amp.decorate(optimizer.SGD(0.1)))


# ---- the picture ----


def test_the_loss_curve_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "made" / "loss.png"
    logged(3.0, 2.0, float("nan"), 1.0).plot(file, "a run")
    assert file.read_bytes().startswith(PNG)


def test_scale_and_skipped_steps_are_drawn_below_it(tmp_path, scaled):
    pytest.importorskip("matplotlib")
    decorated, step = scaled
    log = TrainingLog(decorated)
    step(log, 100.0, 50.0)
    log.plot(tmp_path / "scaled.svg", "a run")
    text = (tmp_path / "scaled.svg").read_text()
    plain = logged(1.0)
    plain.plot(tmp_path / "plain.svg")
    for label in ("loss scale", "skipped step"):
        assert f"<!-- {label} -->" in text
        assert label not in (tmp_path / "plain.svg").read_text()


def test_drawing_without_a_step_is_refused(tmp_path):
    with pytest.raises(InputError, match="no step was recorded"):
        TrainingLog().plot(tmp_path / "loss.png")


@pytest.mark.parametrize("name", ["loss.nonsense", "file/loss.png"])
def test_a_picture_that_cannot_be_written_is_an_error(tmp_path, name):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        logged(1.0).plot(tmp_path / name)


def test_without_matplotlib_the_error_names_the_extra(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(EnvironmentProblem, match=r"amp-transpiler\[plot\]"):
        logged(1.0).plot(tmp_path / "loss.png")
