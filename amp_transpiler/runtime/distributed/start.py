"""Joining the other ranks of a run that torchrun started."""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Mapping

from amp_transpiler.errors import DistributedError, EnvironmentProblem, OptionError
from amp_transpiler.runtime.distributed.torch_module import torch_with_distributed
from amp_transpiler.runtime.distributed.world import World
from amp_transpiler.runtime.places import CUDAPlace, Place, default_place

__all__ = ["check_alone", "is_launched", "join", "join_alone", "leave", "own_place", "usable_place"]

logger = logging.getLogger(__name__)

_SIZES = ("WORLD_SIZE", "PADDLE_TRAINERS_NUM")  # torchrun's, and that of Paddle's own launcher
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # torchrun sets them


def is_launched(environment: Mapping[str, str] | None = None) -> bool:
    """Whether torchrun, or what sets the same environment variables, started this process."""
    variables = os.environ if environment is None else environment
    return all(variables.get(name) for name in _NEEDED)


def check_alone(environment: Mapping[str, str] | None = None) -> None:
    """Check that this process, which torchrun did not start, is the only one.

    Raises:
        EnvironmentProblem: the environment speaks of several processes, but not how they meet.
    """
    variables = os.environ if environment is None else environment
    for name in _SIZES:
        if variables.get(name, "1").strip() not in ("", "0", "1"):
            missing = ", ".join(other for other in _NEEDED if not variables.get(other))
            raise EnvironmentProblem(
                f"{name} is {variables[name]}, so this process is one of several, but {missing} is "
                "not set: alone it would train apart from the others. Start the script with torchrun: "
                "torchrun --nproc-per-node 2 script.py"
            )


def own_place() -> Place:
    """Return the place of this process: the CUDA device of its number on this host, or the CPU where there is none."""
    first = default_place()
    return CUDAPlace(int(os.environ.get("LOCAL_RANK", "0"))) if isinstance(first, CUDAPlace) else first


def join(place: Place | None = None, timeout: float = 60.0) -> World:
    """Join the other ranks; NCCL exchanges tensors between CUDA devices, gloo on the CPU.

    Args:
        place: where this process computes; None for `own_place()`.
        timeout: seconds after which a rank that does not answer counts as lost.

    Raises:
        EnvironmentProblem: this process is one of several that torchrun did not start, PyTorch is missing or cannot do
            it, or the place cannot be used.
        OptionError: the timeout is not positive.
        DistributedError: the other ranks do not come.
    """
    if not timeout > 0:
        raise OptionError(f"timeout must be a positive number of seconds, got {timeout}")
    torch = torch_with_distributed()
    if not is_launched():
        check_alone()
        return join_alone(place, timeout)
    place = usable_place(place)
    backend = _backend(torch, place)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = dt.timedelta(seconds=timeout)
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        meeting, _, _ = next(iter(torch.distributed.rendezvous("env://", rank, size, timeout=limit)))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # what an attempt before has left is not read
        store = torch.distributed.PrefixStore(f"amp_transpiler/{attempt}", meeting)
        group_store = torch.distributed.PrefixStore("group", store.clone())
        torch.distributed.init_process_group(backend, store=group_store, rank=rank, world_size=size, timeout=limit)
        world = World(rank, size, place, store, timeout, backend)
    except (RuntimeError, ValueError) as error:
        raise DistributedError(
            f"rank {rank} did not meet the other {size - 1} at {address} within {timeout:g} s: "
            f"{' '.join(str(error).split())[:200]}. Are all started, with the same address?"
        ) from error
    logger.info("rank %d of %d, %s, on %s", rank, size, backend, place)
    return world


def usable_place(place: Place | None) -> Place:
    """Return a place, `own_place()` for None, if it can be used.

    Raises:
        EnvironmentProblem: it cannot.
    """
    place = own_place() if place is None else place
    problem = place.problem()
    if problem is not None:
        raise EnvironmentProblem(f"cannot run on {place}: {problem}")
    return place


def join_alone(place: Place | None = None, timeout: float = 60.0) -> World:
    """Return a world of only this process; see `join`."""
    torch = torch_with_distributed()
    place, store = usable_place(place), torch.distributed.HashStore()
    backend = _backend(torch, place)
    groups = torch.distributed.PrefixStore("group", store)
    torch.distributed.init_process_group(backend, store=groups, rank=0, world_size=1)
    return World(0, 1, place, store, timeout, backend)


def leave(world: World) -> None:
    """Leave the other ranks; after one was lost, the end of the process does it, since PyTorch might wait for that."""
    world.close()
    distributed = torch_with_distributed().distributed
    if distributed.is_initialized() and not world.is_broken:
        distributed.destroy_process_group()


def _backend(torch: object, place: Place) -> str:
    """Return what exchanges tensors of a place, and let PyTorch use the place's device.

    Raises:
        EnvironmentProblem: PyTorch cannot.
    """
    distributed, cuda = torch.distributed, torch.cuda  # type: ignore[attr-defined]  # PyTorch has no types here
    if not isinstance(place, CUDAPlace):
        if not distributed.is_gloo_available():
            raise EnvironmentProblem("this PyTorch has no gloo backend: install one of PyTorch's wheels for Linux")
        return "gloo"
    if not cuda.is_available() or not distributed.is_nccl_available():
        raise EnvironmentProblem(
            f"PyTorch cannot use {place}: install its CUDA build (with NCCL), or train on the CPU (CPUPlace())"
        )
    if place.device_id >= cuda.device_count():
        raise EnvironmentProblem(
            f"there is no {place}: PyTorch sees {cuda.device_count()} devices; start at most as many processes on this "
            "host (torchrun --nproc-per-node)"
        )
    cuda.set_device(place.device_id)
    return "nccl"
