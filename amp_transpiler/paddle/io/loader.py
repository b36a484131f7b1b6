"""`DataLoader` yields batches of a data set, which workers make ahead."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.io.dataset import IterableDataset
from amp_transpiler.paddle.io.generator_loader import GeneratorLoader
from amp_transpiler.paddle.io.sampler import BatchSampler
from amp_transpiler.program.program import Variable

__all__ = ["DataLoader", "WorkerInfo", "default_collate_fn", "get_worker_info"]

_local = threading.local()


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Describes a worker of a loader.

    Attributes:
        id: its number.
        num_workers: how many there are.
        dataset: the data set.
    """

    id: int
    num_workers: int
    dataset: Any


def get_worker_info() -> WorkerInfo | None:
    """Return which worker of a loader this thread is, None outside of workers."""
    return getattr(_local, "info", None)


def default_collate_fn(batch: Sequence[Any]) -> Any:
    """Return samples as a batch: arrays and numbers stacked, lists and dictionaries part by part.

    Raises:
        InputError: samples differ in shape or structure.
    """
    first = batch[0]
    if isinstance(first, dict):
        return {key: default_collate_fn([_part(sample, key) for sample in batch]) for key in first}
    if isinstance(first, (list, tuple)):
        if any(len(sample) != len(first) for sample in batch):
            raise InputError(f"samples of one batch must have as many parts, got {sorted({len(s) for s in batch})}")
        return [default_collate_fn(list(parts)) for parts in zip(*batch, strict=True)]
    if isinstance(first, (str, bytes)):
        return list(batch)
    arrays = [np.asarray(sample) for sample in batch]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise InputError(
            f"samples of one batch must have one shape, got {', '.join(map(str, sorted(shapes)))}: pad them, or give "
            "collate_fn"
        )
    stacked = np.stack(arrays)
    return stacked.astype(np.float32) if isinstance(first, float) else stacked


def _part(sample: Any, key: Any) -> Any:
    if key not in sample:
        raise InputError(f"samples of one batch must have the same keys, and one lacks {key!r}")
    return sample[key]


