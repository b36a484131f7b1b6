"""The written file in a session with ONNX Runtime's default options: what is a failed check, a note, or nothing."""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler import cli
from amp_transpiler.errors import CheckFailed
from amp_transpiler.passes.guard_transposes import GuardTransposes
from amp_transpiler.passes.manager import PassResult
from amp_transpiler.targets import TARGETS
from amp_transpiler.verification import default_session
from amp_transpiler.verification.default_session import SESSION, must_run
from tests.support import array, parse

# SIGSEGV in float16, unless `GuardTransposes` rewrites it.
CRASHES = parse(
    "(float[5,1,4] x) => (float[1,5,3] y) { [t] t = Transpose <perm = [1, 0, 2]> (x) [m] y = MatMul (t, w) }",
    w=array(4, 3),
)
# The CPU provider has a float16 kernel that fails when it runs.
FAILS = parse(
    '(float[4,3] x, int64[2,1] i, float[2,3] u) => (float[4,3] y) { y = ScatterND <reduction = "add"> (x, i, u) }'
)
PLAIN = parse("(float[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }", w=array(4, 4))
SAMPLE = {"x": array(4, 3), "i": np.array([[0], [2]]), "u": array(2, 3)}


@pytest.fixture
def unguarded(monkeypatch):
    monkeypatch.setattr(GuardTransposes, "call", lambda _, model: PassResult(model, modified=False))


@pytest.mark.parametrize(("target", "must"), [("cpu", True), ("any", True), ("cuda", False), ("tensorrt", False)])
def test_whose_files_must_run_on_the_cpu(target, must):
    assert must_run(TARGETS[target]) is must


@pytest.mark.parametrize("target", ["cpu", "any", "cuda", "tensorrt"])
def test_a_sound_file_is_named_among_the_checks(target):
    report = amp.transpile(PLAIN, target=target, level="O2")
    assert SESSION in report.checks
    assert not any("session" in note for note in report.notes)


def test_a_file_that_would_crash_is_written_so_that_it_does_not():
    for target in ("cuda", "cpu"):
        report = amp.transpile(CRASHES, target=target, level="O2")
        assert report.checks[-1] == SESSION
        assert report.low_nodes == 2


@pytest.mark.slow  # a crash costs a process
@pytest.mark.parametrize("target", ["cpu", "any"])
def test_a_crash_is_a_failed_check_for_the_cpu(unguarded, target, tmp_path):
    with pytest.raises(CheckFailed, match=r"default session \(CPU\) crashes.*SIGSEGV.*--disable-amp") as caught:
        amp.transpile(CRASHES, tmp_path / "out.onnx", target=target, level="O2")
    assert caught.value.report.low_nodes == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # likewise
@pytest.mark.parametrize("target", ["cuda", "tensorrt"])
def test_a_crash_on_the_cpu_is_a_note_for_other_targets(unguarded, target, tmp_path, capsys):
    onnx.save(CRASHES, tmp_path / "in.onnx")
    assert cli.main([str(tmp_path / "in.onnx"), "--target", target, "--level", "O2"]) == 0
    assert "crashes" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "in.fp16.onnx").exists()


def test_a_run_that_fails_is_a_note_for_cuda():
    white = amp.AutoMixedPrecisionLists(custom_white_list=["ScatterND"])
    report = amp.transpile(FAILS, target="cuda", level="O2", inputs=SAMPLE, amp_lists=white)
    assert report.low_nodes == 1
    assert report.verdict_word == "compared", report.verdict
    assert SESSION not in report.checks
    assert any(f"{SESSION} refuses the written file" in note for note in report.notes), report.notes


def test_without_samples_the_file_is_opened_only(monkeypatch):
    monkeypatch.setattr(default_session, "named_outputs", None)
    model = parse("(float[2] x, seq(float[2]) s) => (float[2] y) { y = Exp (x) }")
    report = amp.transpile(model, level="O2")
    assert "no inputs could be made up" in report.verdict
    assert report.checks[-1] == SESSION


