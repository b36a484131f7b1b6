"""The commands and the script of docs/distributed.md run, in two processes that torchrun starts."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from tests.distributed.ranks import ROOT

pytest.importorskip("torch", reason="the ranks exchange values through torch: install the extra [distributed]")
pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/distributed.md").read_text(encoding="utf-8")
COMMANDS, SCRIPT = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[:2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def run(words, folder, code=0):
    variables = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE", "LOCAL_RANK"}}
    variables |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lab")]), "COLUMNS": "200"}
    done = subprocess.run(
        words,
        cwd=folder,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=400,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def test_the_commands_of_the_page_run(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn ships the digits: install the extra [test]")
    commands = [line.partition("  #")[0].strip() for line in COMMANDS.splitlines()]
    trained = [shlex.split(command) for command in commands if "train.py" in command]
    assert [words[0] for words in trained] == ["torchrun", "torchrun", "python"]
    steps = []
    for words in trained:
        start = TORCHRUN if words[0] == "torchrun" else [sys.executable]
        rest = [str(ROOT / word) if word == "examples/train.py" else word for word in words[1:]]
        rest += ["--place", "cpu"]
        said = run([*start, *rest], tmp_path)
        assert ("2 ranks: global batch 64 = 2 x 32, accumulation steps: 1" in said) == (words[0] == "torchrun")
        (end,) = re.findall(r"after (\d+) steps, \d+ of them skipped: ([\d.]+)%", said)  # one process tells
        steps.append(int(end[0]))
    assert steps == [22 * 3, 22 * 6, 22 * 8]
    assert float(end[1]) > 85


def test_two_processes_train_the_same_as_one(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn ships the digits: install the extra [test]")
    options = ["--place", "cpu", "--level", "fp32", "--model", "mlp", "--epochs", "2", "--log-every", "1"]
    script = str(ROOT / "examples/train.py")
    alone = run([sys.executable, script, *options], tmp_path)
    two = [*TORCHRUN, "--nproc-per-node", "2", script, *options, "--accumulate-steps", "2"]
    losses = [re.findall(r"step +\d+ +loss (\S+)", said) for said in (alone, run(two, tmp_path))]
    assert len(losses[0]) == 44
    assert [float(loss) for loss in losses[1]] == pytest.approx([float(loss) for loss in losses[0]], abs=2e-4)


def test_options_for_several_processes_are_refused_alone(tmp_path):
    said = run([sys.executable, str(ROOT / "examples/train.py"), "--shard-optimizer"], tmp_path, code=2)
    assert "torchrun --nproc-per-node N examples/train.py" in said


def test_the_script_of_the_page_runs(tmp_path):
    pathlib.Path(tmp_path, "script.py").write_text(SCRIPT, encoding="utf-8")
    said = run([*TORCHRUN, "--nproc-per-node", "2", "script.py"], tmp_path)
    losses = re.findall(r"^2 ranks, step (\d): loss ([\d.]+)$", said, re.MULTILINE)
    assert [step for step, _ in losses] == list("01234")
    assert all(0 < float(loss) < 10 for _, loss in losses)  # what the initial values give
    assert (tmp_path / "checkpoint.safetensors").is_file()