class DataLoader:
    """Yields batches of a data set, in its order or a drawn one.

    Batches are lists of arrays; dictionaries for `Executor.run` where samples are dictionaries, or with `feed_list` and
    `return_list=False`. It can be gone through again and again; what is drawn depends on `seed` and the epoch.

    Args:
        dataset: a `Dataset`, anything with `len` and indices, or an `IterableDataset`.
        feed_list: variables or names that the parts of a sample are fed to.
        places: no effect.
        return_list: False for dictionaries by the names of `feed_list`.
        batch_sampler: yields the numbers of each batch; instead of the four that follow.
        batch_size: samples of a batch; None for samples as they are.
        shuffle: whether the order is drawn anew for each epoch.
        drop_last: whether a last batch that is smaller is left out.
        collate_fn: makes a batch of a list of samples; `default_collate_fn` unless given.
        num_workers: threads that make batches ahead, in the order in which they come out; 0 for none.
        use_buffer_reader: no effect.
        prefetch_factor: how many batches each worker is ahead.
        use_shared_memory: no effect: workers are threads.
        timeout: seconds to wait for a batch of a worker; 0 for as long as it takes.
        worker_init_fn: called with its number in each worker.
        persistent_workers: no effect.

    Raises:
        InputError: `return_list=False` without `feed_list`, or a batch sampler beside `batch_size`, `shuffle` or
            `drop_last`; or an iterable data set that is to be shuffled.
        OptionError: a count is negative.
    """

    def __init__(
        self,
        dataset: Any,
        feed_list: Sequence[Variable | str] | None = None,
        places: Any = None,
        return_list: bool = True,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        batch_size: int | None = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        use_buffer_reader: bool = True,
        prefetch_factor: int = 2,
        use_shared_memory: bool = True,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        persistent_workers: bool = False,
    ) -> None:
        del places, use_buffer_reader, use_shared_memory, persistent_workers
        if not return_list and not feed_list:
            raise InputError("DataLoader: return_list=False needs feed_list, the inputs that batches are fed to")
        if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
            raise InputError(f"DataLoader: dataset must be a Dataset, or have len and indices, got {dataset!r:.80}")
        if batch_size is not None and batch_size < 1:
            raise OptionError(f"DataLoader: batch_size must be 1 or more, or None, got {batch_size}")
        if num_workers < 0 or prefetch_factor < 1 or timeout < 0:
            raise OptionError(
                "DataLoader: num_workers and timeout must not be negative, and prefetch_factor be 1 or more"
            )
        self.dataset = dataset
        self.names = [item if isinstance(item, str) else item.name for item in feed_list or ()]
        self.return_list, self.collate_fn = return_list, collate_fn or default_collate_fn
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self.timeout, self.worker_init_fn = timeout or None, worker_init_fn
        self.batch_size, self.drop_last = batch_size, drop_last
        self.batch_sampler = self._sampler(batch_sampler, shuffle)

    def _sampler(self, batch_sampler: Iterable[Sequence[int]] | None, shuffle: bool) -> Any:
        if isinstance(self.dataset, IterableDataset) or not hasattr(self.dataset, "__getitem__"):
            if shuffle or batch_sampler is not None:
                raise InputError(
                    "DataLoader: an iterable data set has an order of its own: leave out shuffle and samplers"
                )
            return None
        if batch_sampler is not None:
            if self.batch_size != 1 or shuffle or self.drop_last:
                raise InputError("DataLoader: give batch_sampler, or batch_size, shuffle and drop_last")
            return batch_sampler
        return BatchSampler(self.dataset, None, shuffle, self.batch_size or 1, self.drop_last)

    def __len__(self) -> int:
        if self.batch_sampler is None:
            raise TypeError("the number of batches of an iterable data set is not known")
        return len(self.batch_sampler)

    def __call__(self) -> Iterator[Any]:
        """Return an iterator over the batches of an epoch."""
        return iter(self)

    @staticmethod
    def from_generator(
        feed_list: Sequence[Variable | str] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> GeneratorLoader:
        """Return a loader of what a generator yields, in the form of Paddle 1; its setters take the generator."""
        del capacity, use_double_buffer, use_multiprocess
        return GeneratorLoader(feed_list, iterable, return_list, drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Set which epoch is drawn next."""
        if hasattr(self.batch_sampler, "set_epoch"):
            self.batch_sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        if self.batch_sampler is None:
            return self._streamed() if self.num_workers else self._batched(iter(self.dataset))
        return self._prefetched() if self.num_workers else map(self._batch_of, self.batch_sampler)

    def _batch_of(self, numbers: Sequence[int]) -> Any:
        if self.batch_size is None:
            return self._named(self.dataset[numbers[0]])
        return self._named(self.collate_fn([self.dataset[number] for number in numbers]))

    def _named(self, batch: Any) -> Any:
        if self.return_list or isinstance(batch, dict):
            return batch
        parts = batch if isinstance(batch, (list, tuple)) else [batch]
        if len(parts) != len(self.names):
            raise InputError(
                f"DataLoader: samples have {len(parts)} parts, and feed_list has {len(self.names)} inputs: "
                f"{', '.join(self.names)}"
            )
        return dict(zip(self.names, parts, strict=True))

    def _batched(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield batches of samples that come one after the other."""
        batch: list[Any] = []
        for sample in samples:
            if self.batch_size is None:
                yield self._named(sample)
                continue
            batch.append(sample)
            if len(batch) == self.batch_size:
                yield self._named(self.collate_fn(batch))
                batch = []
        if batch and not self.drop_last:
            yield self._named(self.collate_fn(batch))

    def _prefetched(self) -> Iterator[Any]:
        """Yield batches that workers make ahead, in the sampler's order."""
        free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(self.num_workers):
            free.put(number)
        pool = ThreadPoolExecutor(self.num_workers, "loader", self._begin, (free,))
        waiting: deque[Future[Any]] = deque()
        try:
            for numbers in self.batch_sampler:
                waiting.append(pool.submit(self._batch_of, numbers))
                if len(waiting) > self.num_workers * self.prefetch_factor:
                    yield waiting.popleft().result(self.timeout)
            while waiting:
                yield waiting.popleft().result(self.timeout)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, free: queue.SimpleQueue[int]) -> None:
        """Give a worker of the pool its number."""
        self._begin_as(free.get())

    def _begin_as(self, number: int) -> None:
        _local.info = WorkerInfo(number, self.num_workers, self.dataset)
        if self.worker_init_fn is not None:
            self.worker_init_fn(number)

    def _streamed(self) -> Iterator[Any]:
        """Yield batches of an iterable data set, one of each worker in turn, each with a separate iterator."""
        stop = threading.Event()
        lanes: list[queue.Queue[Any]] = [queue.Queue(self.prefetch_factor) for _ in range(self.num_workers)]

        def put(lane: queue.Queue[Any], item: Any) -> None:
            while not stop.is_set():
                try:
                    lane.put(item, timeout=0.1)
                except queue.Full:
                    continue
                return

        def work(number: int) -> None:
            try:
                self._begin_as(number)
                for batch in self._batched(iter(self.dataset)):
                    put(lanes[number], (batch, None))
                    if stop.is_set():
                        return
                put(lanes[number], (None, StopIteration()))
            except Exception as error:  # noqa: BLE001  # raised where the batch is taken
                put(lanes[number], (None, error))

        for number in range(self.num_workers):
            threading.Thread(target=work, args=(number,), name=f"loader_{number}", daemon=True).start()
        try:
            yield from self._in_turn(lanes)
        finally:
            stop.set()

    def _in_turn(self, lanes: list[queue.Queue[Any]]) -> Iterator[Any]:
        running = list(lanes)
        while running:
            for lane in list(running):
                batch, error = lane.get(timeout=self.timeout)
                if error is None:
                    yield batch
                elif isinstance(error, StopIteration):
                    running.remove(lane)
                else:
                    raise error


check_arguments(globals(), __all__)
