"""Log messages on stderr."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

__all__ = ["logging_to_stderr"]

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


@contextlib.contextmanager
def logging_to_stderr(verbose: int) -> Iterator[None]:
    """Print the package's log messages: warnings; with `verbose` 1 information, with 2 debug messages too."""
    logger = logging.getLogger("amp_transpiler")
    level, handler = logger.level, _Handler()
    logger.setLevel(_LEVELS[min(verbose, 2)])
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Handler(logging.Handler):
    """Prints log records like the command's own messages. It looks `sys.stderr` up each time: a bar replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"amp-transpile: {record.levelname.lower()}: {self.format(record)}", file=sys.stderr)
