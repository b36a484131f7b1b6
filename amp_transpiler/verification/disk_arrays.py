"""Keeps arrays for later: the first of them in memory, all further ones in files that are mapped into it.

What is mapped takes no memory for long: the system drops its pages where it needs room. So samples and outputs may be
many times as large as the memory, as long as each sample fits.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["Spill"]

logger = logging.getLogger(__name__)

_IN_MEMORY = 1 << 29  # bytes


class Spill:
    """Keeps samples, or outputs. Its files have no names: they end with the arrays, or with the process."""

    def __init__(self) -> None:
        self._left = _IN_MEMORY

    def kept(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return equal values, of which arrays beyond what fits into memory are mapped, and cannot be written to."""
        return {name: self._of(value) for name, value in values.items()}

    def _of(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._of(item) for item in value]
        if not isinstance(value, np.ndarray) or value.dtype.hasobject or not value.nbytes:
            return value
        if value.nbytes <= self._left:
            self._left -= value.nbytes
            return value
        try:
            return _mapped(value)
        except OSError as error:  # no room in the folder of temporary files
            logger.warning("%d bytes stay in memory, since they cannot be written to a file: %s", value.nbytes, error)
            return value


def _mapped(array: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryFile(prefix="amp_transpiler") as file:
        file.write(np.ascontiguousarray(array).data.cast("B") if array.dtype.isbuiltin == 1 else array.tobytes())
        file.flush()
        return np.memmap(file, dtype=array.dtype, mode="r", shape=array.shape).view(np.ndarray)
