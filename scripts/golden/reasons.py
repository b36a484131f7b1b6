"""Classes of reasons: what stays the same when a sentence is reworded."""

from __future__ import annotations

__all__ = ["reason_class"]


def reason_class(reason: str) -> str:
    """Return the class of a reason."""
    return reason
