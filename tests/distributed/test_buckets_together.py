"""Several processes whose feeds are padded to buckets: they train as with the feeds as they are.

This file is the script of the ranks, too.
"""

import pathlib
import pickle
import sys

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from amp_transpiler.errors import AmpError, InputError
from amp_transpiler.paddle import distributed, nn, static
from amp_transpiler.paddle.static import Bucket

LENGTHS = (5, 7, 3, 6)
BUCKETS = {"x": Bucket(1, 0, (8,)), "y": Bucket(1, -100, (8,))}
BATCH = {"x": Bucket(0, 0, 4), "y": Bucket(0, -100, 4)}
# name -> how the executor of several processes is made; the level of mixed precision
SCRIPTS = {
    "padded": (lambda: distributed.DataParallelExecutor(bucket=BUCKETS), None),
    "sharded": (lambda: distributed.DataParallelExecutor(bucket=BUCKETS, shard_optimizer=True), None),
    "micro-batches": (lambda: distributed.DataParallelExecutor(bucket=BUCKETS, accumulate_steps=2), None),
    "plain executor": (lambda: static.Executor(bucket=BUCKETS), None),
    "mixed precision": (lambda: distributed.DataParallelExecutor(bucket=BUCKETS), "O1"),
    "as fed": (distributed.DataParallelExecutor, None),
}


def tokens(length, rank):
    random = np.random.default_rng((length, rank))
    return {"x": random.integers(1, 20, (4, length)), "y": random.integers(0, 20, (4, length, 1))}


def program(level):
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 3
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x, y = static.data("x", [None, None], "int64"), static.data("y", [None, None, 1], "int64")
        logits = nn.Linear(8, 20)(paddle.tanh(nn.Embedding(20, 8)(x)))
        loss = F.cross_entropy(logits, y, ignore_index=-100)
        optimizer = paddle.optimizer.Adam(0.05)
        if level is not None:
            optimizer = static.amp.decorate(optimizer, level=level, init_loss_scaling=64.0)
        optimizer.minimize(loss)
    return main, startup, loss, logits


def run(name, rank):
    make, level = SCRIPTS[name]
    main, startup, loss, logits = program(level)
    with static.scope_guard(static.Scope()):
        scope = static.global_scope()
        exe = make()
        exe.run(startup)
        shapes = [exe.run(main, tokens(n, rank), [loss, logits])[1].shape for n in LENGTHS]
        return shapes, {key: np.array(scope[key]) for key in main.persistables if key in scope and "moment" not in key}


def refused(rank):
    """One rank's labels cannot be padded: it says why, and the other ends, too."""
    main, startup, loss, _ = program(None)
    exe = distributed.DataParallelExecutor(bucket={"x": Bucket(1, 0.5 if rank else 0, (8,))})
    exe.run(startup)
    try:
        exe.run(main, tokens(8 if rank == 0 else 5, rank), [loss])
    except AmpError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.fixture(autouse=True)
def _alone_again():
    yield
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    pytest.importorskip("torch", reason="the ranks exchange values through torch: install the extra [distributed]")
    from tests.distributed.ranks import run_ranks

    folder = tmp_path_factory.mktemp("buckets")
    ended = run_ranks(2, __file__, folder)
    assert [status for status, _ in ended] == [0, 0], "\n".join(text for _, text in ended)
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_padded_shares_train_like_the_feeds_as_they_are(ranks, name):
    shapes, values = ranks[0][name]
    assert shapes == [(4, length, 20) for length in LENGTHS]
    for key, value in ranks[0]["as fed"][1].items():
        tolerance = 2e-2 if name == "mixed precision" else 1e-4
        np.testing.assert_allclose(values[key], value, atol=tolerance, rtol=tolerance, err_msg=key)
        np.testing.assert_array_equal(values[key], ranks[1][name][1][key], err_msg=key)


@pytest.mark.slow
def test_a_rank_that_cannot_pad_ends_the_others(ranks):
    assert "cannot hold 0.5" in ranks[1]["refused"]
    assert "DistributedError" in ranks[0]["refused"]
    assert "cannot hold 0.5" in ranks[0]["refused"]


def test_one_process_pads_too():
    pytest.importorskip("torch", reason="distributed training needs torch: install the extra [distributed]")
    shapes, _ = run("padded", distributed.init_parallel_env().rank)
    assert shapes == [(4, length, 20) for length in LENGTHS]


def test_the_batch_is_not_padded_together():
    main, _startup, loss, _ = program(None)
    buckets = static.buckets.Buckets(BATCH)
    feeds = {name: array[:3] for name, array in tokens(5, 0).items()}
    with pytest.raises(InputError, match="axis 0, from 3 to 4, is the batch"):
        buckets.fit(main, [loss.name], feeds, static.Scope(), together=True)


if __name__ == "__main__":
    place = int(distributed.init_parallel_env().rank)
    by_script = {name: run(name, place) for name in SCRIPTS}
    by_script["refused"] = refused(place)
    pathlib.Path(sys.argv[1], str(place)).write_bytes(pickle.dumps(by_script))
