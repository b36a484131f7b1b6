"""`DataParallelExecutor`: an `Executor` whose training steps are shared by several processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.distributed.environment import current_world
from amp_transpiler.paddle.static.buckets import Bucket
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.paddle.static.together import Together
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.distributed.executor import DataParallelOptions, DataParallelSteps
from amp_transpiler.runtime.executor import StepExecutor
from amp_transpiler.runtime.gemm_options import TilingAccum
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.runtime.step_options import StepOptions

__all__ = ["DataParallelExecutor"]


class DataParallelExecutor(Executor):
    """Runs training steps together with the other processes, and other programs only in this one.

    Every process builds the same program and runs the same steps; each feeds its own share of the batch, of equal size.
    The gradients of all are averaged, so all make the same update. What is fetched is of this process's share, except
    for gradients and what the optimizer computes.

    At its first step a program is compared with those of the other ranks, and all take the values of rank 0. The masks
    of Dropout differ between ranks.

    Args:
        place: that of `init_parallel_env`, or None for it.
        accumulate_steps: how many micro-batches the share of a process is split into, to need less memory: the first
            dimension of every input that is open there must be a multiple. A run is still one step.
        sync_batch_norm: give BatchNormalization the statistics of the batch of all processes; else each has its own.
            The step is then cut at each of them, so that it takes longer.
        shard_optimizer: let each process keep and update only its part of the optimizer's state. The result is the
            same; it saves memory, and `save` collects the parts.
        bucket_bytes: smaller gradients are joined up to this size before they are added up; larger ones are not copied.
        emulate: see `Executor`.
        tiling_accum: see `Executor`.
        recompute: see `Executor`.
        max_sessions: how many steps are kept compiled; see `Executor`.
        provider_options: see `Executor`.
        check: refused: a step of several processes is cut into parts, and none of them is a step by itself.
        bucket: see `Executor`. Each process pads its own share, on other axes than the batch's.

    Raises:
        EnvironmentProblem: `init_parallel_env` was not called.
        OptionError: an argument is out of its range, the place is another one, or `check` is set.
    """

    def __init__(
        self,
        place: Place | None = None,
        *,
        accumulate_steps: int = 1,
        sync_batch_norm: bool = False,
        shard_optimizer: bool = False,
        bucket_bytes: int = 4 * 2**20,
        emulate: bool = True,
        tiling_accum: TilingAccum = "fp32",
        recompute: bool = False,
        max_sessions: int | None = None,
        provider_options: Mapping[str, str] | None = None,
        check: bool = False,
        bucket: Mapping[str, Bucket | Sequence[Bucket]] | None = None,
    ) -> None:
        if check:
            raise OptionError(
                "DataParallelExecutor: a step of several processes cannot be checked: run a few steps of the same "
                "program in one process first, with Executor(place, check=True)"
            )
        world = current_world()
        if place is not None and place != world.place:
            raise OptionError(
                f"DataParallelExecutor: the place is {place}, and init_parallel_env had {world.place}: give it there"
            )
        self._sharing = DataParallelOptions(
            accumulate_steps=accumulate_steps,
            sync_batch_norm=sync_batch_norm,
            shard_optimizer=shard_optimizer,
            bucket_bytes=bucket_bytes,
        )
        super().__init__(
            world.place,
            emulate=emulate,
            tiling_accum=tiling_accum,
            recompute=recompute,
            max_sessions=max_sessions,
            provider_options=provider_options,
            bucket=bucket,
        )

    def _executor(self, options: StepOptions, max_sessions: int | None) -> StepExecutor:
        self._together = DataParallelSteps(current_world(), self._sharing, options, max_sessions=max_sessions)
        return self._together

    def _steps_for(self, program: Program) -> StepExecutor:  # noqa: ARG002  # they know themselves
        return self._steps

    def save(self, program: Program, path: str | os.PathLike[str], scope: Scope | None = None) -> None:
        """Write a checkpoint, as `static.save` does. Every rank calls it; rank 0 writes, with the parts of all.

        Any number of processes can read it, one alone too.

        Raises:
            InputError: rank 0 cannot write it, or lacks a value; on every rank.
            DistributedError: a rank is lost.
        """
        self.ranks().save(program, path, global_scope() if scope is None else scope)

    def load(self, program: Program, path: str | os.PathLike[str], scope: Scope | None = None) -> None:
        """Read a checkpoint of any number of processes, as `static.load` does. Every rank calls it; rank 0 reads.

        Raises:
            InputError: the file does not fit; on every rank.
            DistributedError: a rank is lost.
        """
        self.ranks().load(program, path, global_scope() if scope is None else scope)

    def ranks(self) -> Together:
        """Return the processes that train together, for `train`."""
        assert self._together is not None  # `_executor` made it
        return Together(self._together)
