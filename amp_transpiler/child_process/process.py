"""Starts the process of a `child.Child`, perhaps long before it is needed; so this module imports next to nothing.

A child imports numpy and ONNX Runtime before it can answer, which takes most of a small conversion's time. A command
that knows that it will want one starts it before its own imports, and both import at the same time.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from typing import IO

from amp_transpiler import errors

__all__ = ["ChildProcess", "start_ahead", "started"]

# The parent's own path, in its order: with PYTHONPATH, packages would come before the standard library.
_START = "import sys; sys.path[:] = sys.argv[1:]; from amp_transpiler.child_process.worker import main; main()"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ChildProcess:
    """A process that runs `worker.py`.

    Attributes:
        process: the process, with pipes for requests and replies.
        said: a file of what it writes to standard error until it is ready.
    """

    process: subprocess.Popen[bytes]
    said: IO[bytes]

    def end(self) -> None:
        """Kill the process; it has nothing to lose."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.said):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not written yet
                    stream.close()

    def forget(self) -> None:
        """Let go of it in a process that was forked from its parent, without ending it."""
        self.said.close()
        self.process.returncode = 0  # else `subprocess` would try to reap another process's child


def _start() -> ChildProcess:
    package = str(pathlib.Path(errors.__file__).parents[1])
    path = dict.fromkeys([*(os.fspath(pathlib.Path(entry).absolute()) for entry in sys.path), package])
    said = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the child
    try:
        process = subprocess.Popen(  # noqa: S603  this very interpreter, with a module of ours
            [sys.executable or "python", "-P", "-c", _START, *path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,  # until it is ready; then it closes its streams
            start_new_session=True,  # Ctrl-C in a terminal goes only to the parent, which then ends the child
        )
    except OSError:
        said.close()
        raise
    return ChildProcess(process, said)


class _Ahead:
    """The process that was started ahead, until a `Child` takes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: ChildProcess | None = None

    def start(self) -> None:
        with self._lock:
            if self._waiting is None:
                self._waiting = _start()

    def take(self) -> ChildProcess | None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting.process.poll() is not None:  # it has died: the next one says why
            waiting.end()
            return None
        return waiting

    def end(self) -> None:
        if (waiting := self.take()) is not None:
            waiting.end()

    def forget(self) -> None:
        if self._waiting is not None:
            self._waiting.forget()
        self.__init__()  # type: ignore[misc]  # the lock too: a thread that is not here may hold it


_ahead = _Ahead()
atexit.register(_ahead.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ahead.forget)


def start_ahead() -> None:
    """Start the process that the next `Child` takes, if none waits. Where that fails, the `Child` will say so."""
    with contextlib.suppress(OSError):
        _ahead.start()


def started() -> ChildProcess:
    """Return the process that was started ahead, or a new one.

    Raises:
        OSError: it cannot be started.
    """
    return _ahead.take() or _start()
