"""`DataLoader.from_generator` yields feeds from a generator, in the form of Paddle 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.program.program import Variable

__all__ = ["GeneratorLoader"]

Reader = Callable[[], Iterable[Any]]


class GeneratorLoader:
    """Yields batches of a function that returns an iterable; one of the three setters says what that yields.

    Args:
        feed_list: variables or names that the parts of a sample are fed to.
        return_list: lists instead of dictionaries.
        drop_last: whether a last batch that is smaller is left out.

    Raises:
        InputError: there is no `feed_list`, and batches are to be dictionaries.
        OptionError: the loader is to feed the program by itself (`iterable=False`).
    """

    def __init__(
        self, feed_list: Sequence[Variable | str] | None, iterable: bool, return_list: bool, drop_last: bool
    ) -> None:
        if not iterable:
            raise OptionError("DataLoader.from_generator: iterable=False is not available: feed what the loader yields")
        if not feed_list and not return_list:
            raise InputError("DataLoader.from_generator needs feed_list, the inputs that batches are fed to")
        self.names = [item if isinstance(item, str) else item.name for item in feed_list or ()]
        self.return_list, self.drop_last = return_list, drop_last
        self._batches: Callable[[], Iterator[Sequence[Any]]] | None = None

    def set_sample_generator(self, reader: Reader, batch_size: int, drop_last: bool = True, places: Any = None) -> Self:
        """Take a function that yields samples, which are put together into batches."""
        del places
        if batch_size < 1:
            raise OptionError(f"set_sample_generator: batch_size must be 1 or more, got {batch_size}")

        def batches() -> Iterator[Sequence[Any]]:
            batch: list[Any] = []
            for sample in reader():
                batch.append(sample)
                if len(batch) == batch_size:
                    yield _stacked(batch)
                    batch = []
            if batch and not (drop_last and self.drop_last):
                yield _stacked(batch)

        self._batches = batches
        return self

    def set_sample_list_generator(self, reader: Reader, places: Any = None) -> Self:
        """Take a function that yields lists of samples, such as `paddle.batch` makes."""
        del places
        self._batches = lambda: (_stacked(samples) for samples in reader())
        return self

    def set_batch_generator(self, reader: Reader, places: Any = None) -> Self:
        """Take a function that yields batches: arrays, or lists of them."""
        del places
        self._batches = lambda: (list(b) if isinstance(b, (list, tuple)) else [b] for b in reader())
        return self

    def __call__(self) -> Iterator[Any]:
        """Return an iterator over the batches of an epoch."""
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        if self._batches is None:
            raise InputError("DataLoader.from_generator: call set_sample_generator or another of its setters first")
        return map(self._fed, self._batches())

    def _fed(self, parts: Sequence[Any]) -> Any:
        if self.return_list:
            return list(parts)
        if len(parts) != len(self.names):
            raise InputError(
                f"DataLoader.from_generator: a batch has {len(parts)} parts, and feed_list has {len(self.names)} "
                f"inputs: {', '.join(self.names)}"
            )
        return dict(zip(self.names, parts, strict=True))


def _stacked(samples: Iterable[Any]) -> list[np.ndarray]:
    rows = [sample if isinstance(sample, (list, tuple)) else [sample] for sample in samples]
    return [np.stack([np.asarray(part) for part in parts]) for parts in zip(*rows, strict=True)]
