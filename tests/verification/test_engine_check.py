"""The written file and TensorRT's builder: what a refusal, a crash and a missing builder lead to."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import cli
from amp_transpiler.child_process.child import TIMED_OUT, RuntimeCrash
from amp_transpiler.errors import CheckFailed, EnvironmentProblem, OptionError
from amp_transpiler.files.saving import save
from amp_transpiler.report.as_html import page
from amp_transpiler.report.as_json import report_as_dict
from amp_transpiler.runtime.engines import EngineBuild, Profile
from amp_transpiler.verification import engine_check
from amp_transpiler.verification.engine_check import check_engine, profile_of
from tests.support import array, parse
from tests.tensorrt import needs_builder

MODEL = parse("(float[N,4] x) => (float[N,4] y) { [m] h = MatMul (x, w) [r] y = Relu (h) }", w=array(4, 4))
SAMPLE = {"x": array(2, 4)}
TENSORRT = {"target": "tensorrt", "inputs": SAMPLE, "cache": False}
BUILT = EngineBuild("Builder 1", 3, {"float16": 2, "float32": 1, "int64": 4}, 0.1, 100)
REFUSED = EngineBuild("Builder 1", node="m", operator="MatMul", fault="no such kernel")


def planted(monkeypatch, result, source=BUILT):
    """Put a builder in place of TensorRT's, which makes of a result what is told, and of a source likewise."""

    def build(path, profile):
        outcome = source if path.name == "model.onnx" else result
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(engine_check, "_built", build)
    monkeypatch.setattr(engine_check, "_problem", lambda: "")
    monkeypatch.setattr(engine_check, "has_builder", lambda: True)


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_the_report_has_the_layers_of_an_engine(monkeypatch, tmp_path, target):
    planted(monkeypatch, BUILT)
    report = amp.transpile(MODEL, tmp_path / "out.onnx", **TENSORRT | {"target": target})
    assert report.engine == BUILT
    assert report.engine.low_share == pytest.approx(2 / 3)
    assert report.checks[-1] == "Builder 1 builds an engine"
    engine = report_as_dict(report)["engine"]
    assert engine["precisions"] == {"float16": 2, "float32": 1, "int64": 4}
    assert engine["layers"] == 3
    line = "Builder 1: 3 layers (results: float16 2, float32 1, int64 4), built in 0.1 s"
    assert line in page([(report, None)])


def test_what_the_builder_refuses_is_not_written(monkeypatch, tmp_path):
    planted(monkeypatch, REFUSED)
    with pytest.raises(CheckFailed) as failed:
        amp.transpile(MODEL, tmp_path / "out.onnx", **TENSORRT)
    message = str(failed.value)
    assert "Builder 1 refuses the result: node 'm' (MatMul): no such kernel" in message
    assert "--black MatMul" in message
    assert "--build no" in message
    assert failed.value.report.engine == REFUSED
    assert not list(tmp_path.iterdir())


def test_the_command_ends_with_1_and_names_the_node(monkeypatch, tmp_path, capsys):
    planted(monkeypatch, REFUSED)
    save(amp.load(MODEL), tmp_path / "in.onnx")
    np.savez(tmp_path / "in.inputs.npz", **SAMPLE)
    assert cli.main([str(tmp_path / "in.onnx"), "--target", "tensorrt", "--no-cache"]) == 1
    assert "node 'm' (MatMul): no such kernel" in capsys.readouterr().err
    assert {file.name for file in tmp_path.iterdir()} == {"in.onnx", "in.inputs.npz"}


def test_a_refused_source_is_no_fault_of_the_result(monkeypatch, tmp_path):
    planted(monkeypatch, REFUSED, source=REFUSED)
    report = amp.transpile(MODEL, tmp_path / "out.onnx", **TENSORRT)
    assert any(note.startswith("fault of the source: Builder 1 refuses it, too") for note in report.notes)
    assert (tmp_path / "out.onnx").exists()


def test_yes_wants_an_engine_even_of_a_refused_source(monkeypatch, tmp_path):
    planted(monkeypatch, REFUSED, source=REFUSED)
    with pytest.raises(CheckFailed, match="no such kernel"):
        amp.transpile(MODEL, tmp_path / "out.onnx", build="yes", **TENSORRT)


