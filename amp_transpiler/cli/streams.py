"""Guards standard streams, which may be closed or full, or lose their reader: a conversion goes on without them."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

__all__ = ["copy_to_stdout", "is_closed", "lenient_streams"]

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))  # in the order of their descriptors


@contextlib.contextmanager
def lenient_streams() -> Iterator[None]:
    """Let the block print without ever failing: what cannot be written to stdout or stderr is dropped."""
    _open_closed_ones()
    before = sys.stdout, sys.stderr
    for stream in before:
        if hasattr(stream, "reconfigure"):  # A name that the terminal cannot show must not end the run.
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (cast(TextIO, _Lenient(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def is_closed(stream: TextIO) -> bool:
    """Whether a standard stream was closed when the process began (`>&-`)."""
    return getattr(stream, "name", None) == os.devnull


def copy_to_stdout(file: pathlib.Path) -> None:
    """Copy a file to stdout.

    Raises:
        OSError: the reader has left, or the disk is full. Nothing more is written then.
    """
    sys.stdout.flush()
    try:
        with file.open("rb") as source:
            shutil.copyfileobj(source, sys.stdout.buffer, 1 << 20)
        sys.stdout.buffer.flush()
    except OSError:
        _silence(sys.stdout)
        raise


def _open_closed_ones() -> None:
    """Give the descriptors of closed streams the null device: a model file that got one would be printed into."""
    for descriptor, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free descriptor, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, pathlib.Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  used until the end


class _Lenient:
    """A text stream whose reader may leave. Every write is flushed, so that no failure is left for later."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._failing_quietly():
            self._stream.write(text)
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        with self._failing_quietly():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _failing_quietly(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: closed by other code
            _silence(self._stream)
            if isinstance(error, OSError) and error.errno != errno.EPIPE and self._stream is not sys.__stderr__:
                sys.stderr.write(f"amp-transpile: warning: cannot print on stdout: {error.strerror}\n")


def _silence(stream: TextIO) -> None:
    """Send to the null device what is still buffered, and all that follows."""
    with contextlib.suppress(OSError, ValueError):  # a stream in memory has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)
