"""Routes the log of `onnx_ir` through the package's: it quotes names from files as they are, control characters too."""

from __future__ import annotations

import logging

from amp_transpiler.errors import visible

__all__ = ["route_log"]

logger = logging.getLogger(__name__)


class _Router(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger.log(record.levelno, "%s", visible(record.getMessage()))


def route_log() -> None:
    """Make messages of `onnx_ir` messages of this package, their hidden characters shown."""
    source = logging.getLogger("onnx_ir")
    if not any(isinstance(handler, _Router) for handler in source.handlers):
        source.addHandler(_Router())
        source.propagate = False
