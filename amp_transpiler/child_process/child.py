"""Runs ONNX Runtime in a child process, which may die of it.

ONNX Runtime is foreign code: some models, and some made-up inputs, end the process that runs it. A child is started at
the first verified model of a process and is kept for further ones; it ends with its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from amp_transpiler import errors
from amp_transpiler.child_process.messages import receive, send
from amp_transpiler.child_process.process import started
from amp_transpiler.child_process.watchdog import Watchdog
from amp_transpiler.runtime.ort import ORT_ERRORS
from amp_transpiler.runtime.places import PLACE_VARIABLE

__all__ = [
    "RUN_ERRORS",
    "TIMED_OUT",
    "Child",
    "RuntimeCrash",
    "default_place_name",
    "hardware_name",
    "lease",
    "start_early",
]

logger = logging.getLogger(__name__)

TIMEOUT = 1800.0
"""Seconds after which a child that does not answer is killed. A large model on a slow processor takes its time."""

TIMED_OUT = "timeout"
_LONGEST_WAIT = 60.0


class RuntimeCrash(Exception):
    """ONNX Runtime ended the process that it ran in, or hung; the message says how.

    Attributes:
        signal: the signal's name, such as `SIGSEGV`; `timeout` if it hung, else `exit status N`.
    """

    def __init__(self, name: str) -> None:
        self.signal = name
        super().__init__(_DEATHS.get(name, f"ONNX Runtime crashed ({name})"))


_DEATHS = {
    "SIGKILL": "ONNX Runtime's process was killed (SIGKILL), perhaps because memory ran out",
    TIMED_OUT: f"ONNX Runtime gave no answer within {TIMEOUT:.0f} s",
}

RUN_ERRORS: tuple[type[Exception], ...] = (*ORT_ERRORS, RuntimeCrash)
"""Raised by a session in a child: ONNX Runtime refused a model or a run, or died of it."""

_RAISED_AGAIN: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (*ORT_ERRORS, errors.InputError, errors.OptionError, errors.EnvironmentProblem, MemoryError)
}
_OTHER = next(kind for kind in ORT_ERRORS if kind.__name__ == "RuntimeException")


class Child:
    """One child process. It answers one request at a time; use it from one thread at a time."""

    def __init__(self) -> None:
        self._greeted = self._expired = False
        self._died: Exception | None = None
        self._let_go: list[int] = []
        self._watchdog = Watchdog(self._expire)
        try:
            self._started = started()
        except OSError as error:
            raise _cannot_start(error) from error
        self._process, self._said = self._started.process, self._started.said

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def ask(self, operation: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Have an operation of `worker.py` carried out and return its result.

        Raises:
            RuntimeCrash: the process died, or did not answer in time and was killed.
            ORT_ERRORS, InputError, OptionError, EnvironmentProblem, MemoryError: as raised there; others become an
                ORT_ERROR.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        if self._died is not None:
            raise self._died
        try:
            with self._watchdog.limit(TIMEOUT if timeout is None else timeout):
                send(stdin, (operation, arguments))
                if not self._greeted:
                    self._greeted = receive(stdout) == "ready"
                outcome, value = receive(stdout)
        except (OSError, EOFError) as error:
            self._died = self._death()
            raise self._died from error
        except BaseException:  # such as Ctrl-C: the answer is still to come, so nothing else can be asked
            self.end()
            raise
        if outcome == "done":
            return value
        name, text = value
        kind = _RAISED_AGAIN.get(name)
        raise _OTHER(f"{name}: {text}") if kind is None else kind(text)

    def let_go(self, number: int) -> None:
        """Note that a value which the child keeps is wanted no more."""
        self._let_go.append(number)

    def unwanted(self) -> list[int]:
        """Return the numbers of kept values that are wanted no more, once each, for the child to drop."""
        numbers, self._let_go = self._let_go, []
        return numbers

    def _expire(self) -> None:
        self._expired = True
        self._process.kill()

    def _death(self) -> Exception:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)  # its pipes are closed, so it is about to end
        said = "" if self._greeted else self._last_line()
        self.end()
        status = self._process.returncode
        if self._expired:
            return RuntimeCrash(TIMED_OUT)
        if not self._greeted:
            return _cannot_start(f"it ended with exit status {status}{said}")
        return RuntimeCrash(_name_of(status))

    def _last_line(self) -> str:
        """Return what the process wrote last before it was ready, such as the error of an import."""
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f" ({errors.visible(last.strip(), 200)})" if last else ""

    def end(self) -> None:
        """Kill the process; it has nothing to lose."""
        self._watchdog.close()
        self._started.end()

    def forget(self) -> None:
        """Let go of it in a process that was forked from its parent, without ending it."""
        self._started.forget()


def _cannot_start(reason: object) -> errors.EnvironmentProblem:
    return errors.EnvironmentProblem(
        f"cannot start {sys.executable or 'Python'} as a child process to check with: {reason}; make sys.executable a "
        "Python that has this package, or convert without verification"
    )


def _name_of(status: int | None) -> str:
    try:
        return signal.Signals(-(status or 0)).name
    except ValueError:
        return f"exit status {status}"


class _Pool:
    """The children of this process: those that wait for work, and those that are lent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._places = threading.Semaphore(_most_idle())
        self._held = threading.local()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until not more threads than there are processors use children; a thread may use several."""
        depth = getattr(self._held, "depth", 0)
        # A thread that waits for another thread's conversion, within its own, must not wait for ever.
        waited = depth == 0 and self._places.acquire(timeout=_LONGEST_WAIT)
        self._held.depth = depth + 1
        try:
            yield
        finally:
            self._held.depth = depth
            if waited:
                self._places.release()

    def take(self) -> Child:
        """Return a waiting child, or a new one."""
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.is_alive():
                    return child
                self._drop(child)
        child = Child()
        with self._lock:
            self._all.add(child)
        return child

    def give_back(self, child: Child) -> None:
        """Keep a child for the next one, or drop it if it has died or enough others wait."""
        with self._lock:
            if child.is_alive() and len(self._idle) < _most_idle():
                self._idle.append(child)
            else:
                self._drop(child)

    def _drop(self, child: Child) -> None:
        self._all.discard(child)
        child.end()

    def end(self) -> None:
        """End all children."""
        with self._lock:
            for child in list(self._all):
                self._drop(child)
            self._idle.clear()

    def forget(self) -> None:
        """Start from nothing in a forked process: the children are its parent's."""
        for child in self._all:
            child.forget()
        self.__init__()  # type: ignore[misc]  # the lock too: a thread that is not here may hold it


@functools.cache
def _most_idle() -> int:
    return max(2, os.cpu_count() or 1)


_pool = _Pool()
atexit.register(_pool.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)


@contextlib.contextmanager
def lease() -> Iterator[Child]:
    """Lend a child; nobody else uses it meanwhile. One that died is replaced at the next lease."""
    with _pool.turn():
        child = _pool.take()
        try:
            yield child
        finally:
            _pool.give_back(child)


def start_early() -> None:
    """See to it that a child waits; it starts while the caller does something else."""
    with lease():
        pass


def default_place_name() -> str:
    """Return the name of the default place of `runtime.places`, decided in the child; the log says why, once."""
    return _logged_place_name(os.environ.get(PLACE_VARIABLE, ""))


@functools.cache
def _logged_place_name(setting: str) -> str:
    with lease() as child:
        name, level, line = child.ask("device", setting)
    logger.log(level, line)
    return str(name)


@functools.cache
def hardware_name(place: str) -> str:
    """Return the name of the device at a place, such as `NVIDIA H100 80GB HBM3`."""
    with lease() as child:
        return str(child.ask("hardware", place))
