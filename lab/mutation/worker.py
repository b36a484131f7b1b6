"""Runs tests on one mutant after the other, each in a fork of a process that has the heavy imports behind it.

Started in a scratch copy of the tree. Requests and answers are lines of JSON. Nothing of the package is imported here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

_MEMORY = 12 << 30  # bytes of address space: a mutant may grow without end
_NO_TESTS = 5  # pytest's exit status where the tests have other names under the mutant
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


class Order:
    """A pytest plugin: runs the named tests in the given order, those without a place in it before or not at all."""

    def __init__(self, tests: list[str], *, others: bool) -> None:
        self._place = {test: place for place, test in enumerate(tests)}
        self._others = others

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen = [item for item in items if self._others or item.nodeid in self._place]
        items[:] = sorted(chosen, key=lambda item: self._place.get(item.nodeid, -1))


class Calls:
    """A pytest plugin: notes the functions of the mutated modules that each test calls, and how long it takes."""

    def __init__(self, modules: dict[str, str]) -> None:
        self._modules = modules  # path of a file, name of the module
        self._called: set[str] = set()
        self.tests: dict[str, tuple[float, list[str]]] = {}

    def start(self) -> None:
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, *_: object) -> None:
        module = self._modules.get(frame.f_code.co_filename)
        if module is not None:
            self._called.add(f"{module}:{frame.f_code.co_qualname}")

    def pytest_runtest_logstart(self) -> None:
        self._called.clear()
        self._since = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.tests[nodeid] = (round(time.monotonic() - self._since, 3), sorted(self._called))


def main() -> None:
    import numpy  # noqa: F401, ICN001 # these are what takes time, and no mutant is in them
    import onnx  # noqa: F401
    import onnx_ir  # noqa: F401
    import onnxruntime  # noqa: F401
    import pytest  # noqa: F401

    _require_copy(pathlib.Path.cwd())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which kills this process
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_traced(request) if "trace" in request else _judged(request)), flush=True)


def _require_copy(folder: pathlib.Path) -> None:
    """End the process if tests would import another tree's package: every mutant would then survive."""
    package = importlib.util.find_spec("amp_transpiler")
    origin = "nowhere" if package is None or package.origin is None else package.origin
    if not pathlib.Path(origin).is_relative_to(folder):
        sys.exit(f"mutate: the tests would import amp_transpiler from {origin}, not from the mutated copy in {folder}")


def _judged(request: dict[str, Any]) -> dict[str, Any]:
    """Run tests on a mutant until one of them fails."""
    since = time.monotonic()
    answer: dict[str, Any] = {"outcome": "survived", "test": ""}
    if request["tests"]:
        with _mutated(pathlib.Path(request["path"]), request["text"]):
            code, output = _forked(request["tests"], request["timeout"], None, others=request["others"])
        if code is None:
            answer = {"outcome": "timeout", "test": ""}
        elif code not in {0, _NO_TESTS}:
            test = _FAILED.search(output)
            answer = {"outcome": "killed", "test": test[1] if test else output.strip().rpartition("\n")[2][:200]}
    return answer | {"seconds": round(time.monotonic() - since, 1)}


def _traced(request: dict[str, Any]) -> dict[str, Any]:
    """Run whole test files and answer with what each of their tests calls."""
    modules = {str(pathlib.Path(path).resolve()): module for module, path in request["trace"].items()}
    with tempfile.NamedTemporaryFile("r") as notes:
        code, output = _forked(request["files"], request["timeout"], (modules, notes.name))
        if code != 0:
            return {"error": f"exit status {code}: {output[-3000:]}"}
        return {"tests": json.loads(notes.read())}


@contextlib.contextmanager
def _mutated(path: pathlib.Path, text: str) -> Iterator[None]:
    original = path.read_text(encoding="utf-8")
    # Byte code is trusted by time and size, which may be those of the mutant before.
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        stale.unlink()
    path.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(original, encoding="utf-8")


def _forked(
    tests: list[str], timeout: float, notes: tuple[dict[str, str], str] | None, *, others: bool = False
) -> tuple[int | None, str]:
    """Run pytest in a fork; the exit status is None after a timeout and negative after a signal."""
    parent = os.getpid()
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            try:
                os.setsid()
                threading.Thread(target=_follow, args=(parent,), daemon=True).start()
                os._exit(_run(tests, output.fileno(), notes, others=others))
            except BaseException:  # noqa: BLE001 # whatever it is, the fork must not go on with its parent's work
                traceback.print_exc()
            finally:
                os._exit(70)
        status = _waited(child, time.monotonic() + timeout)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what its tests may have started, too
        if status is None:
            os.waitpid(child, 0)
        output.seek(0)
        return (None if status is None else os.waitstatus_to_exitcode(status)), output.read()


def _follow(parent: int) -> None:
    """End with the worker, together with what the tests started, when that is killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def _waited(child: int, deadline: float) -> int | None:
    pause = 0.02
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(pause)
    return None


def _run(tests: list[str], output: int, notes: tuple[dict[str, str], str] | None, *, others: bool) -> int:
    import pytest

    signal.signal(signal.SIGINT, signal.default_int_handler)  # what the tests expect
    null = os.open(os.devnull, os.O_RDONLY)
    for number, target in enumerate((null, output, output)):
        os.dup2(target, number)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow", "--tb=no"]
    if notes is None:
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        code = int(pytest.main([*options, "-x", *files], plugins=[Order(tests, others=others)]))
    else:
        calls = Calls(notes[0])
        calls.start()
        code = int(pytest.main([*options, *tests], plugins=[calls]))
        sys.settrace(None)
        pathlib.Path(notes[1]).write_text(json.dumps(calls.tests), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    main()
