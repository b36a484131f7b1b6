"""The child process that runs ONNX Runtime: what it hands back, how it dies, and with whom."""

import concurrent.futures
import logging
import multiprocessing
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

import amp_transpiler as amp
from amp_transpiler.child_process import child, messages as child_messages
from amp_transpiler.child_process.child import RuntimeCrash, lease
from amp_transpiler.child_process.remote import open_file, open_program
from amp_transpiler.errors import EnvironmentProblem, InputError, OptionError
from amp_transpiler.runtime.ort import ORT_ERRORS, SessionSettings
from amp_transpiler.runtime.places import PLACE_VARIABLE, default_place
from amp_transpiler.verification import accuracy
from tests.support import array, parse

DOUBLE = parse("(float[N] x) => (float[N] y) { y = Add (x, x) }")
SLOW = pytest.mark.slow  # starts a process of its own
ON_LINUX = pytest.mark.skipif(not pathlib.Path("/proc").exists(), reason="reads /proc")


@pytest.fixture
def own_pool(monkeypatch):
    """A pool of this test's own, so that children of other tests do not matter."""
    pool = child._Pool()
    monkeypatch.setattr(child, "_pool", pool)
    yield pool
    pool.end()


def is_gone(pid, seconds=10.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return True
        if stat.rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


# ---- what it hands back ----

VALUES = {
    "float32": array(3, 4),
    "a view": array(4, 6)[::2, 1:4],
    "bfloat16": array(2, 2).astype(ml_dtypes.bfloat16),
    "strings": np.array(["a", "ü"], dtype=object),
    "empty": np.zeros((0, 3), np.float32),
    "a scalar": np.float32(2.0),
    "a sequence": [array(2), array(3)],
    "a mapping": [{"a": 1.0, "b": 2.0}],
    "nothing": None,
    "bytes": b"\0" * 100_000,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values_cross_unchanged(value, tmp_path):
    with (tmp_path / "wire").open("wb") as stream:
        child_messages.send(stream, ("done", value))
    with (tmp_path / "wire").open("rb") as stream:
        status, answer = child_messages.receive(stream)
        assert stream.read() == b""
    assert status == "done"
    assert pickle.dumps(answer) == pickle.dumps(np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value)


def test_arrays_travel_beside_the_pickle(tmp_path):
    with (tmp_path / "wire").open("wb") as stream:
        child_messages.send(stream, np.zeros(1_000_000, np.float32))
    with (tmp_path / "wire").open("rb") as stream:
        length, count = child_messages._HEAD.unpack(stream.read(child_messages._HEAD.size))
    assert length < 1000
    assert count == 1


def test_a_message_cut_short_is_an_end(tmp_path):
    with (tmp_path / "wire").open("wb") as stream:
        child_messages.send(stream, list(range(1000)))
    (tmp_path / "wire").write_bytes((tmp_path / "wire").read_bytes()[:-1])
    with (tmp_path / "wire").open("rb") as stream, pytest.raises(EOFError):
        child_messages.receive(stream)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_session_in_a_child_is_like_one_here(dtype):
    name = {np.float16: "float16", ml_dtypes.bfloat16: "bfloat16"}[dtype]
    model = parse(f"({name}[2,4] x) => ({name}[2,4] y, {name}[2,4] z) {{ y = Relu (x) z = Neg (x) }}")
    here = amp.Session(model, amp.CPUPlace())
    x = array(2, 4).astype(dtype)
    with open_program(model) as there:
        assert (there.inputs, there.outputs) == (here.inputs, here.outputs)
        for fetch in (None, ["z"], []):
            for mine, other in zip(here.run({"x": x}, fetch), there.run({"x": x}, fetch), strict=True):
                assert mine.dtype == other.dtype
                np.testing.assert_array_equal(mine, other)


def test_a_file_opens_with_its_weights_beside_it_wherever_the_process_stands(tmp_path, monkeypatch):
    model = parse("(float[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }", w=np.eye(4, dtype=np.float32))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    x = array(2, 4)
    for settings in (None, SessionSettings(optimize=False)):
        with open_file("m.onnx", settings) as session:
            np.testing.assert_array_equal(session.run({"x": x})[0], x)
    with open_program(amp.load("m.onnx")) as session:
        np.testing.assert_array_equal(session.run({"x": x})[0], x)


ERRORS = {
    "an operator that does not exist": ("(float[2] x) => (float[2] y) { y = Nonsense (x) }", {}, ORT_ERRORS),
    "an input that is missing": ("(float[2] x) => (float[2] y) { y = Relu (x) }", {}, InputError),
    "a shape that does not fit": ("(float[2] x) => (float[2] y) { y = Relu (x) }", {"x": array(3)}, InputError),
}


@pytest.mark.parametrize(("text", "feeds", "kind"), ERRORS.values(), ids=ERRORS)
def test_errors_are_raised_again_here(text, feeds, kind):
    with pytest.raises(kind), open_program(parse(text)) as session:
        session.run(feeds)


@pytest.fixture
def no_place_is_known():
    child._logged_place_name.cache_clear()
    yield
    child._logged_place_name.cache_clear()


def test_the_default_place_is_that_of_the_variable_as_it_is_now(no_place_is_known, monkeypatch, caplog):
    with lease() as leased:  # it began with another value
        leased.ask("device", "")
    monkeypatch.setenv(PLACE_VARIABLE, "cpu")
    with caplog.at_level(logging.INFO, logger=child.__name__):
        assert [child.default_place_name(), child.default_place_name()] == ["CPU", "CPU"]
    assert [record.getMessage() for record in caplog.records] == ["running on CPU, as AMP_TRANSPILER_PLACE says"]
    monkeypatch.setenv(PLACE_VARIABLE, "gpu")
    with pytest.raises(OptionError, match="AMP_TRANSPILER_PLACE is 'gpu'"):
        child.default_place_name()


def test_without_the_variable_the_child_decides_as_this_process(no_place_is_known, monkeypatch):
    monkeypatch.delenv(PLACE_VARIABLE, raising=False)
    assert child.default_place_name() == str(default_place())


def test_a_conversion_whose_place_is_none_is_refused(no_place_is_known, monkeypatch):
    monkeypatch.setenv(PLACE_VARIABLE, "gpu")
    with pytest.raises(OptionError, match="AMP_TRANSPILER_PLACE is 'gpu'"):
        amp.transpile(parse("(float[2] x) => (float[2] y) { y = Relu (x) }"), prefer="size")


def test_an_error_of_another_kind_is_one_of_onnx_runtime_s():
    with lease() as leased, pytest.raises(ORT_ERRORS, match="KeyError"):
        leased.ask("run", 10**9, {}, None)


def test_nothing_is_printed(capfd):
    with open_program(DOUBLE) as session:
        session.run({"x": array(2)})
    with lease() as leased, pytest.raises(RuntimeCrash):
        leased.ask("die", "SIGSEGV")
    assert capfd.readouterr() == ("", "")


# ---- how it dies ----


@pytest.mark.parametrize(
    "name", ["SIGSEGV", "SIGKILL", *(pytest.param(name, marks=SLOW) for name in ("SIGFPE", "SIGABRT"))]
)
def test_a_death_is_a_crash_with_its_signal_s_name(name, own_pool):
    with lease() as leased, pytest.raises(RuntimeCrash, match=name) as caught:
        leased.ask("die", name)
    assert caught.value.signal == name
    with open_program(DOUBLE) as session:  # in another child
        assert session.run({"x": np.ones(1, np.float32)})[0][0] == 2.0


@SLOW
def test_a_session_whose_child_died_opens_again(own_pool):
    with open_program(DOUBLE) as session:
        with pytest.raises(RuntimeCrash):
            session._child.ask("die", "SIGFPE")
        with pytest.raises(RuntimeCrash):
            session.run({"x": array(2)})
        assert session.run({"x": np.ones(1, np.float32)})[0][0] == 2.0


def test_a_hang_ends_after_the_time_limit(own_pool):
    with lease() as leased, pytest.raises(RuntimeCrash, match="no answer") as caught:
        leased.ask("sleep", 60, timeout=0.1)
    assert caught.value.signal == child.TIMED_OUT
    assert not leased.is_alive()


def test_an_interrupt_ends_the_child_whose_answer_is_still_to_come(own_pool, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    with lease() as leased:
        leased.ask("device", "")
        monkeypatch.setattr(child, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            leased.ask("sleep", 60)
    assert not leased.is_alive()


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/false"])
def test_an_interpreter_that_does_not_start_is_named(own_pool, monkeypatch, python):
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(EnvironmentProblem, match=f"{python}.*without verification"), lease() as leased:
        leased.ask("device", "")


@ON_LINUX
def test_no_core_file_is_left_and_it_is_the_first_to_go(own_pool):
    with lease() as leased:
        leased.ask("device", "")
        process = pathlib.Path(f"/proc/{leased.pid}")
        [limit] = [line for line in (process / "limits").read_text().splitlines() if "core file" in line]
        assert limit.split()[4] == "0"
        assert int((process / "oom_score_adj").read_text()) >= 500


# ---- one child for many, and with whom it ends ----


def test_a_child_is_used_again(own_pool):
    pids = set()
    for _ in range(3):
        with lease() as leased:
            pids.add(leased.pid)
    assert len(pids) == 1


@SLOW
def test_two_at_once_have_a_child_each(own_pool):
    with open_program(DOUBLE) as first, open_program(DOUBLE) as second:
        assert first._child is not second._child


@SLOW
def test_threads_convert_at_once(own_pool):
    model = parse("(float[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }", w=array(4, 4))
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        reports = list(threads.map(lambda _: amp.transpile(model, prefer="size"), range(16)))
    assert {report.verdict for report in reports} == {reports[0].verdict}
    assert reports[0].verdict_word == "plausible"
    assert len(own_pool._idle) <= child._most_idle()
    assert set(own_pool._idle) == own_pool._all


def _convert_after_fork():
    with lease() as leased:
        pid = leased.pid
    os._exit(
        0
        if amp.transpile(DOUBLE, prefer="size").verdict_word == "plausible" and pid not in _convert_after_fork.before
        else 1
    )


@SLOW
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # that this process has threads is the point
def test_a_forked_process_has_children_of_its_own(own_pool):
    with lease() as leased:
        leased.ask("device", "")
    _convert_after_fork.before = {leased.pid}
    forked = multiprocessing.get_context("fork").Process(target=_convert_after_fork)
    forked.start()
    forked.join(60)
    assert forked.exitcode == 0
    assert leased.is_alive()
    with lease() as again:
        assert again is leased
        assert again.ask("device", "")


SCRIPT = """
import signal, sys, time
from amp_transpiler.child_process.child import lease
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in the background without
if __name__ == "__main__":
    with lease() as one:
        one.ask("device", "")
        print(one.pid, flush=True)
        {end}
"""


@SLOW
@ON_LINUX
@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("pass", None),
        ("raise SystemExit(3)", None),
        ("time.sleep(60)", signal.SIGKILL),
        ("one.ask('sleep', 60)", signal.SIGKILL),
        ("time.sleep(60)", signal.SIGTERM),
        ("one.ask('sleep', 60)", signal.SIGINT),
    ],
)
def test_it_ends_with_its_parent(end, how):
    script = SCRIPT.format(end=end)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        pid = int(parent.stdout.readline())
        if how is not None:
            parent.send_signal(how)
    assert is_gone(pid)


def test_without_verification_no_child_is_started(own_pool):
    amp.transpile(DOUBLE, verify=False, prefer="size")
    assert not own_pool._all
    amp.transpile(DOUBLE, prefer="size")
    assert own_pool._all


def test_with_verification_no_session_is_opened_here(own_pool, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a session was opened")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    model = parse("(float[2,4] x) => (float[2,4] y) { h = Exp (x) y = MatMul (h, w) }", w=array(4, 4))
    report = amp.transpile(model, tolerance=0.00002, level="auto", prefer="size")  # repaired, too
    assert report.verdict_word == "plausible", report.verdict
    assert report.repaired


# ---- crashes while a model is judged ----


def crashing(run_plainly, *, when):
    """Let the child that runs a sample die at a run for which `when` holds."""

    def run(feeds):
        if when(feeds):
            with pytest.raises(RuntimeCrash):
                run_plainly.__self__._session._child.ask("die", "SIGFPE")
        return run_plainly(feeds)

    return run


@pytest.mark.parametrize(
    ("when", "verdict"),
    [
        (lambda feeds: feeds["x"].shape[-1] == 32, "compared: within 0"),
        (lambda _: True, r"structure only: no inputs could be made up \(.*ONNX Runtime crashed \(SIGFPE\)\)"),
    ],
    ids=["one size", "every size"],
)
def test_made_up_inputs_that_crash_onnx_runtime_are_not_used(when, verdict, monkeypatch):
    def synthesise(model, run, **rest):
        return plain(model, crashing(run, when=when), **rest)

    plain = accuracy.synthesise_inputs
    monkeypatch.setattr(accuracy, "synthesise_inputs", synthesise)
    report = amp.transpile(parse("(float[1,L] x) => (float[1,L] y) { y = Exp (x) }"), level="O2")
    assert re.match(verdict, report.verdict), report.verdict


def test_given_inputs_that_crash_onnx_runtime_are_named(monkeypatch):
    def crash(_session, _sample):
        raise RuntimeCrash("SIGFPE")

    monkeypatch.setattr(accuracy, "named_outputs", crash)
    with pytest.raises(InputError, match=r"given inputs: ONNX Runtime crashed \(SIGFPE\)"):
        amp.transpile(DOUBLE, inputs={"x": array(2)}, prefer="size")
