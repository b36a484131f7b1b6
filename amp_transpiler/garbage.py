"""Pauses the garbage collector while many objects are made that all stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["collection_paused"]

# Python 3.12 starts with some hundred frozen objects; more were frozen by the program.
FROZEN_BY_PYTHON = min(gc.get_freeze_count(), 1000)


class Frozen:
    """Whether the program that uses this package froze objects, as a server does before it forks.

    Attributes:
        seen: True once it was seen. Python counts frozen objects one by one, which takes 0.01 s per million. A program
            that freezes many is asked once only.
    """

    seen = False


@contextlib.contextmanager
def collection_paused(*, stays: bool = False) -> Iterator[None]:
    """Pause cyclic garbage collection, also as a decorator; it goes on afterwards if it was on before.

    A graph of nodes and values is one big cycle. While it grows, Python searches it for garbage over and over and finds
    none: for a model of 4000 nodes that takes a quarter of an unverified conversion.

    Args:
        stays: whether all that is made stays for long. Then Python does not search it as young objects either: it is
            searched when all objects are.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if stays and not Frozen.seen:
            Frozen.seen = gc.get_freeze_count() > FROZEN_BY_PYTHON
            if not Frozen.seen:  # what a program froze is to remain so
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
        gc.enable()
