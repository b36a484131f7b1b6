"""Runs in the child process: opens sessions and runs them for the parent until the parent has gone.

`child.py` starts `python -m amp_transpiler.child_process.worker`; no user does. Requests come through standard input,
and replies go to what was standard output. Whatever ONNX Runtime prints is thrown away.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from amp_transpiler.child_process.messages import receive, send
from amp_transpiler.garbage import collection_paused

if TYPE_CHECKING:
    import onnxruntime

    from amp_transpiler.child_process.remote import Way
    from amp_transpiler.runtime.engines import EngineBuild, Profile
    from amp_transpiler.runtime.places import Place
    from amp_transpiler.runtime.session import Session

__all__ = ["main"]

_LARGEST = 1_900_000_000  # bytes in one file; a protobuf message ends at 2 GiB
_WATCH_SECONDS = 1.0
_REST_SECONDS = 0.5  # without a request, after which memory goes back
_KILL_ME_FIRST = "500"  # of 1000: if memory runs out, the child dies and the parent tells


class _Sessions:
    """Holds the open sessions, by a number each; a public method an operation."""

    def __init__(self) -> None:
        from amp_transpiler.child_process.values import ValueStore

        self._open: dict[int, Session] = {}
        self._plain: dict[int, onnxruntime.InferenceSession] = {}
        self._sharing: set[int] = set()  # numbers of those that share memory
        self._is_free = True  # whether what was shared has been given back
        self._values = ValueStore()
        self._next = 0

    def open(self, model: str | bytes, way: Way, place: str) -> tuple[int, Any, Any]:
        """Open a model in a way: see `remote.Way`."""
        from amp_transpiler.runtime.ort import create_plain_session
        from amp_transpiler.runtime.places import place_named
        from amp_transpiler.runtime.session import Session

        where = place_named(place)
        shares = not isinstance(way, str) and way is not None and way.shared_memory
        if shares:
            from amp_transpiler.child_process import memory as child_memory

            child_memory.share()
            self._is_free = False
        else:
            self.rest()  # it has separate memory
        model = model if isinstance(model, str) else bytes(model)
        self._next += 1
        if isinstance(way, str):
            session = _as_session(str(model), where)
        else:
            if way is not None and where.in_main_memory:  # while it waits, its cores are for the process that asked
                way = dataclasses.replace(way, spinning=False)
            opened = create_plain_session(model, where.providers()) if way is None else where.open_session(model, way)
            session, self._plain[self._next] = Session.over(opened, where), opened
        self._open[self._next] = session
        if shares:
            self._sharing.add(self._next)
        return self._next, session.inputs, session.outputs

    def run(self, number: int, feeds: Mapping[str, Any], fetch: Sequence[str] | None) -> list[Any]:
        """Run a session once."""
        return _run(self._open[number], feeds, fetch)

    def run_keeping(
        self,
        number: int,
        feeds: Mapping[str, Any],
        fetch: Sequence[str],
        staying: Collection[str],
        dropped: Sequence[int],
    ) -> list[Any]:
        """Run a session once; return the numbers of results that are kept here, and others as they are."""
        from amp_transpiler.child_process.kept_values import KeptNumber
        from amp_transpiler.child_process.values import as_python

        if not staying and not any(isinstance(value, KeptNumber) for value in feeds.values()):
            self._values.drop(dropped)
            return self.run(number, feeds, fetch)
        results = self._results(number, feeds, fetch, staying, dropped)
        return [self._values.keep(results[name]) if name in staying else as_python(results[name]) for name in fetch]

    def measure(
        self,
        number: int,
        feeds: Mapping[str, Any],
        names: Sequence[str],
        smallest: float,
        staying: Sequence[str],
        dropped: Sequence[int],
    ) -> tuple[list[Any], list[Any]]:
        """Run a session once; return what is measured of some results, and the numbers of those that are kept here."""
        from amp_transpiler.child_process.magnitudes import measure
        from amp_transpiler.child_process.values import in_place

        results = self._results(number, feeds, list(dict.fromkeys((*names, *staying))), staying, dropped)
        measured = [measure(in_place(results[name]), smallest) for name in names]
        return measured, [self._values.keep(results[name]) for name in staying]

    def compare(
        self,
        number: int,
        feeds: Mapping[str, Any],
        triples: Sequence[tuple[str, str, str]],
        dtype: Any,
        smallest: float,
        staying: Sequence[str],
        before: Mapping[str, Any],
        dropped: Sequence[int],
    ) -> tuple[list[Any], list[Any]]:
        """Run a session once; return how results differ, and the numbers of those that are kept here."""
        from amp_transpiler.child_process.differences import measured
        from amp_transpiler.child_process.values import in_memory

        names = dict.fromkeys(name for triple in triples for name in triple)
        fetched = dict.fromkeys((*(name for name in names if name not in before), *staying))
        results = self._results(number, feeds, list(fetched), staying, dropped)
        results |= {name: self._values.looked_up(value) for name, value in before.items()}
        arrays = {name: in_memory(results[name]) for name in names}
        facts = [measured(arrays[first], arrays[low], arrays[again], dtype, smallest) for first, low, again in triples]
        return facts, [self._values.keep(results[name]) for name in staying]

    def add(self, first: Any, second: Any) -> Any:
        """Return the number of the sum of two float32 values, kept ones or arrays."""
        from amp_transpiler.child_process.values import added

        return self._values.keep(added(self._values.looked_up(first), self._values.looked_up(second)))

    def _results(
        self,
        number: int,
        feeds: Mapping[str, Any],
        names: Sequence[str],
        staying: Collection[str],
        dropped: Sequence[int],
    ) -> dict[str, Any]:
        from amp_transpiler.child_process.values import run_values

        self._values.drop(dropped)
        looked_up = {name: self._values.looked_up(value) for name, value in feeds.items()}
        return run_values(self._open[number], self._plain[number], looked_up, names, staying)

    def close(self, number: int) -> None:
        """Close a session. What it shared with others waits for the next ones, until the child is idle."""
        self._open.pop(number, None)
        self._plain.pop(number, None)
        if number in self._sharing:
            self._sharing.remove(number)
            if not self._sharing:
                self._values.clear()
        _trim()

    def rest(self) -> None:
        """Give memory back that nothing lies in: a child waits as long as its parent lives."""
        if not self._is_free and not self._sharing:
            from amp_transpiler.child_process import memory as child_memory

            child_memory.give_back()
            self._is_free = True
            _trim()

    def device(self, setting: str) -> tuple[str, int, str]:
        """Return the place that sessions open on by default, and the line that the log says about it with its level.

        `setting` is the parent's environment variable: the parent may have changed it since this process began.
        """
        from amp_transpiler.runtime.places import decide_place

        decision = decide_place(setting)
        return str(decision.place), decision.level, decision.line

    def hardware(self, place: str) -> str:
        """Return the name of the device at a place."""
        from amp_transpiler.runtime.places import place_named

        return place_named(place).hardware_name()

    def optimize(self, source: str, destination: str, model_type: str, heads: int, width: int) -> None:
        """Run ONNX Runtime's transformers optimizer on a file.

        A mask stays the mask that it is: the optimizer's default for BERT takes the number of its ones for the length
        of the text, which is wrong for padding on the left. ONNX Runtime's own optimizations are left to the session.
        """
        from onnxruntime.transformers.fusion_options import AttentionMaskFormat, FusionOptions
        from onnxruntime.transformers.optimizer import optimize_model

        options = FusionOptions(model_type)
        options.attention_mask_format = AttentionMaskFormat.AttentionMask
        for name in ("enable_nhwc_conv", "enable_group_norm", "enable_skip_group_norm", "enable_bias_splitgelu"):
            setattr(options, name, False)  # for one provider only, so that nothing could be compared
        optimized = optimize_model(
            source, model_type=model_type, num_heads=heads, hidden_size=width, optimization_options=options, opt_level=0
        )
        large = sum(file.stat().st_size for file in pathlib.Path(source).parent.iterdir()) > _LARGEST
        optimized.save_model_to_file(destination, use_external_data_format=large)

    def engine_builder(self) -> tuple[str, str]:
        """Return the name of TensorRT's builder, and why it cannot be used; one of them is empty."""
        from amp_transpiler.runtime.engines import builder_name

        try:
            return builder_name(), ""
        except (ImportError, OSError) as error:
            return "", str(error) or type(error).__name__

    def build_engine(self, path: str, profile: Profile) -> EngineBuild:
        """Have TensorRT's builder build an engine of a file."""
        from amp_transpiler.runtime.engines import build_engine

        return build_engine(path, profile)

    def die(self, name: str) -> None:
        """End by a signal; for tests."""
        os.kill(os.getpid(), getattr(signal, name))

    def sleep(self, seconds: float) -> None:
        """Do nothing for a while; for tests."""
        time.sleep(seconds)


