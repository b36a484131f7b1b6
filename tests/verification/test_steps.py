"""The check of a training step over several steps: what it finds, what it excuses, and how it says so."""

import json
import math

import numpy as np
import pytest
from onnx import numpy_helper

import amp_transpiler as amp
from amp_transpiler.graph.training_step import State, TrainingStep
from amp_transpiler.report import StateWay, StepsComparison, as_html, as_json
from amp_transpiler.report.wording import training_words
from amp_transpiler.verification import steps as checked
from amp_transpiler.verification.made_up_states import with_made_up_states
from amp_transpiler.verification.rounding_noise import Nudge, changed_much
from foreign.library import by_hand
from foreign.training_info import with_training_info
from tests.support import array, chain


def transpiled(step, *, given=True, batches=3, **options):
    """Convert a step on some batches, with its states, or on made-up data."""
    samples = [{**step.start, **feed} for feed in step.data(batches)] if given else None
    return amp.transpile(step.model, inputs=samples, **{"level": "O2", **options})


def rounded_update(monkeypatch):
    """The fault that this check is for: nothing tells that the optimizer is one, so its nodes become low."""
    monkeypatch.setattr("amp_transpiler.precision.training.mark_optimizer", lambda model, step: 0)


# ---- what it finds ----


def test_an_ordinary_model_has_no_steps():
    report = amp.transpile(chain("Relu({})"), inputs={"x": array(2, 4)}, prefer="size")
    assert report.steps is None
    assert "training" not in report.verdict


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_good_conversion_ends_where_fp32_does(dtype):
    report = transpiled(by_hand("mlp", "adamw_clipped"), level="auto", dtype=dtype)
    assert report.steps.steps == 50
    assert set(report.steps.states) == {row.input for row in by_hand("mlp", "adamw_clipped").states}
    assert 0 < report.steps.worst.relative < 0.05
    assert report.steps.worst.way == pytest.approx(report.steps.worst.low_way, rel=0.05)
    assert not report.steps.failing
    assert report.verdict.startswith("verified: ")
    assert "; 50 training steps end within " in report.verdict
    assert report.steps.states["step"] == StateWay(
        name="step", role="counter", way=50.0, low_way=50.0, relative=0.0, allowed=0.05
    )


@pytest.mark.parametrize("level", ["auto", "O1", "O2"])
def test_a_rounded_update_fails_on_given_data(monkeypatch, level):
    rounded_update(monkeypatch)
    with pytest.raises(
        amp.CheckFailed, match=r"parameter '\w' (stops learning|goes another way): in 50 steps"
    ) as caught:
        transpiled(
            by_hand("linear", "sgd_input_rate", 1e-5), level=level, amp_lists=amp.AutoMixedPrecisionLists(["Sub"])
        )
    assert caught.value.report.verdict.startswith("failed: parameter ")
    assert "--dtype bfloat16" in str(caught.value)
    assert caught.value.report.steps.failing[0].relative > 0.5


def test_low_parameters_without_masters_stop():
    step = by_hand("linear", "sgd", 1e-5)
    report = transpiled(step, keep_io_types=False, master_weights=False)  # asked for, and so no failure
    assert "; over 50 training steps parameter 'b' stops learning" in report.verdict
    assert any("in 50 steps it moves by 3.41e-04 in float32, and by 0 here" in warning for warning in report.warnings)
    with_masters = transpiled(step, keep_io_types=False)
    assert with_masters.steps.worst.relative < 0.05


def test_on_made_up_data_a_fault_is_a_warning(monkeypatch):
    rounded_update(monkeypatch)
    report = transpiled(by_hand("linear", "sgd", 1e-5), given=False)
    assert any("judge it on real data (--inputs)" in warning for warning in report.warnings)
    assert "over 50 training steps parameter" in report.verdict
    assert report.steps.failing


@pytest.mark.slow
def test_small_gradients_in_float16_stop_and_scaling_helps():
    step = by_hand("mlp", "sgd", 1e4)
    (rows,) = [tensor for tensor in step.model.graph.initializer if numpy_helper.to_array(tensor).tolist() == 8.0]
    rows.CopyFrom(numpy_helper.from_array(np.float32(8e7), rows.name))  # by which the gradient of the loss is divided
    with pytest.raises(amp.CheckFailed, match=r"stops learning.*--loss-scaling or --dtype bfloat16"):
        transpiled(step)
    assert transpiled(step, loss_scaling=True).steps.failing == ()
    assert transpiled(step, dtype="bfloat16").steps.failing == ()


# ---- what it excuses, and what it cannot judge ----


