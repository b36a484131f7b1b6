"""`Executor.train` of several processes: rank 0 writes the files, all resume from them, and all stop together.

This file is the script of the ranks, too.
"""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.paddle import distributed, static

ROWS = np.random.default_rng(4).normal(size=(16, 3)).astype("f")
RANKS, BATCH = 2, 4


def build():
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 3
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x, y = static.data("x", [None, 3]), static.data("y", [None, 1])
        loss = paddle.mean((static.nn.fc(paddle.tanh(static.nn.fc(x, 4)), 1) - y) ** 2)
        paddle.optimizer.Adam(0.05).minimize(loss)
    return main, startup


def batches(rank, world):
    for first in range(0, len(ROWS), BATCH):
        share = ROWS[first : first + BATCH][rank::world]
        yield {"x": share, "y": share[:, :1] * 2}


def train(exe, main, folder, rank, world, epochs, **options):
    log = exe.train(main, lambda: batches(rank, world), epochs, checkpoints=folder, progress=False, **options)
    return [step.loss for step in log.steps]


def of_a_rank(folder):
    folder = pathlib.Path(folder)
    env = distributed.init_parallel_env()
    losses_seen = []
    for epochs in (1, 2):  # the second call goes on from the files of the first
        main, startup = build()
        with static.scope_guard(static.Scope()):
            exe = distributed.DataParallelExecutor()
            exe.run(startup)
            losses = train(exe, main, folder / "run", env.rank, env.world_size, epochs, save_every=3, keep=2)
            losses_seen.append(
                (losses, {name: np.asarray(static.global_scope()[name]).tolist() for name in main.persistables})
            )
            if epochs == 2:  # rank 0 alone would go on for ever, rank 1 alone would stop: the mean decides for both
                measured = (lambda n: 3.0 * n) if env.rank else (lambda n: -1.0 * n)
                stopped = train(
                    exe, main, folder / "stopped", env.rank, env.world_size, 9, patience=1, evaluate=measured
                )
    (folder / f"rank{env.rank}.json").write_text(json.dumps([losses_seen, len(stopped)]))


@pytest.mark.slow
def test_ranks_train_together_and_share_one_folder(tmp_path):
    pytest.importorskip("torch", reason="the ranks exchange values through torch: install the extra [distributed]")
    from tests.distributed.ranks import run_ranks

    ended = run_ranks(RANKS, __file__, tmp_path)
    assert [status for status, _ in ended] == [0] * RANKS, "\n".join(text for _, text in ended)
    (losses_first, stopped), (other, stopped_too) = (
        json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(RANKS)
    )
    assert losses_first[1][1] == other[1][1]  # the same values on both
    assert [len(losses) for losses, _ in losses_first] == [4, 4]
    assert stopped == stopped_too == 8  # the mean of what the ranks measure is the epoch's number
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert sorted(path.name for path in (tmp_path / "run").glob("*.safetensors")) == [
        "step-000000006.safetensors",
        "step-000000008.safetensors",
    ]
    main, startup = build()
    with static.scope_guard(static.Scope()):
        exe = static.Executor(paddle.CPUPlace())
        exe.run(startup)
        train(exe, main, tmp_path / "alone", 0, 1, 2)
        for name, value in losses_first[1][1].items():
            np.testing.assert_allclose(static.global_scope()[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


if __name__ == "__main__":
    of_a_rank(sys.argv[1])
