"""A rank that trains until rank 1 is lost in its third step.

dying.py killed|stopped|failed
"""

import os
import signal
import sys

import numpy as np

from amp_transpiler import distributed
from tests.distributed import networks

WAYS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


def main(way):
    env = distributed.init_parallel_env(timeout=12.0)
    net = networks.perceptron()
    exe = distributed.DataParallelExecutor()
    net.start(exe)
    for index, feed in enumerate(networks.batches(net, 5)):
        part = networks.share(feed, env.rank, env.world_size)
        if index == 2 and env.rank == 1:
            if way in WAYS:
                os.kill(os.getpid(), WAYS[way])
            part["label"] = np.full_like(part["label"], 99)
        exe.run(net.main, part, [net.loss], scope=net.scope)
        sys.stdout.write(f"step {index}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
