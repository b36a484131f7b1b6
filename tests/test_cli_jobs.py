"""`--jobs`: many models in processes of their own."""

import json
import multiprocessing
import os
import pathlib
import signal
import sys
import time

import onnx
import onnx.parser
import pytest

from amp_transpiler import cli
from amp_transpiler.cli import workers
from amp_transpiler.cli.destinations import Job
from amp_transpiler.cli.options import parse
from amp_transpiler.cli.outcome import Outcome

MODEL = """
<ir_version: 10, opset_import: ["": 17]>
net (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }
"""


def work(connection, options):
    """Stands in for a worker: does what the model's name says."""
    while True:
        job = connection.recv()
        match job.model.name:
            case "die":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exit":
                sys.exit(7)
            case "sleep":
                time.sleep(60)
            case "slow":
                time.sleep(0.3)
        connection.send(Outcome(job))


def outcomes(monkeypatch, *names):
    monkeypatch.setattr(workers, "_work", work)
    jobs = [Job(pathlib.Path(name), pathlib.Path("out")) for name in names]
    return workers.convert_all(jobs, parse(["--jobs", "2", *names]))


def test_outcomes_come_in_order_and_a_dying_process_takes_one_model_along(monkeypatch):
    before = multiprocessing.active_children()  # of other tests
    outcomes_seen = list(outcomes(monkeypatch, "slow", "a", "die", "b", "exit", "c"))
    assert [str(outcome.job.model) for outcome in outcomes_seen] == ["slow", "a", "die", "b", "exit", "c"]
    assert [outcome.status for outcome in outcomes_seen] == [0, 0, 3, 0, 3, 0]
    assert outcomes_seen[2].error == "die: the process that converted it was ended by SIGSEGV"
    assert outcomes_seen[4].error == "exit: the process that converted it ended with exit status 7"
    assert set(multiprocessing.active_children()) <= set(before)


def test_an_interrupt_ends_all(monkeypatch):
    before = multiprocessing.active_children()
    outcomes_seen = outcomes(monkeypatch, "a", "sleep", "sleep")
    assert str(next(outcomes_seen).job.model) == "a"
    with pytest.raises(KeyboardInterrupt):
        outcomes_seen.throw(KeyboardInterrupt())
    assert set(multiprocessing.active_children()) <= set(before)


def test_many_models_in_two_processes(tmp_path, capfd):
    for name in ("a.onnx", "b.onnx"):
        onnx.save(onnx.parser.parse_model(MODEL), tmp_path / name)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    record = tmp_path / "r.json"
    assert cli.main([str(tmp_path), "-v", "--no-verify", "--prefer", "size", "--jobs", "2", "--json", str(record)]) == 2
    stdout, stderr = capfd.readouterr()
    unwrapped = "".join(stdout.split())  # a long folder name is broken into lines
    assert unwrapped.index("a.onnx->") < unwrapped.index("b.onnx->")
    assert "3 models: 2 converted, 1 failed" in stdout
    assert "bad.onnx: not an ONNX model" in stderr
    assert "casts inserted" in stderr, "log messages of the processes"
    assert [entry["exit_status"] for entry in json.loads(record.read_text())] == [0, 0, 2]
    assert {path.name for path in tmp_path.iterdir()} == {
        *("a.onnx", "b.onnx", "bad.onnx", "r.json"),
        *("a.fp16.onnx", "b.fp16.onnx"),
    }


def test_pages_of_several_processes_have_pictures(tmp_path):
    for name in ("a", "b"):
        onnx.save(onnx.parser.parse_model(MODEL), tmp_path / f"{name}.onnx")
    page = tmp_path / "report.html"
    assert cli.main([str(tmp_path), "--no-verify", "--jobs", "2", "--quiet", "--report", str(page)]) == 0
    assert page.read_text().count('class="graph"') == 2
