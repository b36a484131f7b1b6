"""Finds the interpreter that holds each of two releases of ONNX Runtime, among those that a user names."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from amp_transpiler.child_process.interpreter import Interpreter
from amp_transpiler.diagnosis.releases.both import Both
from amp_transpiler.errors import InputError, visible
from amp_transpiler.wheels import installed_version

__all__ = ["interpreters_of"]


@contextlib.contextmanager
def interpreters_of(old: str, new: str, paths: Sequence[str]) -> Iterator[Both]:
    """Start the interpreters of two releases, and end them behind the block.

    Args:
        old: a release, such as `1.24`, which any of its patches is, or `1.24.4`.
        new: the other one.
        paths: of interpreters, in any order; for a release that is installed here there need not be one.

    Raises:
        InputError: a path is none of an interpreter with one of the releases, or a release has none.
    """
    if len(paths) > 2:
        raise InputError(f"{len(paths)} interpreters are named for two releases of ONNX Runtime: name one or two")
    with contextlib.ExitStack() as stack:
        waiting: list[Interpreter] = []
        for path in paths:
            waiting.append(Interpreter(path))
            stack.callback(waiting[-1].end)
        _check_versions(waiting, old, new)
        chosen = [_taken(release, waiting, stack) for release in (old, new)]
        if waiting:
            raise InputError(
                f"{visible(waiting[0].path)}: holds ONNX Runtime {waiting[0].version}, and so does another of the "
                "interpreters; name one for each release"
            )
        yield Both(*chosen)


def _check_versions(interpreters: Sequence[Interpreter], old: str, new: str) -> None:
    for interpreter in interpreters:
        if not _is_of(interpreter.version, old) and not _is_of(interpreter.version, new):
            raise InputError(
                f"{visible(interpreter.path)}: holds ONNX Runtime {interpreter.version}, which is neither {old} nor "
                f"{new}"
            )


def _taken(release: str, waiting: list[Interpreter], stack: contextlib.ExitStack) -> Interpreter:
    """Take the interpreter of a release, else this one."""
    for interpreter in waiting:
        if _is_of(interpreter.version, release):
            waiting.remove(interpreter)
            return interpreter
    if _is_of(installed_version() or "", release):
        installed = Interpreter(sys.executable)
        stack.callback(installed.end)
        return installed
    raise InputError(
        f"none of the interpreters holds ONNX Runtime {release}: make an environment with it, such as by "
        f"pip install 'onnxruntime=={release}.*', and name the path of its Python"
    )


def _is_of(version: str, release: str) -> bool:
    """Whether a version is a release, or a patch of it."""
    return version == release or version.startswith(f"{release}.")
