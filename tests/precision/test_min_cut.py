"""The exact minimum cut, against every choice of small problems and against networkx on large ones."""

import itertools
import random
import sys

import networkx as nx
import pytest

from amp_transpiler.precision import min_cut
from amp_transpiler.precision.min_cut import CutProblem, Tensor, minimum_cut

LARGE = 1 << 44  # beyond int32, so that leading bits are solved first


def random_problem(seed, items, largest=9, tensors=None):
    """Items with and without a choice, shared casts, values and readers of fixed precision, keep-high slots."""
    rng = random.Random(seed)

    def cost():
        return rng.choice((0, 0, 1, rng.randint(0, largest)))

    low, high = [cost() for _ in range(items)], [cost() for _ in range(items)]
    for item in range(items):
        if (fate := rng.random()) < 0.2:
            (low if fate < 0.13 else high)[item] = None
    edges = []
    for _ in range(tensors or rng.randint(0, 2 * items)):
        producer = rng.choice((None, rng.randrange(items)))
        readers = tuple(rng.choices(range(items), k=rng.randint(0, min(4, items))))
        read_low, read_high = rng.random() < 0.15, rng.random() < 0.3
        edges.append(Tensor(producer, rng.random() < 0.3, readers, read_low, read_high, cost(), cost()))
    return CutProblem(low, high, edges)


def by_brute_force(problem):
    """The cheapest choice with the fewest low items; there is only one."""
    allowed = [
        [is_low for is_low, cost in ((False, high), (True, low)) if cost is not None]
        for low, high in zip(problem.low, problem.high, strict=True)
    ]
    best = [(problem.cost(low), sum(low), list(low)) for low in itertools.product(*allowed)]
    least = min(best)[:2]
    (only,) = [low for *key, low in best if tuple(key) == least]
    return only


@pytest.fixture(params=["by paths", "by scipy"])
def either_way(request, monkeypatch):
    """Small graphs are solved in one way, large ones in another."""
    monkeypatch.setattr(min_cut, "_FEW", {"by paths": sys.maxsize, "by scipy": 0}[request.param])


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("block", range(10))
def test_no_choice_is_cheaper(block):
    """And no other of the same cost has as few low items."""
    for seed in range(60 * block, 60 * block + 60):
        problem = random_problem(seed, items=1 + seed % 7)
        assert minimum_cut(problem) == by_brute_force(problem), (seed, problem)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("block", range(4))
def test_large_costs_are_exact(block):
    """They leave int32, and differ in their last bits alone."""
    for seed in range(30 * block, 30 * block + 30):
        problem = random_problem(seed, items=1 + seed % 6, largest=3)
        large = CutProblem(
            [cost and cost * LARGE + seed % 3 for cost in problem.low],
            [cost and cost * LARGE + 1 for cost in problem.high],
            [
                Tensor(t.producer, t.made_low, t.readers, t.read_low, t.read_high, t.to_low * LARGE, t.to_high * LARGE)
                for t in problem.tensors
            ],
        )
        assert minimum_cut(large) == by_brute_force(large), (seed, large)


@pytest.mark.usefixtures("either_way")
def test_opposite_edges_at_the_limit_of_int32():
    """What flows one way adds to the room the other way."""
    most = (1 << 31) - 1
    wants_low, wants_high = Tensor(0, read_low=True, to_low=most), Tensor(1, read_high=True, to_high=most)
    both = Tensor(0, readers=(1,), to_low=most, to_high=most), Tensor(1, readers=(0,), to_low=most, to_high=most)
    problem = CutProblem([0, 0], [1, 1], [wants_low, wants_high, *both])
    assert minimum_cut(problem) == by_brute_force(problem)


def by_networkx(problem):
    """The cost of the cheapest choice, by the textbook's graph: nothing contracted, no limit inside a cast."""
    graph = nx.DiGraph()
    graph.add_nodes_from(("low", "high"))

    def add(start, end, capacity=None):
        if capacity is None:
            graph.add_edge(start, end)  # unlimited
        elif not graph.has_edge(start, end):
            graph.add_edge(start, end, capacity=capacity)
        elif "capacity" in graph[start][end]:
            graph[start][end]["capacity"] += capacity

    for item, (low, high) in enumerate(zip(problem.low, problem.high, strict=True)):
        add("low", item, high)
        add(item, "high", low)
    for name, tensor in enumerate(problem.tensors):
        producer = tensor.producer if tensor.producer is not None else ("low" if tensor.made_low else "high")
        readers = [*tensor.readers, *["low"] * tensor.read_low, *["high"] * tensor.read_high]
        add(producer, ("to high", name), tensor.to_high)
        add(("to low", name), producer, tensor.to_low)
        for reader in readers:
            add(("to high", name), reader)
            add(reader, ("to low", name))
    value, (low, _) = nx.minimum_cut(graph, "low", "high")
    return value, low


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("seed", range(6))
def test_large_problems_cost_what_networkx_finds(seed):
    problem = random_problem(seed, items=120, largest=50, tensors=150)
    value, other = by_networkx(problem)
    cut = minimum_cut(problem)
    assert problem.cost(cut) == value
    assert {item for item, is_low in enumerate(cut) if is_low} <= other  # it is the smallest low side


