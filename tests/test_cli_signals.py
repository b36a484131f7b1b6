"""SIGTERM and SIGHUP end the command as Ctrl-C does: with a line, an exit status, and nothing half written."""

from __future__ import annotations

import os
import signal
import threading

import onnx
import onnx.parser
import pytest

from amp_transpiler.cli import command as cli
from amp_transpiler.cli.termination import Terminated, terminating_by_exception
from amp_transpiler.files.saving import Staged

SIGNALS = [signal.SIGTERM, signal.SIGHUP]

MODEL = '<ir_version: 10, opset_import: ["": 17]> net (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }'


@pytest.fixture(autouse=True)
def ordinary_signals():
    """Take signals as a terminal gives them: under nohup SIGHUP is ignored, and so it must stay."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_writing_leaves_the_folder_as_it_was(tmp_path, capfd, monkeypatch, number):
    def interrupted(staged):
        assert staged.path.exists()
        os.kill(os.getpid(), number)

    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    (tmp_path / "out.onnx").write_bytes(b"old")
    before = names(tmp_path)
    monkeypatch.setattr(Staged, "commit", interrupted)
    assert cli.main([str(tmp_path / "m.onnx"), "-o", str(tmp_path / "out.onnx"), "--no-verify"]) == 128 + number
    assert capfd.readouterr() == ("", f"amp-transpile: error: ended by {signal.Signals(number).name}\n")
    assert names(tmp_path) == before
    assert (tmp_path / "out.onnx").read_bytes() == b"old"


@pytest.mark.parametrize("number", SIGNALS)
def test_handlers_are_taken_back(number):
    with pytest.raises(Terminated) as raised, terminating_by_exception():
        os.kill(os.getpid(), number)
    assert raised.value.number == number
    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_does_not_disturb_the_cleaning_up(number):
    cleaned = []
    with pytest.raises(Terminated), terminating_by_exception():  # noqa: PT012
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)
            cleaned.append(True)
    assert cleaned


def test_an_ignored_signal_stays_ignored():
    """`nohup amp-transpile` goes on when the terminal is closed."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminating_by_exception():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_other_threads_have_no_handlers():
    handled = []

    def work():
        with terminating_by_exception():
            handled.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handled == [signal.SIG_DFL]
