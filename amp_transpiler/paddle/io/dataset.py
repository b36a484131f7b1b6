"""Reads samples by number (`Dataset`) or one after the other (`IterableDataset`), and combines such data sets."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError
from amp_transpiler.paddle.framework.random import global_seed

__all__ = [
    "ChainDataset",
    "ComposeDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "Subset",
    "TensorDataset",
    "random_split",
]


class Dataset:
    """Reads samples by number. A subclass defines `__getitem__(index)` and `__len__()`.

    A sample is an array or a number, or several in a list, tuple or dictionary.
    """

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__: define it")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no __len__: define it")


class IterableDataset:
    """Yields samples one after the other. A subclass defines `__iter__()`.

    With workers, each goes through all samples; `get_worker_info()` tells it which part to yield.
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__: define it")


class TensorDataset(Dataset):
    """Rows of arrays: sample `i` is a tuple of row `i` of each.

    Args:
        tensors: arrays of one length.

    Raises:
        InputError: their lengths differ.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = [np.asarray(tensor) for tensor in tensors]
        lengths = {len(tensor) for tensor in self.tensors}
        if len(lengths) != 1:
            raise InputError(f"TensorDataset: the arrays must be of one length, got {sorted(lengths) or 'none'}")

    def __getitem__(self, index: int) -> Any:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class ComposeDataset(Dataset):
    """Samples of several data sets side by side: sample `i` has the parts of sample `i` of each.

    Args:
        datasets: data sets of one length.

    Raises:
        InputError: their lengths differ.
    """

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = list(datasets)
        lengths = {len(dataset) for dataset in self.datasets}
        if len(lengths) != 1:
            raise InputError(f"ComposeDataset: the data sets must be of one length, got {sorted(lengths) or 'none'}")

    def __getitem__(self, index: int) -> Any:
        parts: list[Any] = []
        for dataset in self.datasets:
            sample = dataset[index]
            parts.extend(sample if isinstance(sample, (list, tuple)) else [sample])
        return tuple(parts)

    def __len__(self) -> int:
        return len(self.datasets[0])


class ChainDataset(IterableDataset):
    """Samples of several iterable data sets, one data set after the other.

    Args:
        datasets: the data sets.
    """

    def __init__(self, datasets: Sequence[Iterable[Any]]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.datasets)


class ConcatDataset(Dataset):
    """Samples of several data sets, one data set after the other, by number.

    Args:
        datasets: the data sets, one at least.

    Raises:
        InputError: there is none.
    """

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise InputError("ConcatDataset: give at least one data set")
        self.cumulative_sizes = list(itertools.accumulate(len(dataset) for dataset in self.datasets))

    def __getitem__(self, index: int) -> Any:
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"sample {index} of {size}")
        index %= size
        number = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[number][index - (self.cumulative_sizes[number - 1] if number else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class Subset(Dataset):
    """Holds some samples of a data set.

    Args:
        dataset: the data set.
        indices: their numbers.
    """

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, list(indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(dataset: Dataset, lengths: Sequence[float], generator: Any = None) -> list[Subset]:
    """Return parts of a data set, drawn at random.

    Args:
        dataset: the data set.
        lengths: how many samples each part has, or which part of them.
        generator: numpy's generator; one of `seed`'s unless given.

    Raises:
        InputError: the lengths do not add up to that of the data set.
    """
    size, counts = len(dataset), [int(length) for length in lengths]
    if sum(lengths) <= 1.0 + 1e-9 and any(length < 1 for length in lengths):
        counts = [int(length * size) for length in lengths]
        for number in range(size - sum(counts)):
            counts[number % len(counts)] += 1
    if sum(counts) != size:
        raise InputError(f"random_split: lengths {list(lengths)} must add up to {size}")
    drawn = (generator or np.random.default_rng(global_seed())).permutation(size).tolist()
    ends = list(itertools.accumulate(counts))
    return [Subset(dataset, drawn[end - count : end]) for count, end in zip(counts, ends, strict=True)]