def _trim() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)


def _run(session: Session, feeds: Mapping[str, Any], fetch: Sequence[str] | None) -> list[Any]:
    """Run a session; an error of ONNX Runtime's that is not about the inputs is raised as it is."""
    from amp_transpiler.errors import InputError
    from amp_transpiler.runtime.ort import RUN_ERRORS, is_about_feeds

    try:
        return session.run(feeds, fetch)
    except InputError as error:
        cause = error.__cause__
        if isinstance(cause, RUN_ERRORS) and not is_about_feeds(cause):
            raise cause from None
        raise


def _as_session(path: str, place: Place) -> Session:
    """Open a file as users of this package do; an error of ONNX Runtime's is raised as it is."""
    from amp_transpiler.errors import InputError
    from amp_transpiler.runtime.ort import ORT_ERRORS
    from amp_transpiler.runtime.session import Session

    try:
        return Session(path, place)
    except InputError as error:
        if isinstance(error.__cause__, ORT_ERRORS):
            raise error.__cause__ from None
        raise


def main() -> None:
    """Answer requests until the parent has gone."""
    requests, replies = _private_streams()
    _settle_down()
    with collection_paused(stays=True):  # modules, functions and classes stay
        import amp_transpiler.runtime.session  # noqa: F401  while the parent is still busy with something else

    send(replies, "ready")
    sessions = _Sessions()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            if not _is_asked(requests):
                sessions.rest()
            operation, arguments = receive(requests)
            send(replies, _answer(getattr(sessions, operation), arguments))


def _is_asked(requests: BinaryIO) -> bool:
    """Wait a moment for a request; where a pipe cannot be waited for, there is none at once."""
    if sys.platform == "win32":
        return False
    return bool(select.select([requests], [], [], _REST_SECONDS)[0])


def _answer(operation: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """Carry out a request; an error goes to the parent as its class and text."""
    try:
        return "done", operation(*arguments)
    except Exception as error:  # noqa: BLE001  the parent raises it
        return "failed", (type(error).__name__, str(error))


def _private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Take standard input and output away from everybody else in this process."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    return requests, replies


def _settle_down() -> None:
    """Leave no core file, keep no folder busy, ignore Ctrl-C, die first if memory runs out, and end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir(pathlib.Path(os.sep).absolute())
    with contextlib.suppress(OSError):  # there is no such file outside of Linux
        pathlib.Path("/proc/self/oom_score_adj").write_text(_KILL_ME_FIRST, encoding="ascii")
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    """End when the parent has ended: a process that it forked may hold the pipes open."""
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    main()
