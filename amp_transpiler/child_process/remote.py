"""Opens sessions in a child process, with the interface of `runtime.Session`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from amp_transpiler.child_process.child import Child, RuntimeCrash, lease
from amp_transpiler.child_process.kept_values import KeptValue
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.feeds import ValueInfo
from amp_transpiler.runtime.openable import AnyProgram, Openable, guarded, openable
from amp_transpiler.runtime.ort import SessionSettings
from amp_transpiler.runtime.places import CPUPlace, place_named

__all__ = [
    "RemoteSession",
    "open_as_session",
    "open_by_default",
    "open_file",
    "open_on_place",
    "open_plain",
    "open_program",
    "open_source",
]


Way: TypeAlias = SessionSettings | Literal["session"] | None
"""How a model is opened: with these settings; as `amp.Session` opens it; or, None, as ONNX Runtime does by default."""


class RemoteSession:
    """A session in a child process. If that dies, the next run opens the model in a new one.

    Args:
        form: returns the model to open, and how.
        place: where.
        child: a child that has other sessions, too, and that the caller holds; None to lease one.

    Attributes:
        inputs: the model's inputs.
        outputs: the model's outputs.
    """

    def __init__(
        self,
        form: Callable[[], tuple[Openable, Way]],
        place: str,
        child: Child | None = None,
    ) -> None:
        self._form, self._place, self._shared = form, place, child
        self._resources = contextlib.ExitStack()
        self._child: Child | None = None
        self._number = 0
        self.inputs: tuple[ValueInfo, ...] = ()
        self.outputs: tuple[ValueInfo, ...] = ()
        self._open()

    def _open(self) -> None:
        with contextlib.ExitStack() as resources:
            form, way = self._form()
            if form.folder is not None:
                resources.callback(shutil.rmtree, form.folder, ignore_errors=True)
            child = resources.enter_context(lease() if self._shared is None else contextlib.nullcontext(self._shared))
            self._number, self.inputs, self.outputs = child.ask("open", form.model, way, self._place)
            resources.callback(_close, child, self._number)
            self._child, self._resources = child, resources.pop_all()

    def run(self, feeds: Mapping[str, Any], fetch: Sequence[str] | None = None) -> list[Any]:
        """Run once and return the outputs, in the order of `fetch`; see `Session.run`.

        Raises:
            InputError: the feeds do not fit.
            RUN_ERRORS: ONNX Runtime failed while running, or died of it.
        """
        results: list[Any] = self._ask("run", dict(feeds), None if fetch is None else list(fetch))
        return results

    def run_keeping(self, feeds: Mapping[str, Any], fetch: Sequence[str], staying: Collection[str]) -> dict[str, Any]:
        """Run once; some results stay in the child, for further runs there.

        Args:
            feeds: the inputs: arrays, or values that the child keeps.
            fetch: the results.
            staying: those that stay.

        Returns:
            Name -> array, or `KeptValue`.

        Raises:
            InputError: the feeds do not fit.
            RUN_ERRORS: ONNX Runtime failed while running, or died of it.
        """
        if not fetch:
            return {}
        child = self._opened()
        results = self._ask("run_keeping", dict(feeds), list(fetch), set(staying), child.unwanted())
        return {
            name: KeptValue(child, value) if name in staying else value
            for name, value in zip(fetch, results, strict=True)
        }

    def measure(
        self, feeds: Mapping[str, Any], names: Sequence[str], smallest: float, staying: Sequence[str]
    ) -> tuple[list[Any], list[KeptValue]]:
        """Run once, and return only what is measured of float32 results, so that few bytes travel.

        Args:
            feeds: the inputs: arrays, or values that the child keeps.
            names: the results to measure.
            smallest: the magnitude below which a number would become zero.
            staying: results that stay in the child.

        Returns:
            What `magnitudes.measure` tells of each, and the results kept.

        Raises:
            InputError: the feeds do not fit.
            RUN_ERRORS: ONNX Runtime failed while running, or died of it.
        """
        child = self._opened()
        measured, values = self._ask("measure", dict(feeds), list(names), smallest, list(staying), child.unwanted())
        return measured, [KeptValue(child, value) for value in values]

    def compare(
        self,
        feeds: Mapping[str, Any],
        triples: Sequence[tuple[str, str, str]],
        low: LowFormat,
        staying: Sequence[str],
        before: Mapping[str, Any],
    ) -> tuple[list[Any], list[KeptValue]]:
        """Run once, and return only how results differ from each other, so that few bytes travel.

        Args:
            feeds: the inputs: arrays, or values that the child keeps.
            triples: names of results: what should come out, what does, and what does of the right inputs.
            low: the format that numbers are rounded to.
            staying: results that stay in the child.
            before: those of the triples' values that an earlier run has left in the child.

        Returns:
            What `differences.measured` tells of each triple, and the results kept.

        Raises:
            InputError: the feeds do not fit.
            RUN_ERRORS: ONNX Runtime failed while running, or died of it.
        """
        child = self._opened()
        facts, values = self._ask(
            "compare",
            dict(feeds),
            list(triples),
            low.numpy,
            low.smallest,
            list(staying),
            dict(before),
            child.unwanted(),
        )
        return facts, [KeptValue(child, value) for value in values]

    def _opened(self) -> Child:
        if self._child is None:
            self._open()
        assert self._child is not None
        return self._child

    def _ask(self, operation: str, *arguments: Any) -> Any:
        """Have an operation carried out on this session; it is closed if the child dies of it."""
        child = self._opened()
        try:
            return child.ask(operation, self._number, *arguments)
        except RuntimeCrash:
            self.close()
            raise

    def close(self) -> None:
        """Close it in the child, which goes back to the others."""
        self._child = None
        self._resources.close()


def _sharing(settings: SessionSettings) -> SessionSettings:
    """Return settings for few runs, one session after the other: each takes the memory that the last one has left."""
    return dataclasses.replace(settings, shared_memory=True, planned=False, reuses=False)


def _close(child: Child, number: int) -> None:
    if child.is_alive():
        with contextlib.suppress(RuntimeCrash):
            child.ask("close", number)


@contextlib.contextmanager
def open_program(program: AnyProgram, *, emulate: bool = True, fuse: bool = True) -> Iterator[RemoteSession]:
    """Open a program on the CPU of a child process, as `Session(program, CPUPlace(), emulate=emulate)` does here.

    Args:
        program: the program; never changed.
        emulate: turn one with low values into its emulation.
        fuse: whether ONNX Runtime may fuse nodes. In a program that rounds by casts, a fused LayerNormalization drops
            some of them, or has no kernel for the types on its two sides.

    Raises:
        ModelError: the model cannot be read.
        RUN_ERRORS: ONNX Runtime refuses the model, or dies of it.
    """

    def form() -> tuple[Openable, Way]:
        opening = openable(program, CPUPlace(), emulate=emulate)
        settings = dataclasses.replace(opening.settings, fuse=fuse and opening.settings.fuse)
        return dataclasses.replace(opening, settings=settings), _sharing(settings)

    session = RemoteSession(form, str(CPUPlace()))
    with contextlib.closing(session):
        yield session


@contextlib.contextmanager
def open_plain(program: Program, child: Child | None = None) -> Iterator[RemoteSession]:
    """Open a float32 program on the CPU of a child process as it stands: nothing is optimized, fused or merged.

    All such sessions of a child share their memory.

    Args:
        program: the program.
        child: the child, which may have other sessions; None for a separate one.

    Raises:
        RUN_ERRORS: ONNX Runtime refuses the model, or dies of it.
    """

    def form() -> tuple[Openable, Way]:
        opening = openable(program, CPUPlace(), emulate=False)
        settings = dataclasses.replace(opening.settings, optimize=False, lean=True, shared_memory=True)
        opening = dataclasses.replace(opening, settings=settings)
        return opening, settings

    session = RemoteSession(form, str(CPUPlace()), child)
    with contextlib.closing(session):
        yield session


@contextlib.contextmanager
def open_source(source: Program) -> Iterator[RemoteSession]:
    """Open a program as it was given, the file if it has one, without what ONNX Runtime would compute wrongly.

    Raises:
        RUN_ERRORS: ONNX Runtime refuses the model, or dies of it.
    """

    def form() -> tuple[Openable, Way]:
        opening = openable(source.origin, CPUPlace(), emulate=False)
        opening = dataclasses.replace(opening, settings=guarded(opening.settings, source, CPUPlace()))
        return opening, _sharing(opening.settings)

    session = RemoteSession(form, str(CPUPlace()))
    with contextlib.closing(session):
        yield session


@contextlib.contextmanager
def open_file(
    path: str | os.PathLike[str], settings: SessionSettings | None = None, place: str = "CPU"
) -> Iterator[RemoteSession]:
    """Open the model at `path` in a child process.

    Args:
        path: the model.
        settings: how; None for the options that ONNX Runtime has by default.
        place: where, such as `CPU` or `CUDA:0`.

    Raises:
        RUN_ERRORS: ONNX Runtime refuses the model, or dies of it.
    """
    form = Openable(os.fspath(pathlib.Path(path).absolute()), settings or SessionSettings())
    session = RemoteSession(lambda: (form, settings), place)
    with contextlib.closing(session):
        yield session


@contextlib.contextmanager
def open_as_session(path: str | os.PathLike[str], place: str) -> Iterator[RemoteSession]:
    """Open the model at `path` in a child process as `amp.Session(path, place)` does, with its options and CUDA graph.

    Args:
        path: the model.
        place: where, such as `CUDA:0`.

    Raises:
        RUN_ERRORS: ONNX Runtime refuses the model, or dies of it.
    """
    form = Openable(os.fspath(pathlib.Path(path).absolute()), SessionSettings())
    session = RemoteSession(lambda: (form, "session"), place)
    with contextlib.closing(session):
        yield session


@contextlib.contextmanager
def open_by_default(program: Program, place: str, *, converted: bool = False) -> Iterator[RemoteSession]:
    """Open a program in a child process with the options that ONNX Runtime has by default.

    Args:
        program: the program.
        place: where, such as `CPU`.
        converted: it is no longer what the file that it came from holds.

    Raises:
        RUN_ERRORS: ONNX Runtime refuses the model, or dies of it.
    """

    def form() -> tuple[Openable, Way]:
        opening = openable(program if converted else program.origin, CPUPlace(), emulate=False)
        # Only a setting tells where the weights of a message lie.
        return opening, None if opening.settings.external_folder is None else opening.settings

    session = RemoteSession(form, place)
    with contextlib.closing(session):
        yield session


@contextlib.contextmanager
def open_on_place(program: Program, place: str, settings: SessionSettings) -> Iterator[RemoteSession]:
    """Open a program in a child process as it stands, on any place.

    Args:
        program: the program.
        place: where, such as `CUDA:0`.
        settings: how.

    Raises:
        RUN_ERRORS: ONNX Runtime refuses the model, or dies of it.
    """

    def form() -> tuple[Openable, Way]:
        opening = openable(program, place_named(place), emulate=False)
        return opening, dataclasses.replace(settings, external_folder=opening.settings.external_folder)

    session = RemoteSession(form, place)
    with contextlib.closing(session):
        yield session
