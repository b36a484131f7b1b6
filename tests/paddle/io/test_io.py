"""Data sets, samplers and loaders: order, batches, workers, errors."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import io
from amp_transpiler.paddle.framework.random import global_seed, seed


@pytest.fixture(autouse=True)
def _seeded():
    before = global_seed()
    seed(11)
    yield
    seed(before)


class Squares(io.Dataset):
    def __init__(self, size=10):
        self.size = size

    def __getitem__(self, index):
        return np.full(2, index, np.float32), index * index

    def __len__(self):
        return self.size


class Stream(io.IterableDataset):
    def __init__(self, size=10):
        self.size = size

    def __iter__(self):
        info = io.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.size, step))


def test_data_sets_of_data_sets():
    rows, columns = np.arange(6).reshape(3, 2), np.arange(3)
    tensors = io.TensorDataset([rows, columns])
    assert len(tensors) == 3
    np.testing.assert_array_equal(tensors[1][0], [2, 3])
    joined = io.ConcatDataset([Squares(2), Squares(3)])
    assert [joined[i][1] for i in range(5)] == [0, 1, 0, 1, 4]
    assert joined[-1][1] == 4
    with pytest.raises(IndexError):
        joined[5]
    assert len(io.ComposeDataset([tensors, Squares(3)])[2]) == 4
    assert [io.Subset(Squares(), [3, 1])[i][1] for i in range(2)] == [9, 1]
    assert list(io.ChainDataset([Stream(2), Stream(3)])) == [0, 1, 0, 1, 2]
    with pytest.raises(InputError, match=r"one length, got \[2, 3\]"):
        io.TensorDataset([np.zeros(2), np.zeros(3)])
    with pytest.raises(NotImplementedError, match="has no __getitem__"):
        io.Dataset()[0]


@pytest.mark.parametrize("lengths", [[6, 3, 1], [0.6, 0.3, 0.1]])
def test_a_random_split_has_every_sample_once(lengths):
    parts = io.random_split(Squares(10), lengths)
    assert [len(part) for part in parts] == [6, 3, 1]
    numbers = [index for part in parts for index in part.indices]
    assert sorted(numbers) == list(range(10)) != numbers
    assert numbers == [index for part in io.random_split(Squares(10), lengths) for index in part.indices]
    with pytest.raises(InputError, match="must add up to 10"):
        io.random_split(Squares(10), [3, 3])


def test_what_is_drawn_depends_on_seed_and_epoch():
    sampler = io.RandomSampler(Squares())
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(io.RandomSampler(Squares())) == first
    seed(12)
    assert list(io.RandomSampler(Squares())) != first
    assert list(io.SequenceSampler(Squares(3))) == [0, 1, 2]
    assert sorted(io.SubsetRandomSampler([4, 7, 8])) == [4, 7, 8]
    drawn = list(io.WeightedRandomSampler([0.0, 1.0, 3.0], 400))
    assert drawn.count(0) == 0
    assert 2 < drawn.count(2) / drawn.count(1) < 5
    assert len(list(io.RandomSampler(Squares(3), replacement=True, num_samples=20))) == 20


def test_batches_of_numbers():
    assert list(io.BatchSampler(Squares(5), batch_size=2)) == [[0, 1], [2, 3], [4]]
    assert list(io.BatchSampler(Squares(5), batch_size=2, drop_last=True)) == [[0, 1], [2, 3]]
    assert [len(io.BatchSampler(Squares(5), batch_size=2, drop_last=drop)) for drop in (False, True)] == [3, 2]
    assert list(io.BatchSampler(sampler=[4, 2, 0], batch_size=2)) == [[4, 2], [0]]
    parts = [io.DistributedBatchSampler(Squares(10), 2, 4, rank, shuffle=True) for rank in range(4)]
    drawn = [list(itertools.chain.from_iterable(part)) for part in parts]
    assert [len(numbers) for numbers in drawn] == [3] * 4
    assert set(itertools.chain.from_iterable(drawn)) == set(range(10))
    assert [len(part) for part in parts] == [2] * 4


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_loader_makes_batches_in_order(workers):
    loader = io.DataLoader(Squares(), batch_size=4, num_workers=workers)
    for _ in range(2):
        batches = list(loader)
        assert [batch[1].tolist() for batch in batches] == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]
        assert batches[0][0].shape == (4, 2)
        assert batches[0][1].dtype == np.int64
    assert len(loader) == 3
    shuffled = io.DataLoader(Squares(), batch_size=4, shuffle=True, num_workers=workers)
    plain = io.DataLoader(Squares(), batch_size=4, shuffle=True)
    for _ in range(2):
        assert [b[1].tolist() for b in shuffled()] == [b[1].tolist() for b in plain]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_data_set(workers):
    loader = io.DataLoader(Stream(10), batch_size=2, num_workers=workers, drop_last=True)
    batches = [batch.tolist() for batch in loader]
    if workers:
        assert batches == [[0, 2], [1, 3], [4, 6], [5, 7]]
    else:
        assert batches == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert [int(sample) for sample in io.DataLoader(Stream(3), batch_size=None)] == [0, 1, 2]
    with pytest.raises(TypeError, match="is not known"):
        len(loader)


def test_batches_as_feeds():
    loader = io.DataLoader(Squares(4), feed_list=["x", "y"], return_list=False, batch_size=4)
    (batch,) = loader
    assert list(batch) == ["x", "y"]
    nested = io.default_collate_fn([{"a": 1.5, "b": [np.zeros(2), "t"]}, {"a": 2.5, "b": [np.ones(2), "u"]}])
    assert nested["a"].dtype == np.float32
    assert nested["b"][1] == ["t", "u"]
    lengths = io.DataLoader(Squares(4), batch_size=2, collate_fn=len)
    assert list(lengths) == [2, 2]


@pytest.mark.parametrize("data_set", [Squares(), Stream()])
def test_workers_know_themselves_and_are_ahead(data_set):
    seen = []
    loader = io.DataLoader(
        data_set,
        batch_size=1,
        num_workers=2,
        worker_init_fn=lambda number: seen.append((number, threading.current_thread().name)),
        collate_fn=lambda _: io.get_worker_info().num_workers,
    )
    assert set(loader) == {2}
    assert sorted(number for number, _ in seen) == [0, 1]
    assert all(name.startswith("loader") for _, name in seen)
    assert io.get_worker_info() is None


class Broken(io.Dataset):
    def __getitem__(self, index):
        if index == 3:
            raise ValueError("sample 3 cannot be read")
        return index

    def __len__(self):
        return 6


class BrokenStream(io.IterableDataset):
    def __iter__(self):
        yield 1
        raise ValueError("sample 3 cannot be read")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data_set", [Broken(), BrokenStream()])
def test_an_error_of_a_sample_arrives(workers, data_set):
    with pytest.raises(ValueError, match="sample 3 cannot be read"):
        list(io.DataLoader(data_set, num_workers=workers))


def test_a_loader_may_be_left_early():
    for data_set in (Squares(100), Stream(100)):
        assert len(list(itertools.islice(io.DataLoader(data_set, num_workers=2), 3))) == 3


MISTAKES = {
    "no names": (lambda: io.DataLoader(Squares(), return_list=False), InputError, "needs feed_list"),
    "a stream shuffled": (lambda: io.DataLoader(Stream(), shuffle=True), InputError, "order of its own"),
    "two samplers": (
        lambda: io.DataLoader(Squares(), batch_sampler=[[1]], shuffle=True),
        InputError,
        "give batch_sampler, or",
    ),
    "negative workers": (lambda: io.DataLoader(Squares(), num_workers=-1), OptionError, "must not be negative"),
    "more names": (
        lambda: list(io.DataLoader(Squares(), feed_list=["x"], return_list=False)),
        InputError,
        "2 parts, and feed_list has 1",
    ),
    "shapes": (
        lambda: io.default_collate_fn([np.zeros(2), np.zeros(3)]),
        InputError,
        r"one shape, got \(2,\), \(3,\)",
    ),
    "keys": (lambda: io.default_collate_fn([{"a": 1}, {"b": 1}]), InputError, "lacks 'a'"),
    "lengths": (lambda: io.default_collate_fn([[1], [1, 2]]), InputError, "as many parts"),
    "no batch": (lambda: io.BatchSampler(Squares(), batch_size=0), OptionError, "batch_size must be"),
    "no source": (io.BatchSampler, InputError, "a data set, or a sampler"),
    "a rank": (lambda: io.DistributedBatchSampler(Squares(), 1, 2, 2), OptionError, "rank 2 of 2"),
    "too many": (lambda: io.RandomSampler(Squares(2), num_samples=3), OptionError, "3 of 2 samples"),
    "weights": (lambda: io.WeightedRandomSampler([0.0], 1), OptionError, "not all of them 0"),
}


@pytest.mark.parametrize(("make", "kind", "text"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(make, kind, text):
    with pytest.raises(kind, match=text):
        make()


def _samples():
    return ((np.full(2, number, np.float32), number) for number in range(5))


def test_a_loader_of_a_generator():
    loader = io.DataLoader.from_generator(feed_list=["x", "y"], capacity=4)
    with pytest.raises(InputError, match="call set_sample_generator"):
        iter(loader)
    loader.set_sample_generator(_samples, batch_size=2)
    for _ in range(2):
        assert [batch["y"].tolist() for batch in loader()] == [[0, 1], [2, 3]]
    loader.set_sample_list_generator(lambda: [list(_samples())])
    (batch,) = loader
    assert batch["x"].shape == (5, 2)
    loader.set_batch_generator(lambda: [(np.zeros(3), np.ones(3))])
    assert [sorted(batch) for batch in loader] == [["x", "y"]]
    with pytest.raises(InputError, match="1 parts, and feed_list has 2"):
        list(loader.set_batch_generator(lambda: [np.zeros(3)]))
    (rest,) = io.DataLoader.from_generator(return_list=True).set_batch_generator(lambda: [[1, 2]])
    assert rest == [1, 2]
    with pytest.raises(OptionError, match="iterable=False"):
        io.DataLoader.from_generator(["x"], iterable=False)
    with pytest.raises(InputError, match="needs feed_list"):
        io.DataLoader.from_generator()
    with pytest.raises(OptionError, match="batch_size must be"):
        loader.set_sample_generator(_samples, 0)
