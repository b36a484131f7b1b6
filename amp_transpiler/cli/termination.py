"""Makes SIGTERM and SIGHUP end the command as Ctrl-C does: by an exception, so that unfinished files are removed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

__all__ = ["Terminated", "terminating_by_exception"]

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))  # no HUP on Windows


class Terminated(KeyboardInterrupt):
    """The process was asked to end.

    Attributes:
        number: the signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


@contextlib.contextmanager
def terminating_by_exception() -> Iterator[None]:
    """Raise `Terminated` on the first of these signals; more of them do not disturb the cleaning up.

    Signals that are ignored (`nohup`), or that somebody else handles, stay so. Only a main thread has handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in _SIGNALS if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, _: FrameType | None) -> NoReturn:
    for other in _SIGNALS:
        if signal.getsignal(other) is _raise:
            signal.signal(other, signal.SIG_IGN)
    raise Terminated(number)
