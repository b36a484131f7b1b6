"""Calls a function when something takes too long, in one thread for everything that is watched.

A conversion asks its child process dozens of times. A `threading.Timer` for each question costs a thread, whose start
the asking thread waits for: about a millisecond on a busy machine.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["Watchdog"]


class Watchdog:
    """Watches one block at a time. Its thread starts with the first block and ends with `close`."""

    def __init__(self, expire: Callable[[], None]) -> None:
        """Watch nothing yet.

        Args:
            expire: called once for each block that takes too long, in the watchdog's thread.
        """
        self._expire = expire
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._wakes_at = float("inf")
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextlib.contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Call `expire` if the block takes longer; after the block it is not called for it any more."""
        with self._changed:
            self._deadline = time.monotonic() + seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="amp_transpiler watchdog", daemon=True)
                self._thread.start()
            elif self._deadline < self._wakes_at:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                # The thread is not woken: it looks again at the time that it waits for, which costs less.
                self._deadline = None

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                if self._deadline is not None and self._deadline <= time.monotonic():
                    self._deadline = None
                    self._expire()
                self._wakes_at = float("inf") if self._deadline is None else self._deadline
                self._changed.wait(None if self._deadline is None else self._deadline - time.monotonic())