def test_a_state_that_rounding_decides_in_fp32_too_is_not_judged():
    report = transpiled(by_hand("batch_norm", "adamw_clipped", 1e-3))
    assert report.steps.states["bias"].relative > 0.5
    assert report.steps.states["bias"].allowed == math.inf
    assert any(note.startswith("only rounding decides in float32 where") and "'bias'" in note for note in report.notes)
    assert "end within" in report.verdict
    assert report.steps.worst.relative < 0.05


def test_an_output_that_rounding_decides_is_not_judged_and_nothing_becomes_float32_for_it():
    report = transpiled(by_hand("batch_norm", "adamw_clipped", 1e-3), level="auto")
    assert not report.repaired
    assert report.low_nodes > 20
    assert report.verdict.startswith("plausible: within ")
    assert max(row.whole for row in report.outputs.values() if f"'{row.name}' (" not in report.verdict) < 0.01
    assert (
        "not judged: 'm_bias_new' (only rounding decides it), 'v_bias_new' (only rounding decides it)" in report.verdict
    )


@pytest.mark.slow
def test_initial_values_are_where_training_starts():
    step = by_hand("mlp", "adamw_clipped")
    report = amp.transpile(with_training_info(step), inputs=step.data(3), level="O2")
    assert report.steps.states.keys() == {row.input for row in step.states}
    assert 0 < report.steps.worst.relative < 0.05
    assert report.steps.states["a"].way == pytest.approx(transpiled(step).steps.states["a"].way)


@pytest.mark.parametrize(
    ("call", "size"),
    [("Relu({})", 2.0**-22), ("Cast<to=10>({})", 2.0**-10), ("Cast<to=16>({})", 2.0**-7)],
)
def test_a_nudge_reaches_the_models_own_format(call, size):
    model = amp.load(chain(call, "Cast<to=1>({})")).model
    nudge = Nudge.of(model)
    assert nudge.size == size
    rows = (
        State(input="w", output="v", role="parameter", reason=""),
        State(input="m", output="n", role="moment", reason=""),
    )
    sample = {"w": array(4), "m": array(4), "x": array(4), "ids": np.arange(4)}
    (nudged,) = nudge.applied([sample], TrainingStep(rows))
    for name in ("w", "x"):
        np.testing.assert_allclose(np.abs(nudged[name] / sample[name] - 1), size, rtol=0.5)
    assert nudged["m"] is sample["m"]
    assert nudged["ids"] is sample["ids"]


def test_what_changes_much():
    program_of = {
        "a": np.ones(3, np.float32),
        "b": np.ones(3, np.float32),
        "n": np.ones(3, np.int64),
        "s": np.zeros(2, np.float32),
    }
    other = program_of | {"b": np.full(3, 1.2, np.float32), "n": np.zeros(3, np.int64)}
    assert changed_much([program_of], [other], 0.1) == ["b"]
    assert changed_much([program_of], [other], 0.3) == []
    assert changed_much([program_of, program_of], [program_of, other], 0.1) == ["b"]
    assert changed_much([program_of], [program_of | {"s": np.ones(2, np.float32)}], 0.3) == ["s"]
    assert changed_much([program_of], [program_of | {"a": np.ones(2, np.float32)}], 0.1) == []


@pytest.mark.slow
def test_the_rounding_of_forward_and_backward_is_excused(monkeypatch):
    step = by_hand("mlp", "adamw_clipped", 1e-5)
    report = transpiled(step, dtype="bfloat16", batches=4)
    way = report.steps.states["a"]
    assert 0.05 < way.relative < way.allowed
    assert any("with an update in float32, takes these states more than 5%" in note for note in report.notes)
    monkeypatch.setattr(checked, "_AT_MOST", 0.0)
    with pytest.raises(amp.CheckFailed, match="parameter 'a' goes another way"):
        transpiled(step, dtype="bfloat16", batches=4)


def test_steps_that_diverge_in_fp32_are_not_judged():
    report = transpiled(by_hand("linear", "sgd", 1e4), level="auto")
    assert report.verdict.startswith("plausible: ")
    assert "; training not judged: float32 itself is not finite after 50 steps" in report.verdict
    assert report.steps.states == {}


def test_time_is_limited(monkeypatch):
    monkeypatch.setattr(checked, "_SECONDS", 0.0)
    report = transpiled(by_hand("linear", "sgd"))
    assert report.steps.steps == 1
    assert "the training step was run for 1 steps of 50, within 0 s" in report.notes


def test_memory_is_limited(monkeypatch):
    monkeypatch.setattr(checked, "available_memory", lambda: 10)
    report = transpiled(by_hand("linear", "sgd"))
    assert "training not judged: the states would need about 0.0 GB" in report.verdict


