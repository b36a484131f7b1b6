"""The written file on a device: three runs of each session, judged against float32 and the emulation."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler import cli
from amp_transpiler.child_process.child import RuntimeCrash
from amp_transpiler.errors import CheckFailed, EnvironmentProblem, InputError, OptionError
from amp_transpiler.files.user_cache import FOLDER_VARIABLE
from amp_transpiler.report import OutputComparison
from amp_transpiler.runtime.feeds import reordered
from amp_transpiler.runtime.ort import ORT_ERRORS
from amp_transpiler.verification import device_check
from amp_transpiler.verification.device_check import FORMS, is_contradicted
from amp_transpiler.verification.run_samples import RUNS, for_runs
from tests.support import array, chain, parse
from tests.verification.pretended_device import NAME, pretend, stale_biases, with_fault

MODEL = parse("(float[2,4] x) => (float[2,4] y) { [m] y = MatMul (x, w) }", w=array(4, 4))
CONV = parse(
    "(float[1,3,8,8] x) => (float[1,4,8,8] y) { [c] h = Conv <pads = [1, 1, 1, 1]> (x, w, b) [r] y = Relu (h) }",
    w=array(4, 3, 3, 3),
    b=np.abs(array(4)) + 1,
)


CHAIN = chain(*["MatMul ({}, w)", "Tanh ({})"] * 4, w=array(4, 4, seed=1, scale=0.5))


def nothing(_, outputs):
    return outputs


def from_run(first, change):
    return lambda run, outputs: {name: change(value) for name, value in outputs.items()} if run >= first else outputs


def off_by(share):
    return lambda value: value * np.float32(1 + share)


@pytest.mark.parametrize("level", ["auto", "O2"])
def test_the_verdict_is_what_the_device_measured(monkeypatch, level):
    pretend(monkeypatch, with_fault(nothing))
    report = amp.transpile(MODEL, level=level, inputs={"x": array(2, 4)}, prefer="size")
    assert f"measured on {NAME}, ONNX Runtime" in report.verdict
    assert "(emulated: within" in report.verdict
    assert "not run on a GPU" not in report.verdict
    assert report.measured.sessions == FORMS
    assert [check for check in report.checks if NAME in check] == [f"{form} ({NAME}, {RUNS} runs)" for form in FORMS]
    assert not report.measured.contradictions


FAULTS = {
    "a kernel that is off by 5 %": from_run(1, off_by(0.05)),
    "an option that spoils the second run": from_run(2, lambda value: value + np.float32(3)),
    "an option that spoils the third run": from_run(3, off_by(0.5)),
    "infinities": from_run(2, lambda value: value * np.float32(np.inf)),
    "another shape": from_run(1, lambda value: value[:1]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_in_either_session(monkeypatch, fault, form, tmp_path):
    pretend(monkeypatch, with_fault(FAULTS[fault], form))
    with pytest.raises(
        CheckFailed, match=f"{form} on {NAME}: in run . of {RUNS} output 'y'.*--device-check no"
    ) as error:
        amp.transpile(MODEL, tmp_path / "out.onnx", inputs={"x": array(2, 4)}, prefer="size")
    assert error.value.report.verdict_word == "failed"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["cpu", "tensorrt"])
def test_a_fault_of_a_device_that_the_file_is_not_for_is_a_note(monkeypatch, target):
    pretend(monkeypatch, with_fault(FAULTS["a kernel that is off by 5 %"]))
    report = amp.transpile(MODEL, target=target, prefer="size")
    assert report.measured is None
    assert any(f"on {NAME}: in run 1" in note for note in report.notes)


def test_a_fault_of_the_source_is_its_own(monkeypatch):
    pretend(monkeypatch, with_fault(FAULTS["a kernel that is off by 5 %"]))
    monkeypatch.setattr(device_check, "_source_fails", lambda *_: True)
    report = amp.transpile(MODEL, prefer="size")
    assert any(note.startswith(f"fault of the source: amp.Session on {NAME}") for note in report.notes)


@pytest.mark.parametrize(("target", "fails"), [("cuda", True), ("any", True), ("tensorrt", False)])
def test_a_crash_on_a_device_fails_where_the_file_is_for_it(monkeypatch, target, fails):
    def crash(path, place, form):
        raise RuntimeCrash("SIGABRT")

    pretend(monkeypatch, crash)
    if fails:
        with pytest.raises(CheckFailed, match=rf"amp.Session on {NAME}: it fails: .*SIGABRT"):
            amp.transpile(MODEL, target=target, prefer="size")
    else:
        assert any("SIGABRT" in note for note in amp.transpile(MODEL, target=target, prefer="size").notes)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeCrash("SIGKILL"),
        ORT_ERRORS[0]("Non-zero status code: Failed to allocate memory for requested buffer of size 7000000000"),
        ORT_ERRORS[0]("CUDA failure 2: out of memory ; GPU=0"),
        ORT_ERRORS[0]("NOT_IMPLEMENTED : Could not find an implementation for Det(11)"),
        InputError("input 'x' cannot be passed"),
    ],
)
def test_what_is_no_fault_of_the_file_is_a_note(monkeypatch, error):
    def refuse(path, place, form):
        raise error

    pretend(monkeypatch, refuse)
    report = amp.transpile(MODEL, prefer="size")
    assert report.measured is None
    assert report.verdict.endswith("not run on a GPU)")
    assert [note for note in report.notes if note.startswith(f"not run on {NAME} in amp.Session: ")]


def test_a_reordered_sample_is_judged_only_where_the_emulation_ran(monkeypatch):
    def no_emulation(*_):
        raise RuntimeCrash("SIGABRT")

    pretend(monkeypatch, with_fault(FAULTS["an option that spoils the second run"]))
    monkeypatch.setattr(device_check, "first_states", no_emulation)
    assert "measured on" in amp.transpile(MODEL, inputs={"x": array(2, 4)}, prefer="size").verdict
    with pytest.raises(CheckFailed, match=f"in run 2 of {RUNS}"):
        amp.transpile(MODEL, inputs=[{"x": array(2, 4, seed=seed)} for seed in range(3)], prefer="size")


def test_where_no_limit_forbids_it_a_contradiction_is_a_warning(monkeypatch):
    pretend(monkeypatch, with_fault(FAULTS["a kernel that is off by 5 %"]))
    report = amp.transpile(MODEL, level="O2", inputs={"x": array(2, 4)})
    assert any(text.startswith(f"{NAME} contradicts the emulation: output 'y' differs") for text in report.warnings)
    assert report.verdict.startswith("compared: within 5")


def row(relative, **other):
    return OutputComparison("y", "float32", (2,), 0.1, relative, 1.0, **other)


@pytest.mark.parametrize(
    ("device", "emulated", "dtype", "contradicted"),
    [
        (row(0.018), row(0.01), "float16", False),  # as the first run on an H100 had it
        (row(0.0388), row(0.0127), "float16", True),  # basic-pitch there
        (row(0.0004), row(0.0), "float16", False),
        (row(0.0006), row(0.0), "float16", True),
        (row(0.003), row(0.0), "bfloat16", False),
        (row(1.0), row(0.0248), "bfloat16", True),  # hey_jarvis there
        (row(np.nan), row(0.01), "float16", True),
        (row(np.inf, nonfinite=1), row(0.0), "float16", True),
        (row(np.inf, nonfinite=1), row(np.inf, nonfinite=1), "float16", False),
        (row(np.inf, structure_differs=True), row(0.0), "float16", True),
    ],
)
def test_what_contradicts_the_emulation(device, emulated, dtype, contradicted):
    assert is_contradicted(device, {"y": emulated}, dtype) is contradicted


def test_without_an_emulation_nothing_is_contradicted():
    assert not is_contradicted(row(0.5), {}, "float16")


NETWORKS = ("resnet50", "vit_base", "pointwise")


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_the_fault_of_fused_biases_is_found(monkeypatch, tmp_path, name):
    pytest.importorskip("torch")
    subjects = pytest.importorskip("gpu.subjects")
    try:
        model, feeds = subjects.export(subjects.SUBJECTS[name], tmp_path, tiny=True)
    except subjects.Unavailable as missing:
        pytest.skip(str(missing))
    pretend(monkeypatch, with_fault(nothing))
    report = amp.transpile(model, inputs=feeds, prefer="size")
    assert "measured on" in report.verdict, "without the fault it is well"
    pretend(monkeypatch, stale_biases)
    with pytest.raises(CheckFailed, match=f"in run 2 of {RUNS}"):
        amp.transpile(model, tmp_path / "low.onnx", inputs=feeds, prefer="size")
    assert not (tmp_path / "low.onnx").exists()


def test_one_run_would_not_find_it(monkeypatch):
    pretend(monkeypatch, stale_biases)
    monkeypatch.setattr(device_check, "for_runs", lambda reference: for_runs(reference, 1))
    assert "measured on" in amp.transpile(CONV, prefer="size").verdict


# ---- the wish ----
def test_no_device_is_asked_where_the_user_wants_none(monkeypatch):
    pretend(monkeypatch, with_fault(FAULTS["infinities"]))
    report = amp.transpile(MODEL, device_check="no", prefer="size")
    assert report.measured is None
    assert report.verdict.endswith("not run on a GPU)")


def test_a_device_that_has_to_answer_and_does_not():
    with pytest.raises(EnvironmentProblem, match=r"device_check is 'yes', but .* doctor"):
        amp.transpile(MODEL, device_check="yes", prefer="size")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device_check": "maybe"}, "expected 'auto', 'yes' or 'no'"),
        ({"device_check": "yes", "verify": False}, "verify"),
    ],
)
def test_a_wish_that_cannot_be(options, said):
    with pytest.raises(OptionError, match=said):
        amp.transpile(MODEL, **options, prefer="size")


def test_the_command_has_the_option(monkeypatch, tmp_path, capsys):
    onnx.save(MODEL, tmp_path / "m.onnx")
    assert cli.main([str(tmp_path / "m.onnx"), "--device-check", "yes"]) == 2
    assert "device_check is 'yes'" in " ".join(capsys.readouterr().err.split())
    pretend(monkeypatch, with_fault(nothing))
    assert cli.main([str(tmp_path / "m.onnx"), "--json", str(tmp_path / "r.json"), "-q"]) == 0
    measured = json.loads((tmp_path / "r.json").read_text())["measured"]
    assert (measured["device"], measured["runs"], measured["place"]) == (NAME, RUNS, "CUDA:0")
    assert measured["outputs"]["y"]["relative"] == measured["emulated"]["y"]


def test_what_was_measured_is_remembered(monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    pretend(monkeypatch, with_fault(nothing))
    settings = {"inputs": {"x": array(2, 4)}, "tolerance": 1e-4}
    first, second = (amp.transpile(CHAIN, **settings, prefer="size") for _ in range(2))
    assert any("compared and run before" in note for note in second.notes)
    assert second.measured == first.measured
    assert second.verdict == first.verdict
    assert amp.transpile(CHAIN, device_check="no", **settings, prefer="size").measured is None


# ---- samples ----
def test_a_reordered_sample_has_the_same_numbers():
    sample = {
        "ids": np.arange(6).reshape(1, 6),
        "flag": np.array(True),
        "column": np.arange(3).reshape(3, 1),
        "text": [],
    }
    other = reordered(sample, 1)
    assert other["ids"].tolist() == [[5, 0, 1, 2, 3, 4]]
    assert other["column"].ravel().tolist() == [2, 0, 1]
    assert (other["flag"], other["text"]) == (sample["flag"], [])
