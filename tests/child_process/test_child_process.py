"""A child process that is started before anybody needs it."""

import os
import subprocess
import sys

import pytest

from amp_transpiler.child_process import child, process as child_process
from amp_transpiler.cli.checker import start_checker
from amp_transpiler.cli.options import parse


@pytest.fixture
def ahead(monkeypatch):
    """A place of this test's own for a process that waits."""
    starter = child_process._Ahead()
    monkeypatch.setattr(child_process, "_ahead", starter)
    yield starter
    starter.end()


def test_the_next_child_is_the_one_that_was_started(ahead):
    child_process.start_ahead()
    waiting = ahead._waiting
    first, second = child.Child(), child.Child()
    try:
        assert first.pid == waiting.process.pid
        assert second.pid != first.pid
        assert first.ask("device", "CPU")[0] == "CPU"
    finally:
        first.end()
        second.end()


def test_one_waits_however_often_it_is_started(ahead):
    child_process.start_ahead()
    waiting = ahead._waiting
    child_process.start_ahead()
    assert ahead._waiting is waiting


def test_one_that_died_meanwhile_is_replaced(ahead):
    child_process.start_ahead()
    waiting = ahead._waiting
    waiting.process.kill()
    waiting.process.wait()
    process = child_process.started()
    assert process.process.pid != waiting.process.pid
    assert process.process.poll() is None
    process.end()


def test_where_none_can_be_started_the_child_says_so(ahead, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    child_process.start_ahead()
    assert ahead._waiting is None
    with pytest.raises(child.errors.EnvironmentProblem, match="cannot start"):
        child.Child()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_leaves_it_to_its_parent(ahead):
    child_process.start_ahead()
    waiting = ahead._waiting
    assert waiting is not None
    ahead.forget()
    assert ahead._waiting is None
    assert os.waitpid(waiting.process.pid, os.WNOHANG) == (0, 0), "it still runs"
    os.kill(waiting.process.pid, 9)
    os.waitpid(waiting.process.pid, 0)
    waiting.process.stdin.close()
    waiting.process.stdout.close()


def test_it_ends_with_a_process_that_never_needs_it():
    code = (
        "from amp_transpiler.child_process import process as c\nc.start_ahead()\nprint(c._ahead._waiting.process.pid)"
    )
    pid = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


@pytest.mark.parametrize(
    ("arguments", "starts"),
    [
        (["m.onnx"], True),
        (["m.onnx", "--level", "O1"], True),
        (["m.onnx", "--dry-run"], True),
        (["m.onnx", "--no-verify"], False),
        (["m.onnx", "--level", "O0"], False),
        (["m.onnx", "--preset", "mp0"], False),
    ],
)
def test_the_command_starts_one_where_it_checks(ahead, arguments, starts):
    start_checker(parse(arguments))
    assert (ahead._waiting is not None) is starts