@pytest.mark.parametrize("wish", ["auto", "yes"])
@pytest.mark.parametrize(("signal", "is_fault"), [("SIGSEGV", True), ("SIGKILL", False), (TIMED_OUT, False)])
def test_a_builder_that_dies(wish, signal, is_fault):
    def build(path, profile):
        if path.name == "out.onnx":
            raise RuntimeCrash(signal)
        return BUILT

    checked = check_engine(pathlib.Path("out.onnx"), amp.load(MODEL), [SAMPLE], wish, {}, build)
    assert bool(checked.findings.failure) == (is_fault or wish == "yes")
    said = checked.findings.failure or checked.findings.notes[0]
    assert ("ended its process" if signal != TIMED_OUT else "gave no answer") in said


@pytest.mark.parametrize("wish", ["auto", "yes"])
@pytest.mark.parametrize("plugins", [["MatMul"], ["my.ops::MatMul"], ["Other"], []])
def test_a_plugin_that_is_not_loaded_here_is_said_in_plain_words(wish, plugins):
    checked = check_engine(
        pathlib.Path("out.onnx"),
        amp.load(MODEL),
        [SAMPLE],
        wish,
        {},
        lambda path, profile: REFUSED,
        plugins=plugins,
    )
    is_plugin = any("MatMul" in name for name in plugins)
    said = checked.findings.failure or " ".join(checked.findings.notes)
    words = "not built: Builder 1 refuses the result as it does the source: it has no operator 'MatMul', and the plugin"
    assert (words in said) is is_plugin
    assert bool(checked.findings.failure) is (wish == "yes")


FLOAT64 = parse("(float[2,4] x) => (double[2,4] y) { [c] y = Cast <to = 11> (x) }")
WINDOW = parse(
    """(float[4] x) => (float[4] y) <int64 n = {4}> {
        [w] h = HannWindow <output_datatype = 11> (n) [c] f = Cast <to = 1> (h) [m] y = Mul (x, f) }"""
)
OPTION = "--float64 float32-io"


@pytest.mark.parametrize(
    ("result", "wish", "where"), [(BUILT, "auto", "notes"), (REFUSED, "auto", "notes"), (REFUSED, "yes", "failure")]
)
@pytest.mark.parametrize("has_float64", [True, False])
def test_where_there_is_float64_the_option_is_named(result, wish, where, has_float64):
    checked = check_engine(
        pathlib.Path("out.onnx"),
        amp.load(FLOAT64),
        [{"x": array(2, 4)}],
        wish,
        {},
        lambda path, profile: result,
        has_float64=has_float64,
    )
    said = " ".join(checked.findings.notes) if where == "notes" else checked.findings.failure
    assert (OPTION in said) is has_float64


@needs_builder
@pytest.mark.parametrize("choice", ["keep", "float32"])
def test_a_window_in_float64_builds_once_it_is_float32(tmp_path, choice):
    report = amp.transpile(
        WINDOW, tmp_path / "o.onnx", float64=choice, level="O2", target="tensorrt", inputs={"x": array(4)}, cache=False
    )
    refused = [note for note in report.notes if "refuses it, too" in note]
    assert [OPTION in note for note in refused] == ([True] if choice == "keep" else [])
    assert (report.engine.fault == "") is (choice == "float32")


def test_no_builder_is_a_note(monkeypatch):
    monkeypatch.setattr(engine_check, "has_builder", lambda: False)
    report = amp.transpile(MODEL, **TENSORRT)
    assert [note for note in report.notes if "not built" in note] == [engine_check._NOT_BUILT]
    assert report.engine is None


@pytest.mark.parametrize("options", [{"build": "no"}, {"verify": False}, {"target": "cuda"}])
def test_nothing_is_said_where_nobody_asks(monkeypatch, options):
    monkeypatch.setattr(engine_check, "has_builder", lambda: False)
    report = amp.transpile(MODEL, **TENSORRT | options)
    assert not [note for note in report.notes if "not built" in note]


