"""Doors with a fault each, to show that the fuzzer sees it: `lab/fuzz.py --door fuzzing.faults:crash`."""

from __future__ import annotations

import os
import pathlib
import time
from typing import Any

from amp_transpiler.errors import ModelError, VerificationError
from amp_transpiler.report import Report


def _report(verdict: str = "not checked: planted") -> Report:
    return Report("planted", "auto", "float16", "cuda", verdict=verdict)


class RawError(ModelError):
    """An error that does not make its message presentable, as the package's own do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._message = message

    def __str__(self) -> str:
        return self._message


def fine(_src: pathlib.Path, _dst: pathlib.Path, **_options: Any) -> Report:
    return _report()


def key_error(_src: pathlib.Path, _dst: pathlib.Path, **_options: Any) -> Report:
    raise KeyError("planted")


def own_bug(_src: pathlib.Path, _dst: pathlib.Path, **_options: Any) -> Report:
    raise VerificationError("Add 'planted': wrong type")


def long_message(_src: pathlib.Path, _dst: pathlib.Path, **_options: Any) -> Report:
    raise RawError("'planted' " * 100)


def control_characters(_src: pathlib.Path, _dst: pathlib.Path, **_options: Any) -> Report:
    raise RawError("node '\x1b[31m' is wrong")


def names_nothing(src: pathlib.Path, _dst: pathlib.Path, **_options: Any) -> Report:
    raise ModelError(f"{src}: a problem of somebody somewhere")


def clear(src: pathlib.Path, _dst: pathlib.Path, **_options: Any) -> Report:
    raise ModelError(f"{src}: node 'planted' is wrong")


def crash(_src: pathlib.Path, _dst: pathlib.Path, **_options: Any) -> Report:
    os.abort()


def hang(_src: pathlib.Path, _dst: pathlib.Path, **_options: Any) -> Report:
    time.sleep(3600)
    return _report()


def hoard(_src: pathlib.Path, _dst: pathlib.Path, **_options: Any) -> Report:
    time.sleep(len(bytearray(3_000_000_000)) / 3e9)
    return _report()


def change_source(src: pathlib.Path, _dst: pathlib.Path, **_options: Any) -> Report:
    src.write_bytes(b"planted")
    return _report()


def remove_source(src: pathlib.Path, _dst: pathlib.Path, **_options: Any) -> Report:
    src.unlink()
    raise ModelError(f"{src}: node 'planted' is wrong")


def leave_file(_src: pathlib.Path, dst: pathlib.Path, **_options: Any) -> Report:
    (dst.parent / ".planted").write_bytes(b"")
    return _report()


def write_refused(src: pathlib.Path, dst: pathlib.Path, **_options: Any) -> Report:
    dst.write_bytes(b"planted")
    raise ModelError(f"{src}: node 'planted' is wrong")
