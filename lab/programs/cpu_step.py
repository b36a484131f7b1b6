"""Times one training step on the CPU against PyTorch's eager mode; run by path, prints a JSON object.

    python lab/programs/cpu_step.py step NETWORK LAYERS STEPS     # seconds of a step, both, in turns
    python lab/programs/cpu_step.py compile NETWORK LAYERS        # seconds up to the end of the first step, both

One thread each, float32; processor time of the process, so that other processes count less. The first steps of both
are left out. Attention in PyTorch is `scaled_dot_product_attention`, its optimizer is as it comes.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import amp_transpiler as amp  # before onnxruntime, whose telemetry it switches off

# isort: split

import onnxruntime
import torch

from amp_transpiler import static
from programs.in_torch import loss_of, model_of, optimizer_of
from programs.ours import training_step
from programs.sizes import NETWORKS, Network, feeds_of

WARM_UP = 3


def one_thread() -> None:
    """Have PyTorch, and every session that is opened from now on, compute with one thread."""
    torch.set_num_threads(1)
    make = onnxruntime.InferenceSession.__init__

    def init(session: Any, model: Any, sess_options: Any = None, *rest: Any, **options: Any) -> None:
        sess_options = sess_options or onnxruntime.SessionOptions()
        sess_options.intra_op_num_threads = sess_options.inter_op_num_threads = 1
        make(session, model, sess_options, *rest, **options)

    onnxruntime.InferenceSession.__init__ = init


def ours(network: Network) -> Callable[[], float]:
    """Return what takes a step of ours and returns the loss; the startup program has run."""
    step, feeds, scope = training_step(network), feeds_of(network), static.Scope()
    executor = static.Executor(amp.CPUPlace())
    executor.run(step.startup, scope=scope)

    def run() -> float:
        (loss,) = executor.run(step.main, feeds, [step.loss], scope=scope)
        return float(loss)

    return run


def in_torch(network: Network) -> Callable[[], float]:
    """Return what takes a step of PyTorch's and returns the loss."""
    model = model_of(network)
    optimizer = optimizer_of(network, list(model.parameters()))
    feeds = [torch.from_numpy(array) for array in feeds_of(network).values()]

    def run() -> float:
        optimizer.zero_grad()
        loss = loss_of(model, feeds)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return run


def seconds_of(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def steps(network: Network, number: int) -> dict[str, float]:
    """Take steps of both in turns; return the medians, and the median of the ratios of neighbours."""
    both = ours(network), in_torch(network)
    for _ in range(WARM_UP):
        for run in both:
            run()
    pairs = [[seconds_of(run) for run in both] for _ in range(number)]
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"ours": mine, "torch": theirs, "ratio": statistics.median(a / b for a, b in pairs)}


def compiling(network: Network) -> dict[str, float]:
    """Return the seconds that it takes to build a network and to take its first step."""
    tiny = dataclasses.replace(network, layers=(1,))
    for make in (ours, in_torch):
        make(tiny)()  # imports, tables and the like
    mine, theirs = (seconds_of(lambda make=make: make(network)()) for make in (ours, in_torch))  # type: ignore[misc]
    return {"ours": mine, "torch": theirs, "ratio": mine / theirs}


def main() -> None:
    what, name, layers, *number = sys.argv[1:]
    one_thread()
    torch.manual_seed(0)
    network = NETWORKS[name]
    if network.kind == "bert":
        network = dataclasses.replace(network, layers=(int(layers),))
    print(json.dumps(steps(network, int(number[0])) if what == "step" else compiling(network)))


if __name__ == "__main__":
    main()