def chain(count, seed=0):
    """A network's usual shape: every value goes on to the next item, and every fourth to one further down as well."""
    rng = random.Random(seed)
    low, high, tensors = [], [], [Tensor(readers=(0,), to_low=3, to_high=3)]
    for item in range(count):
        low.append(None if rng.random() < 0.1 else rng.randint(1, 5))
        high.append(rng.randint(2, 10))
        readers = {min(item + 1, count - 1), *((min(item + 6, count - 1),) if item % 4 == 0 else ())}
        tensors.append(Tensor(item, False, tuple(sorted(readers)), item % 9 == 0, item % 7 == 0, 4, 4))
    return CutProblem(low, high, tensors)


@pytest.mark.slow
def test_a_long_chain_costs_what_networkx_finds():
    problem = chain(3000)
    assert problem.cost(minimum_cut(problem)) == by_networkx(problem)[0]


def test_the_order_of_items_and_tensors_makes_no_difference():
    problem, rng = random_problem(3, items=60, tensors=80), random.Random(1)
    order = rng.sample(range(60), 60)  # place -> item
    place = {item: at for at, item in enumerate(order)}
    tensors = [
        Tensor(
            None if tensor.producer is None else place[tensor.producer],
            tensor.made_low,
            tuple(place[reader] for reader in reversed(tensor.readers)),
            tensor.read_low,
            tensor.read_high,
            tensor.to_low,
            tensor.to_high,
        )
        for tensor in rng.sample(problem.tensors, len(problem.tensors))
    ]
    shuffled = CutProblem([problem.low[item] for item in order], [problem.high[item] for item in order], tensors)
    assert minimum_cut(shuffled) == [minimum_cut(problem)[item] for item in order]


CASES = {
    # name: (low, high, tensors, low items)
    "nothing to decide": ([], [], [], []),
    "a tie goes high": ([1], [1], [], [False]),
    "a tie between a cast and a node goes high": ([0], [2], [Tensor(0, read_high=True, to_high=2)], [False]),
    "cheaper by one": ([0], [3], [Tensor(0, read_high=True, to_high=2)], [True]),
    "one cast for three readers": (
        [0, 0, 0],
        [1, 1, 1],
        [Tensor(readers=(0, 1, 2), to_low=2)],
        [True, True, True],
    ),
    "three casts for three readers": (
        [0, 0, 0],
        [1, 1, 1],
        [Tensor(readers=(reader,), to_low=2) for reader in range(3)],
        [False, False, False],
    ),
    "a cast that another needs anyway is free": ([0], [1], [Tensor(readers=(0,), read_low=True, to_low=5)], [True]),
    "an input made low": ([0], [0], [Tensor(made_low=True, readers=(0,), to_high=1)], [True]),
    "an item that reads its own value": ([0], [1], [Tensor(0, readers=(0,), to_low=9, to_high=9)], [True]),
    "a bridge between two that must be low": (
        [0, 5, 0],
        [None, 4, None],
        [Tensor(0, readers=(1,), to_high=1), Tensor(1, readers=(2,), to_low=1)],
        [True, True, True],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_case(name):
    low, high, tensors, expected = CASES[name]
    problem = CutProblem(low, high, tensors)
    assert minimum_cut(problem) == expected
    assert expected == [] or minimum_cut(problem) == by_brute_force(problem)


INVALID = {
    "neither": (CutProblem([None], [None]), "item 0 can be neither low nor high"),
    "negative": (CutProblem([1], [1], [Tensor(to_low=-2)]), "negative: -2"),
    "too large": (CutProblem([1 << 61], [1]), "scale them down"),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_problem_is_refused(name):
    problem, message = INVALID[name]
    with pytest.raises(ValueError, match=message):
        minimum_cut(problem)


def test_the_cost_of_an_impossible_choice():
    with pytest.raises(ValueError, match="item 0 cannot be low"):
        CutProblem([None], [1]).cost([True])


def test_the_work_grows_with_the_problem():
    """Places and edges that the solver gets: at most two inside casts for a tensor of many readers."""
    from amp_transpiler.precision import min_cut

    problem = chain(2000)
    places, count = min_cut._places(problem)
    network = min_cut._Network(count)
    for tensor in problem.tensors:
        network.add_tensor(tensor, places)
    readers = sum(len(tensor.readers) for tensor in problem.tensors)
    assert network._count <= len(problem.low) + 2 * len(problem.tensors) + 2
    assert len(network._edges) <= 2 * (readers + 2 * len(problem.tensors))
