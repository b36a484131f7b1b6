"""Times the phases of a conversion, and reports progress to the caller."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

__all__ = ["Clock", "Progress"]

Progress = Callable[[str, float], None]
"""Called with a phase and the fraction of it that is done."""


class Clock:
    """Times the phases of one conversion.

    Attributes:
        phases: phase -> seconds.

    Args:
        progress: called when a phase starts, progresses or ends; None for no calls.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._start = time.perf_counter()
        self._progress = progress
        self.phases: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block. The seconds of a phase that is entered again are added."""
        start = time.perf_counter()
        self.tell(name, 0.0)
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - start
            self.tell(name, 1.0)

    def tell(self, name: str, fraction: float) -> None:
        """Report that `fraction` of phase `name` is done."""
        if self._progress is not None:
            self._progress(name, fraction)

    def total(self) -> float:
        """Return the seconds since the conversion began."""
        return time.perf_counter() - self._start
