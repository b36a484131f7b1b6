"""Yields the numbers of the samples, one by one (`Sampler`) or in batches (`BatchSampler`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.framework.random import global_seed

__all__ = [
    "BatchSampler",
    "DistributedBatchSampler",
    "RandomSampler",
    "Sampler",
    "SequenceSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]


class Sampler:
    """Yields numbers of samples; a subclass defines `__iter__`.

    Args:
        data_source: the data set.

    Attributes:
        epoch: how often it was gone through; what is drawn depends on it and on `seed`.
    """

    def __init__(self, data_source: Any = None) -> None:
        self.data_source = data_source
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__: define it")

    def __len__(self) -> int:
        return len(self.data_source)

    def set_epoch(self, epoch: int) -> None:
        """Set which epoch is drawn next."""
        self.epoch = int(epoch)

    def _draws(self, generator: Any = None) -> Any:
        """Return the generator of this epoch, and go to the next one."""
        self.epoch += 1
        if isinstance(generator, np.random.Generator):
            return generator
        return np.random.default_rng([global_seed() & (2**63 - 1), self.epoch - 1])


class SequenceSampler(Sampler):
    """Yields all samples in their order.

    Args:
        data_source: the data set.
    """

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))


class RandomSampler(Sampler):
    """Yields samples in an order that is drawn for each epoch.

    Args:
        data_source: the data set.
        replacement: whether a sample may come more than once.
        num_samples: how many there are; as many as the data set has unless given.
        generator: numpy's generator; one of `seed` and the epoch unless given.

    Raises:
        OptionError: more samples are asked for than there are, without replacement.
    """

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None, generator: Any = None
    ) -> None:
        super().__init__(data_source)
        self.replacement, self.generator = replacement, generator
        self.num_samples = len(data_source) if num_samples is None else int(num_samples)
        if self.num_samples < 1 or (not replacement and self.num_samples > len(data_source)):
            raise OptionError(f"RandomSampler: {self.num_samples} of {len(data_source)} samples cannot be drawn")

    def __iter__(self) -> Iterator[int]:
        draws, size = self._draws(self.generator), len(self.data_source)
        if self.replacement:
            return iter(draws.integers(0, size, self.num_samples).tolist())
        return iter(draws.permutation(size)[: self.num_samples].tolist())

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Yields some samples in an order that is drawn for each epoch.

    Args:
        indices: their numbers.
    """

    def __init__(self, indices: Sequence[int]) -> None:
        super().__init__(list(indices))

    def __iter__(self) -> Iterator[int]:
        return iter([self.data_source[place] for place in self._draws().permutation(len(self))])


class WeightedRandomSampler(Sampler):
    """Yields samples drawn in proportion to weights.

    Args:
        weights: one for each sample.
        num_samples: how many are drawn.
        replacement: whether a sample may come more than once.

    Raises:
        OptionError: a weight is negative, all are 0, or too many are asked for without replacement.
    """

    def __init__(self, weights: Sequence[float], num_samples: int, replacement: bool = True) -> None:
        super().__init__(weights)
        weight_array = np.asarray(weights, np.float64)
        if weight_array.ndim != 1 or (weight_array < 0).any() or not weight_array.sum() > 0:
            raise OptionError("WeightedRandomSampler: weights must be a list of numbers from 0 on, not all of them 0")
        if num_samples < 1 or (not replacement and num_samples > np.count_nonzero(weight_array)):
            raise OptionError(f"WeightedRandomSampler: {num_samples} samples cannot be drawn")
        self.shares, self.num_samples, self.replacement = (
            weight_array / weight_array.sum(),
            int(num_samples),
            replacement,
        )

    def __iter__(self) -> Iterator[int]:
        drawn = self._draws().choice(len(self.shares), self.num_samples, self.replacement, self.shares)
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler:
    """Yields numbers of samples in batches.

    Args:
        dataset: the data set; or give a sampler.
        sampler: yields the numbers.
        shuffle: whether the order is drawn anew for each epoch.
        batch_size: samples of a batch.
        drop_last: whether a last batch that is smaller is left out.

    Raises:
        InputError: both or neither of data set and sampler are given.
        OptionError: `batch_size` is below 1.
    """

    def __init__(
        self,
        dataset: Any = None,
        sampler: Iterable[int] | None = None,
        shuffle: bool = False,
        batch_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        if (dataset is None) == (sampler is None):
            raise InputError("BatchSampler: give a data set, or a sampler")
        if batch_size < 1:
            raise OptionError(f"BatchSampler: batch_size must be 1 or more, got {batch_size}")
        if sampler is None:
            sampler = RandomSampler(dataset) if shuffle else SequenceSampler(dataset)
        self.sampler: Any = sampler
        self.batch_size, self.drop_last = int(batch_size), drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for number in self.sampler:
            batch.append(number)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        count = len(self.sampler)
        return count // self.batch_size if self.drop_last else math.ceil(count / self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set which epoch is drawn next."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)


class DistributedBatchSampler(BatchSampler):
    """Yields batches for one of several processes: all get as many, for which some samples are repeated.

    Args:
        dataset: the data set.
        batch_size: samples of a batch of one process.
        num_replicas: the number of processes.
        rank: this one's number.
        shuffle: whether the order is drawn anew for each epoch; it is the same in all processes.
        drop_last: whether a last batch that is smaller is left out.

    Raises:
        OptionError: there is no such rank.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset, None, shuffle, batch_size, drop_last)
        self.nranks, self.local_rank = num_replicas or 1, rank or 0
        if not 0 <= self.local_rank < self.nranks:
            raise OptionError(f"DistributedBatchSampler: rank {rank} of {num_replicas} processes")
        self.num_samples = math.ceil(len(dataset) / self.nranks)

    def __iter__(self) -> Iterator[list[int]]:
        numbers = list(self.sampler)
        total = self.num_samples * self.nranks
        numbers = (numbers * math.ceil(total / max(len(numbers), 1)))[:total]
        rank_numbers = numbers[self.local_rank :: self.nranks]
        for start in range(0, len(rank_numbers), self.batch_size):
            batch = rank_numbers[start : start + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        if self.drop_last:
            return self.num_samples // self.batch_size
        return math.ceil(self.num_samples / self.batch_size)


check_arguments(globals(), __all__)
