"""The process that calls `transpile`: it makes mutants, converts them, and tells its parent what happened."""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import os
import pathlib
import resource
import select
import subprocess
import sys
import tempfile
from typing import Any

from fuzzing.attempt import Ask, Door, attempt
from fuzzing.mutations import draw, source_of_random
from fuzzing.options import draw_options
from fuzzing.outcomes import Outcome
from fuzzing.pipes import private_stdout
from fuzzing.seeds import Seed, all_seeds

DOOR = "amp_transpiler:transpile"
_ADDRESS_SPACE = 40 << 30  # bytes: beyond it an allocation fails, as it would on a smaller machine
_JUDGES_TIME = 8.0  # seconds: the conversion itself must not look slow for it


class JudgeProcess:
    """The judge in a process of its own, which may die."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, case: dict[str, Any]) -> str:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fuzzing.judge"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(case) + "\n")
            self._process.stdin.flush()
            ready, _, _ = select.select([self._process.stdout], [], [], _JUDGES_TIME)
            if not ready:
                self._process.kill()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            return f"not judged: the judge died ({self._process.wait()})"
        return str(json.loads(answer))


def run_one(task: dict[str, Any], seeds: list[Seed], folder: pathlib.Path, door: Door, judge: JudgeProcess) -> Outcome:
    """Make and convert the mutant that a task names."""
    run, index = task["run"], task["index"]
    ask = Ask(
        index,
        draw(run, index, seeds, task.get("without", ())) if "data" not in task else _mutant_of(task),
        task.get("options") or draw_options(run, index, task["verified"]),
        source_of_random(run, index, "judge").random() < task["judged"],
    )
    return attempt(ask, folder, door, judge, folder / "tmp")


def _mutant_of(task: dict[str, Any]) -> Any:
    """Return a mutant whose files are given, as minimising does."""
    from fuzzing.mutations import Drawn

    files = {name: bytes.fromhex(data) for name, data in task["files"].items()}
    return Drawn(
        task["seed"], tuple((name, 0) for name in task["steps"]), task["level"], bytes.fromhex(task["data"]), files
    )


def find_door(name: str) -> Door:
    """Return the function that `MODULE:FUNCTION` names."""
    module, _, function = name.partition(":")
    door: Door = getattr(importlib.import_module(module), function)
    return door


def main() -> None:
    """Serve tasks from stdin, one JSON line each; the first one says how."""
    answers = private_stdout()
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, resource.RLIM_INFINITY))
    setup = json.loads(sys.stdin.readline())
    folder = pathlib.Path(setup["folder"])
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    door, judge = find_door(setup["door"]), JudgeProcess()
    seeds = all_seeds(pathlib.Path(setup["corpus"]) if setup["corpus"] else None)
    for line in sys.stdin:
        task = json.loads(line)
        faulthandler.dump_traceback_later(task["patience"])
        outcome = run_one(task, seeds, folder, door, judge)
        faulthandler.cancel_dump_traceback_later()
        answers.write(json.dumps(outcome_record(outcome)) + "\n")
        answers.flush()


def outcome_record(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as plain JSON."""
    return {name: getattr(outcome, name) for name in Outcome.__dataclass_fields__}


if __name__ == "__main__":
    main()