def test_yes_without_a_builder_names_the_remedy(monkeypatch):
    monkeypatch.setattr(engine_check, "has_builder", lambda: False)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'amp-transpiler\[tensorrt\]'"):
        amp.transpile(MODEL, build="yes", **TENSORRT)


def test_a_builder_that_does_not_load(monkeypatch):
    monkeypatch.setattr(engine_check, "_problem", lambda: "not built: it does not load: libfoo.so")
    assert (
        check_engine(pathlib.Path("x"), amp.load(MODEL), [SAMPLE], "auto", {}).findings.notes[0].endswith("libfoo.so")
    )
    assert check_engine(pathlib.Path("x"), amp.load(MODEL), [SAMPLE], "yes", {}).findings.failure.endswith("libfoo.so")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"build": "perhaps"}, "expected 'auto', 'yes' or 'no'"), ({"build": "yes", "target": "cpu"}, "target cpu")],
)
def test_wrong_wishes(options, message):
    with pytest.raises(OptionError, match=message):
        amp.transpile(MODEL, **TENSORRT | options)


IDS = np.array([3, 4], np.int64)
PROFILES = {
    "one sample": ([{"x": array(2, 4)}], Profile({"x": ((2, 4), (2, 4), (2, 4))})),
    "two samples": ([{"x": array(2, 4)}, {"x": array(1, 7)}], Profile({"x": ((1, 4), (2, 4), (2, 7))})),
    "numbers of a small integer input": (
        [{"s": IDS}, {"s": IDS - 2}],
        Profile({"s": ((2,), (2,), (2,))}, {"s": ((1, 2), (3, 4), (3, 4))}),
    ),
    "integers of other shapes": ([{"s": IDS}, {"s": IDS[:1]}], Profile({"s": ((1,), (2,), (2,))})),
    "a scalar": ([{"s": np.int64(5)}], Profile({"s": ((), (), ())}, {"s": ((5,), (5,), (5,))})),
    "other ranks": ([{"x": array(2, 4)}, {"x": array(2)}], Profile({})),
    "many integers": ([{"s": np.zeros(65, np.int64)}], Profile({"s": ((65,), (65,), (65,))})),
}


@pytest.mark.parametrize(("samples", "profile"), PROFILES.values(), ids=PROFILES)
def test_profiles(samples, profile):
    assert profile_of(samples) == profile


# ---- TensorRT-RTX itself ----


@needs_builder
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("external", [False, True], ids=["one file", "weights outside"])
def test_an_engine_is_built(tmp_path, dtype, external):
    model = parse(
        "(float[N,64] x) => (float[N,64] y) { [m] h = MatMul (x, w) [r] y = Relu (h) }", w=array(64, 64, scale=0.1)
    )
    save(amp.load(model), tmp_path / "in.onnx", external=external)
    report = amp.transpile(
        tmp_path / "in.onnx", tmp_path / "out.onnx", **TENSORRT | {"inputs": {"x": array(2, 64)}}, dtype=dtype
    )
    assert report.engine.builder.startswith("TensorRT-RTX ")
    assert report.engine.precisions[dtype] >= 2
    assert report.engine.bytes > 0
    assert not report.engine.fault


@needs_builder
def test_sizes_are_guessed_without_samples(tmp_path):
    report = amp.transpile(MODEL, tmp_path / "out.onnx", target="tensorrt", verify=False, build="yes")
    assert report.engine.bytes > 0


@needs_builder
def test_the_node_that_tensorrt_refuses_is_named(tmp_path):
    dft = parse("(float[1,8,1] x) => (float[1,8,2] y) { [d] y = DFT <axis = 1> (x) }", opset=17)
    with pytest.raises(CheckFailed, match=r"\(DFT\): it has no operator DFT"):
        amp.transpile(dft, tmp_path / "out.onnx", target="tensorrt", build="yes", inputs={"x": array(1, 8, 1)})
    assert not list(tmp_path.iterdir())
    report = amp.transpile(dft, tmp_path / "out.onnx", target="tensorrt", inputs={"x": array(1, 8, 1)})
    assert any("refuses it, too" in note for note in report.notes)
