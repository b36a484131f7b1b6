"""Training on several GPUs and hosts: each process computes gradients of its share of a batch.

    from amp_transpiler import distributed, static

    distributed.init_parallel_env()
    exe = distributed.DataParallelExecutor(accumulate_steps=2)
    exe.run(startup)
    exe.run(main, feed, [loss])        # `feed` is this process's share of the batch

Start it with `torchrun --nproc-per-node 2 script.py`.
"""

from amp_transpiler.paddle.distributed.environment import (
    ParallelEnv as ParallelEnv,
    barrier as barrier,
    destroy_process_group as destroy_process_group,
    get_rank as get_rank,
    get_world_size as get_world_size,
    init_parallel_env as init_parallel_env,
    is_launched as is_launched,
    mean as mean,
)
from amp_transpiler.paddle.distributed.executor import DataParallelExecutor as DataParallelExecutor

from amp_transpiler.paddle.distributed import fleet as fleet, io as io  # isort: skip  # they need those above