# ---- made-up states ----


def test_made_up_states_are_what_an_optimizer_starts_from():
    rows = {"p": "parameter", "m": "moment", "v": "statistic", "n": "counter", "kept": "counter"}
    step = TrainingStep(tuple(State(input=n, output=n + "_new", role=role, reason="") for n, role in rows.items()))
    sample = {name: np.full(2, -3, np.float32) for name in ("x", "p", "m", "v", "n")}

    def run(feeds):
        assert "kept" not in feeds
        return {"y": np.divide(1.0, feeds["n"], where=feeds["n"] != 0, out=np.full(2, np.inf))}

    states = with_made_up_states(sample, step, run)
    assert {name: value[0] for name, value in states.items()} == {"x": -3, "p": -3, "m": 0, "v": 3, "n": 1}
    assert with_made_up_states(sample, step, lambda feeds: {"y": np.zeros(1)})["n"][0] == 0
    assert with_made_up_states(sample, step, lambda feeds: {"y": np.full(1, np.nan)})["n"][0] == 0


def test_made_up_moments_do_not_make_everything_nan():
    report = transpiled(by_hand("mlp", "adamw_clipped"), given=False, level="auto")
    assert report.steps.states["a"].relative < 0.05
    assert report.verdict.startswith("plausible: ")


# ---- the record and its forms ----


def way(name, relative, allowed=0.05, **others):
    return StateWay(
        **{"name": name, "role": "moment", "way": 1.0, "low_way": 1.0, **others}, relative=relative, allowed=allowed
    )


def test_the_worst_state_is_one_that_fails():
    comparison = StepsComparison(3, {w.name: w for w in (way("a", 0.9, math.inf), way("b", 0.06), way("c", math.nan))})
    assert [w.name for w in comparison.failing] == ["c", "b"]
    assert comparison.worst.name == "c"
    assert StepsComparison(0).worst is None
    assert way("a", 0.0, low_way=0.4).stops
    assert not way("a", 0.0, low_way=0.6).stops


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        (StepsComparison(0, reason="no time"), "not judged: no time"),
        (StepsComparison(9, {"a": way("a", 0.01)}), "9 steps; furthest off is moment 'a': 1% of float32's way"),
        (
            StepsComparison(9, {"a": way("a", 2, math.inf), "b": way("b", 0.02)}),
            "9 steps; furthest off is moment 'b': 2%",
        ),
        (StepsComparison(9, {"a": way("a", 2, math.inf)}), "9 steps; only rounding decides where the states go"),
    ],
)
def test_a_line_of_the_table(comparison, words):
    assert training_words(comparison).startswith(words)


def test_json_and_page_show_every_state():
    report = transpiled(by_hand("linear", "momentum"))
    record = json.loads(as_json.dump(as_json.report_as_dict(report)))["steps"]
    assert list(record["states"]) == list(report.steps.states)
    assert record["worst"]["name"] == report.steps.worst.name
    page = as_html.page([(report, None)])
    section = page.partition("<h2>Training steps</h2>")[2].partition("</section>")[0]
    assert section.count("<td>moment</td>") == 2
    assert "Training steps" not in as_html.page([(amp.Report("m", "O1", "float16", "cuda"), None)])


@pytest.mark.parametrize(
    ("found", "best", "allowed"),
    [
        (way("m", 0.9), way("m", 0.04), 0.06),  # the best conversion keeps a moment's direction
        (way("m", 0.9), way("m", 0.3), 0.9),  # it does not: noise
        (way("m", 0.9, low_way=0.4), way("m", 0.3), 0.05),  # but the moment stopped
        (way("w", 0.9, role="parameter"), way("w", 0.3), 0.45),
        (way("w", 0.9, role="parameter"), way("w", 0.8), 0.5),
        (way("w", 0.9, role="parameter"), None, 0.05),
    ],
)
def test_a_state_may_be_as_far_off_as_could_be_expected(found, best, allowed):
    assert checked._allowed(found, best).allowed == pytest.approx(allowed)


@pytest.mark.parametrize(("low_way", "allowed"), [(1.2e-5, math.inf), (1e-3, 0.05)])
def test_a_state_that_stands_still_in_fp32_may_move_as_the_best_conversion_moves_it(low_way, allowed):
    best_of, best = (
        StateWay(name="b", role="parameter", way=0.0, low_way=moved, relative=math.inf, allowed=0.05)
        for moved in (low_way, 1e-5)
    )
    assert checked._allowed(best_of, best).allowed == allowed
