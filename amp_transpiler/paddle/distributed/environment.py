"""Describes the ranks of a run under the names that `paddle.distributed` has for them."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os

from amp_transpiler.errors import EnvironmentProblem, OptionError
from amp_transpiler.runtime.distributed.exchange import Exchange
from amp_transpiler.runtime.distributed.joined import joined
from amp_transpiler.runtime.distributed.start import check_alone, is_launched, join, leave, usable_place
from amp_transpiler.runtime.distributed.world import World
from amp_transpiler.runtime.places import Place

__all__ = [
    "ParallelEnv",
    "barrier",
    "current_world",
    "destroy_process_group",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
    "is_launched",
    "mean",
]

logger = logging.getLogger(__name__)

_joined = joined
_alone: list[tuple[Place, float]] = []  # place and timeout of a process that torchrun did not start


@dataclasses.dataclass(frozen=True, slots=True)
class ParallelEnv:
    """Describes the place of this process among the others.

    Attributes:
        rank: its number; rank 0 writes checkpoints and logs.
        world_size: how many processes there are.
        local_rank: its number on this host.
        place: where it computes.
    """

    rank: int
    world_size: int
    local_rank: int
    place: Place


def init_parallel_env(place: Place | None = None, *, timeout: float = 60.0) -> ParallelEnv:
    """Join the other processes that torchrun has started; further calls return the same.

    A process that torchrun did not start goes on alone, as in Paddle. NCCL exchanges values between CUDA devices, gloo
    on the CPU.

    Args:
        place: where this process computes; the CUDA device of its number on this host unless given, or the CPU where
            no device answers.
        timeout: seconds after which a rank that does not answer counts as lost; the others then stop with an error that
            names it. Compiling takes time: give more than the slowest rank needs for it.

    Raises:
        EnvironmentProblem: the place cannot be used; PyTorch is missing where there are several processes; or there are
            several, as WORLD_SIZE or PADDLE_TRAINERS_NUM says, and torchrun did not start them.
        OptionError: the timeout is not positive.
        DistributedError: the others do not come.
    """
    if not _joined and not is_launched():
        return _go_on_alone(place, timeout)
    world = _join(place, timeout)
    return ParallelEnv(world.rank, world.size, int(os.environ.get("LOCAL_RANK", "0")), world.place)


def _go_on_alone(place: Place | None, timeout: float) -> ParallelEnv:
    check_alone()
    if not timeout > 0:
        raise OptionError(f"timeout must be a positive number of seconds, got {timeout}")
    if not _alone:
        _alone.append((usable_place(place), timeout))
        logger.info("torchrun did not start this process: it goes on alone, on %s", _alone[0][0])
    return ParallelEnv(0, 1, 0, _alone[0][0])


def _join(place: Place | None, timeout: float) -> World:
    if not _joined:
        _joined.append(join(place, timeout))
        atexit.register(destroy_process_group)
    return _joined[0]


def destroy_process_group() -> None:
    """Leave the other processes. It is done at the end of the process in any case."""
    _alone.clear()
    while _joined:
        leave(_joined.pop())


def current_world() -> World:
    """Return the world that this process has joined; a process without others is in a world of one.

    Raises:
        EnvironmentProblem: `init_parallel_env` was not called; or PyTorch is missing.
    """
    if not _joined and _alone:
        return _join(*_alone[0])
    if not _joined:
        raise EnvironmentProblem("call distributed.init_parallel_env() first, in a script that torchrun has started")
    return _joined[0]


def get_rank() -> int:
    """Return the number of this process; 0 before `init_parallel_env`."""
    return _joined[0].rank if _joined else 0


def get_world_size() -> int:
    """Return how many processes there are; 1 before `init_parallel_env`."""
    return _joined[0].size if _joined else 1


def barrier() -> None:
    """Wait until every process has come here.

    Raises:
        DistributedError: one is lost.
    """
    if not _is_alone():
        current_world().gather("")


def mean(number: float) -> float:
    """Return the mean of a number over all processes, such as a loss; every process calls it.

    Raises:
        DistributedError: one is lost.
    """
    return float(number) if _is_alone() else Exchange(current_world()).mean(float(number))


def _is_alone() -> bool:
    """Whether this process goes on without others, and so has nothing to exchange."""
    return bool(_alone) and not _joined
