"""Switches ONNX Runtime's telemetry off before ONNX Runtime is imported.

Its wheels for Linux and macOS send what they do to Microsoft unless an environment variable says otherwise. They read
it once, while they are imported. Processes that this one starts inherit it.
"""

from __future__ import annotations

import functools
import os
import sys

__all__ = ["VARIABLE", "switch_off", "why_on"]

VARIABLE = "ORT_DISABLE_TELEMETRY"
"""The environment variable. Whoever sets it, to anything, has decided."""

# What ONNX Runtime 1.31 takes for yes, in any case and with blanks around it; everything else leaves telemetry on.
_YES = frozenset({"1", "on", "true", "y", "yes"})


@functools.cache
def switch_off() -> bool:
    """Switch ONNX Runtime's telemetry off, unless the user has decided; return whether this was in time.

    It is too late, for this process but not for its children, if ONNX Runtime has been imported: that is logged.
    """
    if VARIABLE in os.environ:
        return True
    os.environ[VARIABLE] = "1"
    if "onnxruntime" not in sys.modules:
        return True
    import logging  # takes some ms, and is seldom needed here

    logging.getLogger(__name__).warning(
        "ONNX Runtime's telemetry is on: onnxruntime was imported before amp_transpiler. "
        "Import amp_transpiler first, or set %s=1 before Python starts",
        VARIABLE,
    )
    return False


def why_on() -> str:
    """Return why ONNX Runtime sends telemetry from this process; empty if it does not."""
    if not switch_off():
        return "onnxruntime was imported before amp_transpiler"
    value = os.environ.get(VARIABLE, "")
    return "" if value.strip().lower() in _YES else f"{VARIABLE} is {value!r}"
