"""Two processes that share each batch do what one process does with all of it.

The two are started once for all tests here, and take their scenarios one after the other (`worker.py`).
"""

import pickle

import numpy as np
import pytest

from amp_transpiler import static
from amp_transpiler.runtime.places import CPUPlace
from tests.distributed import networks, worker
from tests.distributed.ranks import ROOT, run_ranks

torch = pytest.importorskip("torch", reason="the ranks exchange values through torch: install the extra [distributed]")
pytestmark = pytest.mark.slow

CPU = CPUPlace()
# Alone, BatchNormalization works by rows, with more in float16; test_cut_step.py compares the same form.
TOLERANCES = {"O1": 2e-3, "O2": 2e-3, "bfloat16": 2e-2, "synchronous O2": 5e-2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder):
    """What each rank has found, and printed."""
    ended = run_ranks(2, ROOT / "tests/distributed/worker.py", folder, *worker.SCENARIOS)
    assert [status for status, _ in ended] == [0, 0], "\n".join(text for _, text in ended)
    return [pickle.loads((folder / f"rank{rank}.pickle").read_bytes()) | {"log": ended[rank][1]} for rank in range(2)]


def alone(name):
    """Losses and state of one process that trains on whole batches."""
    build, network, _ = worker.RUNS[name]
    net = build(**network)
    exe = static.Executor(CPU)
    net.start(exe)
    feeds = networks.batches(net, worker.STEPS)
    losses = [float(np.asarray(exe.run(net.main, feed, [net.loss], scope=net.scope)[0]).mean()) for feed in feeds]
    return net, losses


def compare(found, expected, tolerance):
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(
            np.asarray(found[name], np.float64), np.asarray(array, np.float64), atol=tolerance, err_msg=name
        )


def tolerance(name):
    return max((value for word, value in TOLERANCES.items() if word in name), default=1e-6)


@pytest.mark.parametrize("name", [name for name in worker.RUNS if name != "apart"])
def test_two_halves_follow_the_whole(ranks, folder, name):
    net, losses = alone(name)
    of_ranks = [rank[name]["losses"] for rank in ranks]
    np.testing.assert_allclose(np.mean(of_ranks, axis=0), losses, atol=tolerance(name))
    assert of_ranks[0] != of_ranks[1]
    saved = static.load_program_state(folder / f"{name}.safetensors")
    compare(saved, net.state(), tolerance(name))
    if "sharded" not in name:
        compare(ranks[0][name]["state"], ranks[1][name]["state"], 0)
        compare(ranks[0][name]["state"], saved, 0)


def test_a_sharded_optimizer_computes_the_same(ranks, folder):
    for plain, sharded in (("fp32", "sharded"), ("O2", "sharded O2"), ("grouped", "grouped sharded")):
        expected = ranks[0][plain]["state"]
        compare(static.load_program_state(folder / f"{sharded}.safetensors"), expected, 0)
        states = [rank[sharded]["state"] for rank in ranks]
        moments = {name for name in expected if "moment" in name or "master" in name}
        assert moments
        held = [set(state) & moments for state in states]
        assert held[0] | held[1] == moments
        assert held[0] & held[1] <= {name for name in moments if expected[name].size == 1}
        for state in states:  # parameters are on both
            compare({n: v for n, v in expected.items() if n in state}, state, 0)
            assert {name for name in expected if name.endswith((".w_0", ".b_0"))} <= set(state)


def test_batch_normalization_has_statistics_of_its_own_unless_asked(ranks):
    states = [rank["apart"]["state"] for rank in ranks]
    differ = {name for name in states[0] if not np.array_equal(states[0][name], states[1][name])}
    running = {name for name in states[0] if name.startswith("batch_norm") and name.endswith((".w_1", ".w_2"))}
    assert differ == running
    assert running
    assert "each rank uses statistics of its own; sync_batch_norm=True" in ranks[0]["log"]
    assert "each rank uses statistics of the global batch" in ranks[0]["log"]


def test_the_log_has_ranks_and_batch_sizes(ranks):
    for rank in range(2):
        start = f"rank {rank} of 2 (gloo, CPU): global batch 8 = 2 ranks x 4 samples, in"
        assert f"{start} 1 accumulation step\n" in ranks[rank]["log"]
        assert f"{start} 2 accumulation steps\n" in ranks[rank]["log"]


def test_an_overflow_on_one_rank_skips_the_step_on_all(ranks):
    first, second = (rank["overflow"] for rank in ranks)
    assert (
        [overflowed for overflowed, _, _ in first]
        == [overflowed for overflowed, _, _ in second]
        == [False, True, False]
    )
    scales = [scale for _, scale, _ in first]
    assert scales == [scale for _, scale, _ in second]
    assert scales[1] == scales[0] / 2
    for (_, _, state), (_, _, other) in zip(first, second, strict=True):
        compare(state, other, 0)
    trained = {name for name in first[0][2] if "fc" in name}
    compare({n: first[1][2][n] for n in trained}, {n: first[0][2][n] for n in trained}, 0)
    assert any(not np.array_equal(first[2][2][n], first[1][2][n]) for n in trained)


def test_initial_values_are_those_of_rank_0(ranks):
    compare(ranks[0]["first_values"], ranks[1]["first_values"], 0)


def test_dropout_masks_differ_between_ranks_steps_and_micro_batches(ranks):
    masks = [value for rank in ranks for both in rank["masks"]["values"] for value in np.split(both, 2)]
    assert len(masks) == 8
    assert all(0.2 < mask.mean() < 0.8 for mask in masks)
    for index, mask in enumerate(masks):
        assert all(not np.array_equal(mask, other) for other in masks[:index])
    for rank in ranks:  # the seed is the program's on all ranks, and each micro-batch is a random step
        assert rank["masks"]["before"]["@random_seed@"] == rank["masks"]["after"]["@random_seed@"]
        assert rank["masks"]["after"]["@random_step@"] == 4


def test_a_resumed_run_is_bit_identical(ranks, folder):
    for sharded in (False, True):
        straight, again = (static.load_program_state(folder / f"{kind}_{sharded}") for kind in ("straight", "again"))
        compare(again, straight, 0)
        for rank in ranks:
            first, second = rank["resumed"][sharded]
            compare(second, first, 0)


def test_one_process_reads_a_checkpoint_of_several(ranks, folder):
    net = networks.equal_layers(level="O2", dropout=0.2, **worker.SCALED)
    exe = static.Executor(CPU)
    net.start(exe)
    static.load(net.main, folder / "resumed_True", net.scope)
    compare(net.state(), static.load_program_state(folder / "resumed_True"), 0)
    exe.run(net.main, next(networks.batches(net, 1)), [], scope=net.scope)


def test_errors_are_the_same_on_every_rank(ranks):
    for rank in ranks:
        messages = rank["errors"]
        assert messages["unequal"][0] == "DistributedError"
        assert "the program of rank 1 is not that of rank 0" in messages["unequal"][1]
        assert messages["missing file"][0] == "InputError"
        assert "nothing.safetensors" in messages["missing file"][1]
        assert messages["not finite"][0] == "OptionError"
        assert messages["place"][0] == "OptionError"
        assert messages["batches"][0] == "DistributedError"
        assert "rank 0 'x': 3, 'label': 3; rank 1 'x': 2, 'label': 2" in messages["batches"][1]
        assert messages["kept"]
        assert messages["goes on"]
        assert messages["mean"] == 0.5
