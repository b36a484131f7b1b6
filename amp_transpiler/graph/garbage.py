"""Rest for the garbage collector while many objects are made that all stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["collection_paused"]


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause cyclic garbage collection, also as a decorator; it goes on afterwards if it was on before.

    A graph of nodes and values is one big cycle. While it grows, Python searches it for garbage over and over and finds
    none: for a model of 4000 nodes that takes a quarter of an unverified conversion.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
