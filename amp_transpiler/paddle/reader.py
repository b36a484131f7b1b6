"""Paddle's older way to feed data, `paddle.batch` and `paddle.reader`: a reader is a function that yields samples."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

from amp_transpiler.errors import OptionError

__all__ = ["batch", "cache", "chain", "compose", "firstn", "map_readers", "shuffle"]

Reader = Callable[[], Iterator[Any]]


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Reader:
    """Return a reader of lists of samples.

    Args:
        reader: yields samples.
        batch_size: samples in a list.
        drop_last: leave out a last list that is shorter.

    Raises:
        OptionError: `batch_size` is not positive.
    """
    if batch_size < 1:
        raise OptionError(f"batch: batch_size must be 1 or more, got {batch_size}")

    def batches() -> Iterator[list[Any]]:
        samples = reader()
        while chunk := list(itertools.islice(samples, batch_size)):
            if len(chunk) == batch_size or not drop_last:
                yield chunk

    return batches


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """Return a reader that shuffles each `buf_size` samples, with Python's `random`."""

    def shuffled() -> Iterator[Any]:
        samples = reader()
        while chunk := list(itertools.islice(samples, buf_size)):
            random.shuffle(chunk)
            yield from chunk

    return shuffled


def firstn(reader: Reader, n: int) -> Reader:
    """Return a reader of the first `n` samples."""
    return lambda: itertools.islice(reader(), n)


def chain(*readers: Reader) -> Reader:
    """Return a reader of the samples of the first reader, then those of the second, and so on."""
    return lambda: itertools.chain.from_iterable(reader() for reader in readers)


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """Return a reader whose samples have the fields of one sample of each reader.

    Args:
        readers: each yields a field, or a tuple of fields.
        check_alignment: raise ValueError if one of them ends before the others; else the shortest counts.
    """

    def composed() -> Iterator[tuple[Any, ...]]:
        for parts in zip(*(reader() for reader in readers), strict=check_alignment):
            yield tuple(field for part in parts for field in (part if isinstance(part, tuple) else (part,)))

    return composed


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """Return a reader of `func` of one sample of each reader."""
    return lambda: map(func, *(reader() for reader in readers))


def cache(reader: Reader) -> Reader:
    """Return a reader that keeps all samples in memory; they are read once, in this call."""
    samples = tuple(reader())
    return lambda: iter(samples)
