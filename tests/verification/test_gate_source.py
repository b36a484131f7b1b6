"""The gate and the source's own faults: a fault that the source has is named as its own, and only such a fault passes.

Beside it, what the gate says where ONNX Runtime lacks something, so that a result can only be looked at.
"""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler import cli
from amp_transpiler.errors import CheckFailed, ModelError
from tests.support import array, folder_hash, parse
from tests.verification.gate import NO_KERNEL, REFUSAL, a_session_that

FEEDS = {"x": array(3, 4)}
PLAIN = "(float[3,4] x) => (float[3,4] y) { h = MatMul (x, w) y = Relu (h) }"
UNKNOWN_ATTRIBUTE = PLAIN.replace("Relu", "Relu <nonsense = 1>")
# ONNX's check without inference accepts it, in full it does not; ONNX Runtime does not load it.
WRONG_AXIS = PLAIN.replace("Relu", "Softmax <axis = 5>")
WRONG_SHAPE = PLAIN.replace("y) {", "y) <float[7,7] h> {")


def bad(graph=PLAIN):
    proto = parse(graph, w=array(4, 4, seed=1))
    proto.graph.name = "bad"
    return proto


def refusing_checker(monkeypatch, full):
    """Let onnx.checker refuse every model, in its full check or in the other one."""
    plain = onnx.checker.check_model

    def check_model(proto, full_check=False, **options):
        if full_check is full:
            raise onnx.checker.ValidationError("planted")
        plain(proto, full_check=full_check, **options)

    monkeypatch.setattr(onnx.checker, "check_model", check_model)


def transpiled(tmp_path, graph=PLAIN, **options):
    """Convert a model through a file, and return the report; the result must be there."""
    onnx.save(bad(graph), tmp_path / "in.onnx")
    report = amp.transpile(
        tmp_path / "in.onnx", tmp_path / "out.onnx", **{"level": "O2", "inputs": FEEDS, "prefer": "size"} | options
    )
    assert (tmp_path / "out.onnx").exists()
    return report


# ---- before the conversion ----


def test_a_source_that_onnx_and_onnx_runtime_refuse_is_refused(tmp_path, capsys):
    onnx.save(bad(UNKNOWN_ATTRIBUTE), tmp_path / "in.onnx")
    before = folder_hash(tmp_path)
    with pytest.raises(ModelError, match=r"in\.onnx: invalid before.*'nonsense'"):
        amp.transpile(tmp_path / "in.onnx", tmp_path / "out.onnx", level="O2")
    assert cli.main([str(tmp_path / "in.onnx")]) == 2
    assert "invalid before any conversion" in " ".join(capsys.readouterr().err.split())
    assert folder_hash(tmp_path) == before


def test_a_source_that_onnx_alone_refuses_is_converted_and_it_is_said(tmp_path, monkeypatch):
    refusing_checker(monkeypatch, full=False)
    report = transpiled(tmp_path)
    assert "fault of the source: onnx.checker refuses it, ONNX Runtime loads it: planted" in report.notes
    assert "onnx.checker, full" in report.checks


def test_a_wrong_declared_shape_is_left_out_and_it_is_said(tmp_path):
    report = transpiled(tmp_path, WRONG_SHAPE)
    assert any(note.startswith("fault of the source: declared shapes") for note in report.notes)
    assert "onnx.checker, full" in report.checks
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"), full_check=True)


def test_operators_that_are_onnx_runtimes_alone_are_named(tmp_path):
    graph = PLAIN.replace("Relu (h)", "SimplifiedLayerNormalization (h, s)")
    model = parse(graph, w=array(4, 4, seed=1), s=np.ones(4, np.float32))
    report = amp.transpile(model, tmp_path / "out.onnx", inputs=FEEDS, prefer="size")
    [note] = [note for note in report.notes if "not portable" in note]
    assert note.endswith("SimplifiedLayerNormalization")


# ---- after it ----


def test_what_onnx_refuses_in_the_source_too_is_its_own_fault(tmp_path, monkeypatch):
    refusing_checker(monkeypatch, full=True)
    report = transpiled(tmp_path)
    assert "fault of the source: onnx.checker says planted" in report.notes
    assert "onnx.checker, full" not in report.checks
    assert "ONNX Runtime (CPU)" in report.checks, "the other checks still follow"


def test_what_onnx_refuses_in_both_ways_is_said_once(tmp_path, monkeypatch):
    for full in (False, True):
        refusing_checker(monkeypatch, full)
    report = transpiled(tmp_path)
    assert [note for note in report.notes if note.endswith("planted")] == [
        "fault of the source: onnx.checker refuses it, ONNX Runtime loads it: planted"
    ]


