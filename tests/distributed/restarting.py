"""A rank that trains six steps with a checkpoint after each; in the first attempt rank 1 is killed after three.

restarting.py FOLDER
"""

import os
import pathlib
import signal
import sys

from amp_transpiler import distributed
from tests.distributed import networks


def main(folder):
    env = distributed.init_parallel_env(timeout=30.0)
    net = networks.perceptron()
    exe = distributed.DataParallelExecutor(shard_optimizer=True)
    net.start(exe)
    feeds = list(networks.batches(net, 6))
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if not first:
        exe.load(net.main, folder / "checkpoint", net.scope)
        feeds = feeds[3:]
    for index, feed in enumerate(feeds):
        exe.run(net.main, networks.share(feed, env.rank, env.world_size), [net.loss], scope=net.scope)
        exe.save(net.main, folder / "checkpoint", net.scope)
        if first and index == 2 and env.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
