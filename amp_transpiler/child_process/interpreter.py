"""Runs models in another Python interpreter, which need not have this package: numpy and ONNX Runtime do."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

from amp_transpiler.child_process.child import TIMEOUT
from amp_transpiler.child_process.watchdog import Watchdog
from amp_transpiler.errors import InputError, visible

__all__ = ["Interpreter", "RunReply"]

_PROGRAM = pathlib.Path(__file__).parent / "foreign" / "run_model.py"
_LAST = 300  # characters of what it wrote last


@dataclasses.dataclass(frozen=True, slots=True)
class RunReply:
    """The outcome of running a model in another interpreter.

    Attributes:
        provider: the execution provider that came first in the session; empty if none was opened.
        stage: `load` or `run` where it failed; empty if it ran.
        message: why it failed; empty if it ran.
        unread: names of the outputs that are no arrays.
    """

    provider: str = ""
    stage: str = ""
    message: str = ""
    unread: tuple[str, ...] = ()

    @property
    def ran(self) -> bool:
        """Whether there are results."""
        return not self.message


class _Process(NamedTuple):
    running: subprocess.Popen[str]
    said: IO[str]  # what it writes to standard error


class Interpreter:
    """An interpreter with ONNX Runtime, in a process that may die of a model; then the next one starts another.

    It starts at once and is asked for its release later, so that two of them can start at the same time.

    Args:
        path: of its program.

    Raises:
        InputError: it cannot be started.
    """

    def __init__(self, path: str) -> None:
        program = shutil.which(path)
        if program is None:
            raise InputError(f"{visible(path)}: is no program that can be run; expected a Python interpreter")
        self.path = os.path.abspath(program)  # noqa: PTH100  a link of a virtual environment must stay one
        self._expired = self._is_greeted = False
        self._watchdog = Watchdog(self._expire)
        self._greeting: Mapping[str, Any] | None = None
        self._process: _Process | None = None
        try:
            self._process = self._start()
        except OSError as error:
            raise InputError(f"{visible(path)}: cannot be started as a Python interpreter: {error}") from error

    @property
    def version(self) -> str:
        """The version of its ONNX Runtime, such as `1.24.4`.

        Raises:
            InputError: it is no Python interpreter, or has no ONNX Runtime.
        """
        death = ""
        if self._greeting is None:
            death = self._greet()
        if self._greeting is None:
            raise InputError(f"{visible(self.path)}: is no Python interpreter that runs a program: {death}")
        if "missing" in self._greeting:
            missing = visible(self._greeting["missing"], _LAST)
            raise InputError(f"{visible(self.path)}: cannot import ONNX Runtime and numpy: {missing}")
        return str(self._greeting["version"])

    def run(
        self,
        model: pathlib.Path,
        feeds: Sequence[pathlib.Path],
        results: Sequence[pathlib.Path],
        *,
        outputs: Sequence[str] = (),
        optimize: bool = True,
        cuda: bool = True,
        optimized: pathlib.Path | None = None,
    ) -> RunReply:
        """Run a model.

        Args:
            model: the file of the model.
            feeds: a file of arrays a sample.
            results: where the results go, a file a sample: arrays with the numbers of `outputs` as names.
            outputs: what is fetched; empty for all outputs.
            optimize: with ONNX Runtime's default optimizations; else without any.
            cuda: on CUDA, where the interpreter has a GPU; else on the CPU.
            optimized: where the optimized graph goes.
        """
        request = {
            "model": os.fspath(model),
            "feeds": [os.fspath(path) for path in feeds],
            "results": [os.fspath(path) for path in results],
            "outputs": list(outputs),
            "optimize": optimize,
            "cuda": cuda,
            "optimized": None if optimized is None else os.fspath(optimized),
        }
        reply, death = self._ask(request)
        if reply is None:
            return RunReply(stage="run", message=death)
        return RunReply(
            str(reply.get("provider", "")),
            str(reply.get("stage", "")),
            str(reply.get("refused", "")),
            tuple(reply.get("unread", ())),
        )

    def end(self) -> None:
        """End the process, and never start another."""
        self._watchdog.close()
        self._end_process()

    def _ask(self, request: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
        """Return the reply to a request; None, and how the process ended, if it gave none."""
        if self._process is None:
            self._process = self._start()
        if not self._is_greeted and (death := self._greet()):
            return None, death
        stdin = self._process.running.stdin
        assert stdin is not None, "it is a pipe"
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        except OSError:  # it has died: the answer that does not come says how
            pass
        return self._answer()

    def _greet(self) -> str:
        """Read what a new process says first; return how it ended if it says nothing."""
        reply, death = self._answer()
        if reply is not None:
            self._greeting, self._is_greeted = reply, True
        return death

    def _answer(self) -> tuple[Mapping[str, Any] | None, str]:
        assert self._process is not None, "it was started"
        stdout = self._process.running.stdout
        assert stdout is not None, "it is a pipe"
        with self._watchdog.limit(TIMEOUT):
            line = stdout.readline()
        if not line.endswith("\n"):
            return None, self._death()
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            self._end_process()
            return None, f"it printed {visible(line.strip(), _LAST)}"
        return reply, ""

    def _start(self) -> _Process:
        said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  as long as the process
        try:
            running = subprocess.Popen(  # noqa: S603  the user names the program
                [self.path, "-E", os.fspath(_PROGRAM)],  # -E: without the PYTHONPATH of this process
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C in a terminal goes only to the parent, which then ends the process
            )
        except OSError:
            said.close()
            raise
        return _Process(running, said)

    def _expire(self) -> None:
        self._expired = True
        if self._process is not None:
            self._process.running.kill()

    def _death(self) -> str:
        """Return how the process ended, and let go of it."""
        assert self._process is not None, "it has just ended"
        process = self._process
        try:
            status = process.running.wait(5.0)  # its pipes are closed, so it is about to end
        except subprocess.TimeoutExpired:
            process.running.kill()
            status = process.running.wait()
        process.said.seek(0)
        lines = [line.strip() for line in process.said if line.strip()]
        self._end_process()
        if self._expired:
            self._expired = False
            return f"it gave no answer within {TIMEOUT:.0f} s"
        said = f" ({visible(lines[-1], _LAST)})" if lines else ""
        try:
            return f"it crashed ({signal.Signals(-status).name}){said}"
        except ValueError:
            return f"it ended with exit status {status}{said}"

    def _end_process(self) -> None:
        if self._process is None:
            return
        running, said = self._process
        running.kill()
        running.wait()
        for stream in (running.stdin, running.stdout, said):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not written yet
                    stream.close()
        self._process, self._is_greeted = None, False