def test_what_onnx_runtime_refuses_in_the_source_too_is_its_own_fault(tmp_path):
    report = transpiled(tmp_path, WRONG_AXIS, inputs=None)
    assert report.verdict == "structure only: ONNX Runtime refuses the result, as it does the source"
    said = [note.partition(":")[0] for note in report.notes if "fault of the source" in note]
    assert said == ["fault of the source"] * 2
    assert any("onnx.checker says" in note and "'axis' must be in" in note for note in report.notes)
    assert any("ONNX Runtime refuses it, too" in note and "'axis' must be in" in note for note in report.notes)
    assert not any(check.startswith(("onnx.checker", "ONNX Runtime")) for check in report.checks)


@pytest.mark.parametrize("how", [{"opens": REFUSAL}, {"runs": lambda outputs: [-output for output in outputs]}])
def test_a_default_session_that_fails_the_source_too_is_the_sources_fault(how, tmp_path, monkeypatch):
    a_session_that({"default", "source by default"}, **how)(monkeypatch)
    report = transpiled(tmp_path, target="cpu", tolerance=0.01)
    assert any(note.startswith("fault of the source: ONNX Runtime's default session (CPU)") for note in report.notes)
    assert not any("default session" in check for check in report.checks)


# ---- what ONNX Runtime lacks ----

LACKING = {
    "a kernel for the result": ({"load"}, NO_KERNEL, "verified", "ONNX Runtime (CPU, emulated)"),
    "kernels for the result and its emulation": ({"load", "emulated"}, NO_KERNEL, "structur", None),
    "a run of the emulation": ({"emulated"}, REFUSAL, "structur", "ONNX Runtime (CPU)"),
}


@pytest.mark.parametrize("row", LACKING)
def test_where_something_is_lacking_the_report_says_how_far_it_was_checked(row, tmp_path, monkeypatch):
    kinds, error, verdict, check = LACKING[row]
    a_session_that(kinds, opens=error)(monkeypatch)
    report = transpiled(tmp_path, **({"tolerance": 0.01} if verdict == "verified" else {}))
    assert report.verdict.startswith(verdict)
    assert ("planted" in report.verdict) == (verdict != "verified")
    assert [line for line in report.checks if line.startswith("ONNX Runtime (")] == [check] * (check is not None)


def test_what_is_lacking_at_last_counts_for_the_verdict(tmp_path, monkeypatch):
    """The emulation runs once and then not again, as when memory runs out."""
    a_session_that({"load"}, opens=NO_KERNEL)(monkeypatch)

    def progress(phase, fraction):
        if phase == "check result" and fraction == 0.0:
            a_session_that({"emulated"}, opens=NO_KERNEL)(monkeypatch)

    report = transpiled(tmp_path, tolerance=0.01, progress=progress)
    assert report.verdict.startswith("structure only: ")
    assert "planted" in report.verdict


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_where_emulation_fails_users_sessions_still_run_and_are_judged(target, tmp_path, monkeypatch):
    a_session_that({"emulated"}, opens=REFUSAL)(monkeypatch)
    report = transpiled(tmp_path, target=target, level="auto")
    assert report.verdict.startswith("structure only: the emulated program does not run")
    (tmp_path / "out.onnx").unlink()
    a_session_that({"default"}, runs=lambda outputs: [-output for output in outputs])(monkeypatch)
    if target == "cpu":
        with pytest.raises(CheckFailed, match="computes something else than float32"):
            transpiled(tmp_path, target=target, level="auto")
        assert not (tmp_path / "out.onnx").exists()
    else:
        report = transpiled(tmp_path, target=target, level="auto")
        assert any("computes something else than float32" in note for note in report.notes)


def test_a_kernel_that_lacks_is_no_excuse_for_an_emulation_that_is_refused(tmp_path, monkeypatch):
    a_session_that({"load"}, opens=NO_KERNEL)(monkeypatch)
    a_session_that({"emulated"}, opens=REFUSAL)(monkeypatch)
    with pytest.raises(CheckFailed, match=r"ONNX Runtime refuses the result: emulated: .*planted"):
        transpiled(tmp_path)
    assert not (tmp_path / "out.onnx").exists()


# ---- without verification ----


def test_without_verification_nothing_but_the_types_is_checked_and_it_is_said(tmp_path, monkeypatch):
    refusing_checker(monkeypatch, full=True)
    a_session_that({"load", "default", "emulated", "source"}, opens=REFUSAL)(monkeypatch)
    report = transpiled(tmp_path, verify=False, inputs=None)
    assert report.verdict.startswith("not ")
    assert report.checks == ()
