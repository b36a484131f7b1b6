"""Lets several processes train a program together with a plain `Executor`, and share its checkpoints."""

from __future__ import annotations

import os

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.static.io import load, save
from amp_transpiler.paddle.static.training import Ranks
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.distributed.executor import DataParallelOptions, DataParallelSteps
from amp_transpiler.runtime.distributed.world import World
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.scope import Scope
from amp_transpiler.runtime.step_options import StepOptions

__all__ = ["Together", "steps_together"]


def steps_together(
    world: World, place: Place, options: StepOptions, max_sessions: int | None, *, check: bool
) -> DataParallelSteps:
    """Return what runs the training steps of an `Executor` in a process that has joined others.

    Raises:
        OptionError: the executor has another place than the process, or an option that is for a single process.
    """
    if place != world.place:
        raise OptionError(
            f"Executor({place}) trains together with {world.size - 1} other processes, and init_parallel_env had "
            f"{world.place} for this one: give the executor that place, or none"
        )
    for name, is_set in (("check", check), ("cuda_graph", options.cuda_graph)):
        if is_set:
            raise OptionError(
                f"Executor({name}=True) is for a single process, and there are {world.size}: leave it out"
            )
    return DataParallelSteps(world, DataParallelOptions(), options, max_sessions=max_sessions)


class Together(Ranks):
    """Represents the processes that train together.

    Args:
        steps: runs this one's share.
    """

    def __init__(self, steps: DataParallelSteps) -> None:
        self._steps = steps
        self.rank = steps.world.rank

    def from_first(self, text: str) -> str:
        """Return the text that rank 0 passes, on every rank."""
        return self._steps.world.from_first(text if self.rank == 0 else None)

    def mean(self, number: float) -> float:
        """Return the mean of the ranks' numbers."""
        return self._steps.exchange.mean(float(number))

    def save(self, program: Program, path: str | os.PathLike[str], scope: Scope) -> None:
        """Write a checkpoint; every rank calls it, rank 0 writes it with the parts of all."""
        gathered = self._steps.whole(program, scope)
        self._steps.by_first(lambda: save(program, path, gathered))

    def load(self, program: Program, path: str | os.PathLike[str], scope: Scope) -> None:
        """Read a checkpoint; every rank calls it, rank 0 reads and sends."""
        self._steps.by_first(lambda: load(program, path, scope))
        self._steps.spread(program, scope)
