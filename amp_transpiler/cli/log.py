"""Log messages and warnings on stderr, of this package and of others."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from amp_transpiler.cli import printing

__all__ = ["logging_to_stderr"]

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


@contextlib.contextmanager
def logging_to_stderr(verbose: int) -> Iterator[None]:
    """Print log messages, and Python's warnings.

    Args:
        verbose: 0: warnings; 1: this package's information too; 2: its debug messages too.
    """
    root, logger = logging.getLogger(), logging.getLogger("amp_transpiler")
    level, handler = logger.level, _Handler()
    logger.setLevel(_LEVELS[min(verbose, 2)])
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        logger.setLevel(level)


class _Handler(logging.Handler):
    """Prints log records like the command's own messages."""

    def emit(self, record: logging.LogRecord) -> None:
        printing.message(record.levelname.lower(), self.format(record))
