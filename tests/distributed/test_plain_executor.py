"""Scripts as Paddle's users write them, with `fleet` and a plain `Executor`: the ranks train together.

This file is the script of the ranks, too.
"""

import pathlib
import pickle
import sys

import numpy as np
import pytest

from amp_transpiler import errors, paddle
from amp_transpiler.paddle import distributed, optimizer, static
from amp_transpiler.paddle.distributed import fleet
from amp_transpiler.runtime.distributed import joined
from amp_transpiler.runtime.places import CPUPlace, CUDAPlace

STEPS, ROWS = 4, 8
AMP = {"amp": True, "amp_configs": {"use_pure_fp16": True, "init_loss_scaling": 64.0}}
MERGE = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}}
# name -> settings of the strategy, or None for a script without fleet; optimizer
SCRIPTS = {
    "fleet": ({}, lambda: optimizer.Adam(0.05)),
    "mixed precision": (AMP, lambda: optimizer.Adam(0.05, multi_precision=True)),
    "merged": (MERGE, lambda: optimizer.Momentum(0.05)),
    "lamb": ({"lamb": True}, lambda: optimizer.Adam(0.05)),
    "clipped": ({}, lambda: optimizer.SGD(0.1, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5))),
    "scheduled": ({}, lambda: optimizer.SGD(optimizer.lr.StepDecay(0.1, 1, 0.5))),
    "without fleet": (None, lambda: optimizer.AdamW(0.05)),
    "train": ({}, lambda: optimizer.SGD(optimizer.lr.ExponentialDecay(0.1, 0.5))),
}


def batch(step, rank=0, world=1):
    x = np.random.default_rng(step).normal(size=(ROWS, 3)).astype("f")[rank::world]
    return {"x": x, "y": x[:, :1] * 2}


def run(name, rank, world):
    """Return the values after some steps; the script is the same for one process and for several."""
    settings, make = SCRIPTS[name]
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    main.random_seed = startup.random_seed = 3 + rank  # replicas that are not synchronised differ from the start
    with static.program_guard(main, startup), static.scope_guard(scope), paddle.utils.unique_name.guard():
        x, y = static.data("x", [None, 3]), static.data("y", [None, 1])
        loss = paddle.mean((static.nn.fc(paddle.tanh(static.nn.fc(x, 4)), 1) - y) ** 2)
        chosen = plain = make()
        if settings is None:
            distributed.init_parallel_env()
        else:
            strategy = fleet.DistributedStrategy()
            for key, value in settings.items():
                setattr(strategy, key, value)
            fleet.init(is_collective=True, strategy=strategy)
            chosen = fleet.distributed_optimizer(chosen, strategy)
        chosen.minimize(loss)
        exe = static.Executor()
        exe.run(startup)
        if settings and "amp" in settings:
            chosen.amp_init(exe.place)
        if name == "train":
            exe.train(main, [batch(step, rank, world) for step in range(STEPS)], 1, progress=False)
        for step in range(0 if name == "train" else STEPS):
            exe.run(main, batch(step, rank, world), [loss])
            if name == "scheduled":
                plain.learning_rate.step()
    return {key: scope[key] for key in main.persistables}


@pytest.fixture(autouse=True)
def _alone_again():
    yield
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    pytest.importorskip("torch", reason="the ranks exchange values through torch: install the extra [distributed]")
    from tests.distributed.ranks import run_ranks

    folder = tmp_path_factory.mktemp("plain")
    ended = run_ranks(2, __file__, folder)
    assert [status for status, _ in ended] == [0, 0], "\n".join(text for _, text in ended)
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_plain_executor_trains_together(ranks, name):
    alone = run(name, 0, 1)
    for key, value in alone.items():
        np.testing.assert_array_equal(ranks[0][name][key], ranks[1][name][key], err_msg=key)
        tolerance = 5e-3 if "mixed" in name else 1e-5
        np.testing.assert_allclose(ranks[0][name][key], value, atol=tolerance, rtol=tolerance, err_msg=key)


class TwoRanks:
    """A world that nothing is exchanged with."""

    rank, size, place, backend = 0, 2, CPUPlace(), "gloo"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: static.Executor(CUDAPlace(1)), r"Executor\(CUDA:1\) trains together with 1 other .* had CPU"),
        (lambda: static.Executor(check=True), r"Executor\(check=True\) is for a single process, and there are 2"),
    ],
)
def test_what_is_for_one_process_alone(make, words, monkeypatch):
    monkeypatch.setattr(CUDAPlace, "problem", lambda _: None)
    monkeypatch.setattr(joined, "joined", [TwoRanks()])
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        loss = paddle.mean(static.nn.fc(static.data("x", [2, 3]), 1))
        optimizer.SGD(0.1).minimize(loss)
    with pytest.raises(errors.OptionError, match=words):
        make().run(main, {"x": np.ones((2, 3), "f")}, [loss])


if __name__ == "__main__":
    place = int(distributed.init_parallel_env().rank)
    by_script = {name: run(name, place, 2) for name in SCRIPTS}
    pathlib.Path(sys.argv[1], str(place)).write_bytes(pickle.dumps(by_script))