def test_a_missing_kernel_is_no_finding():
    report = amp.transpile(PLAIN, dtype="bfloat16", level="O2")
    assert report.verdict_word == "compared", report.verdict
    assert SESSION not in report.checks
    assert not any("session" in note for note in report.notes)


def wrong_by(factor):
    plain = default_session.named_outputs

    def outputs(session, sample):
        return {name: value * np.float32(factor) for name, value in plain(session, sample).items()}

    return outputs


@pytest.mark.parametrize(
    ("factor", "said"),
    [(1.5, r"'y' differs by 50% in relative norm .*, allowed are 2%"), (np.nan, "'y' has 24 non-finite values")],
)
def test_another_result_is_a_fault(monkeypatch, factor, said):
    monkeypatch.setattr(default_session, "_source_fails", lambda *_: False)
    monkeypatch.setattr(default_session, "_is_of_source", lambda *_: False)
    monkeypatch.setattr(default_session, "named_outputs", wrong_by(factor))
    with pytest.raises(CheckFailed, match=said):
        amp.transpile(PLAIN, target="cpu")
    report = amp.transpile(PLAIN, target="cuda", prefer="size")
    assert any("computes something else than float32" in note for note in report.notes)


@pytest.mark.slow  # likewise
def test_a_fault_that_the_source_has_is_its_own(tmp_path):
    crashing = parse(
        "(float16[5,1,4] x) => (float16[1,5,3] y) { t = Transpose <perm = [1, 0, 2]> (x) y = MatMul (t, w) }",
        w=array(4, 3).astype(np.float16),
    )
    path = tmp_path / "model.onnx"
    onnx.save(crashing, path)
    for source, outcome in ((crashing, "source"), (PLAIN, "fault")):
        opened = default_session.open_as_users_do(path, amp.load(crashing), amp.load(source), None, 0.02)
        assert opened.outcome == outcome
        assert "crashes" in opened.detail


def test_memory_that_runs_out_says_nothing_about_the_file(monkeypatch):
    monkeypatch.setattr(default_session, "available_memory", lambda: 10)
    program = amp.load(PLAIN)
    assert default_session.open_as_users_do(None, program, program, None, 0.02).outcome == "unknown"


CLOSE = np.tile(np.linspace(0.0, 9.0, 10, dtype=np.float32), (200, 1))  # of every row, the last label is the best
CLOSE[7, 3] = 8.9999


@pytest.mark.parametrize(
    ("row", "label", "options", "said"),
    [
        (7, 3, {}, ""),  # by a hair's breadth
        (8, 3, {}, "1 of 200 integers differ, none may"),
        (8, 3, {"mismatch": "0.5%"}, ""),
        (8, 3, {"mismatch": "0.4%"}, r"1 of 200 integers differ, allowed are 0\.4%"),
    ],
)
def test_labels_are_judged_as_in_the_comparison(monkeypatch, row, label, options, said):
    plain = default_session.named_outputs

    def outputs(session, sample):
        labels = plain(session, sample)["y"].copy()
        labels[row] = label
        return {"y": labels}

    monkeypatch.setattr(default_session, "named_outputs", outputs)
    monkeypatch.setattr(default_session, "_source_fails", lambda *_: False)
    monkeypatch.setattr(default_session, "_is_of_source", lambda *_: False)
    model = parse("(float[200,10] x) => (int64[200] y) { y = ArgMax <axis = 1, keepdims = 0> (x) }")
    options_of_run = {"inputs": {"x": CLOSE}, "target": "cpu", "keep_io_types": False, **options}
    if said:
        with pytest.raises(CheckFailed, match=said) as error:
            amp.transpile(model, **options_of_run, prefer="size")
        assert error.value.report.verdict_word == "failed"
    else:
        assert SESSION in amp.transpile(model, **options_of_run, prefer="size").checks
