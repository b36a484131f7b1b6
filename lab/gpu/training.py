"""Stages "training" (ours), "torch_training" and "compiled_training" (PyTorch's, fused optimizer, gradient scaler)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import amp_transpiler as amp
from amp_transpiler import static
from amp_transpiler.runtime.places import place_named, to_host
from gpu.arena_log import ArenaLog, arena_log
from gpu.inference import megabytes, predictions
from gpu.kernels import kernels
from gpu.records import Record, Task, attempt, timed
from programs.ours import training_step
from programs.sessions import Sessions
from programs.sizes import NETWORKS, Network, feeds_of, small

__all__ = ["STEPS_OF_MEMORY", "compiled_training", "torch_training", "training"]

STEPS_OF_MEMORY = (1, 3)
"""The steps behind which the memory of the device and of arenas is read: the state is written anew by the first of
them, and lies where it stays from the third on."""


_GRAPHS = ("", ", CUDA graph", ", CUDA graph in place")  # by the pluses behind a level


def _network(task: Task, name: str) -> Network:
    return small(NETWORKS[name]) if task.tiny else NETWORKS[name]


def training(task: Task) -> None:
    """Time the steps of one program; the task's name is that of the network, its level and its format."""
    name, level, dtype = task.name.split(".")
    variant = level.rstrip("+") + _GRAPHS[level.count("+")]
    attempt(task, variant, dtype, lambda: _ours(task, _network(task, name), level, dtype))


def _ours(task: Task, network: Network, level: str, dtype: str) -> Iterator[Record]:
    place = place_named(task.place)
    pluses = level.count("+") if task.place == "cuda" else 0
    level, captured = level.rstrip("+"), pluses > 0
    step = training_step(network, "fp32" if level == "raf" else level, dtype)
    program = amp.autocast(step.main, dtype=dtype) if level == "raf" else step.main
    feeds, before = feeds_of(network), place.memory_in_use()
    sessions = Sessions(task.folder / f"graphs.{task.name}")
    sessions.folder.mkdir()
    executor = static.Executor(place, cuda_graph=captured, in_place=pluses > 1)
    losses: list[Any] = []

    def run() -> None:
        losses[:] = executor.run(program, feeds, [step.loss.name], return_numpy=False)

    def loss() -> float:
        return float(np.asarray(to_host(losses[0])).reshape(()))

    def memory(log: ArenaLog) -> Record:
        return {"grown_mb": megabytes(before, place.memory_in_use()), "arenas": log.taken()}

    with arena_log() as log:
        executor.run(step.startup)
        behind = {"startup": memory(log)}
        for number in range(1, max(STEPS_OF_MEMORY) + 1):
            run()
            if number == 1:
                first = loss()
            if number in STEPS_OF_MEMORY:
                behind[f"step {number}"] = memory(log)
    yield {"first_loss": first, "memory_behind": behind}
    sessions.used.clear()
    yield timed(run, tiny=task.tiny, wait=lambda: to_host(losses[0]))
    yield {"memory_mb": megabytes(before, place.peak_memory()), "loss": loss()}
    yield kernels(task, run, lambda: to_host(losses[0]))
    yield predictions(task, sessions, cuda_graph=captured)


# ---- PyTorch ----
def torch_training(task: Task) -> None:
    """Time PyTorch's eager step, in float32 or under autocast with a scaler; the task's name is network and format."""
    name, dtype = task.name.split(".")
    attempt(task, "torch eager", dtype, lambda: _torch(task, _network(task, name), dtype, compile_it=False))


def compiled_training(task: Task) -> None:
    """Time the step with `torch.compile` under autocast."""
    name, dtype = task.name.split(".")
    attempt(task, "torch.compile", dtype, lambda: _torch(task, _network(task, name), dtype, compile_it=True))


def _torch(task: Task, network: Network, dtype: str, *, compile_it: bool) -> Iterator[Record]:
    import torch

    place = place_named(task.place)
    before = place.memory_in_use()
    step, loss_now = _torch_step(network, task.place, dtype, compile_it=compile_it)
    wait = torch.cuda.synchronize if task.place == "cuda" else lambda: None
    yield timed(step, tiny=task.tiny, wait=wait)
    yield {"memory_mb": megabytes(before, place.memory_in_use()), "loss": loss_now()}
    if task.place == "cuda":
        yield {"allocated_mb": round(torch.cuda.max_memory_allocated() / 2**20, 1)}
    yield kernels(task, step, wait)


def _torch_step(
    network: Network, device: str, dtype: str, *, compile_it: bool
) -> tuple[Callable[[], None], Callable[[], float]]:
    import torch

    from programs.in_torch import loss_of, model_of, optimizer_of

    torch.manual_seed(1)
    model = model_of(network).to(device)
    feeds = [torch.from_numpy(array).to(device) for array in feeds_of(network).values()]
    optimizer = optimizer_of(network, list(model.parameters()), fused=True)
    scaler = torch.amp.GradScaler(device, enabled=dtype == "float16" and device == "cuda")
    call = torch.compile(model) if compile_it else model
    losses: list[Any] = []

    def step() -> None:
        autocast: Any = contextlib.nullcontext()
        if dtype != "float32":
            autocast = torch.autocast(device, dtype=getattr(torch, dtype))
        optimizer.zero_grad()
        with autocast:
            loss = loss_of(call, feeds)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses[:] = [loss.detach()]

    return step, lambda: float(losses[0])
