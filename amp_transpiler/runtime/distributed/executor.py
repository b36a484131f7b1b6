"""Running steps on several ranks: each computes gradients of its share of a batch, and all make the same update."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import DistributedError, InputError, ModelError, OptionError
from amp_transpiler.graph.batch_statistics import has_batch_statistics
from amp_transpiler.graph.proto import to_proto
from amp_transpiler.graph.roles import has_backward_pass
from amp_transpiler.phrases import counted, first_few
from amp_transpiler.program.assemble import Assembled, assemble
from amp_transpiler.program.packed_state import Stack
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.compile import CompiledStep, open_ready
from amp_transpiler.runtime.distributed.cut_step import Cut, StepPart, cut_step, loss_scales
from amp_transpiler.runtime.distributed.exchange import Copied, Exchange
from amp_transpiler.runtime.distributed.micro_batches import is_open, joined, split_feeds
from amp_transpiler.runtime.distributed.shard_updates import Share, restricted, share_updates
from amp_transpiler.runtime.distributed.world import World
from amp_transpiler.runtime.executor import NotFinite, StepExecutor, replace
from amp_transpiler.runtime.feeds import ValueInfo, check_feeds
from amp_transpiler.runtime.flags import flag
from amp_transpiler.runtime.index_checks import IndexChecks, find_index_checks
from amp_transpiler.runtime.lowering import RANDOM_SEED, RANDOM_STEP, ready_to_open, worth_on
from amp_transpiler.runtime.ort import RUN_ERRORS, allowed_cores
from amp_transpiler.runtime.places import to_host
from amp_transpiler.runtime.run_errors import plain
from amp_transpiler.runtime.scope import Scope
from amp_transpiler.runtime.step_options import StepOptions
from amp_transpiler.runtime.unfetched_losses import leave_out, unfetched_losses
from amp_transpiler.runtime.values import to_ort
from amp_transpiler.version import __version__

__all__ = ["DataParallelOptions", "DataParallelSteps", "is_training_step"]

logger = logging.getLogger(__name__)

_RANK_STRIDE = 0x9E3779B97F4A7C15  # an odd number: ranks never share a seed

Values = dict[str, onnxruntime.OrtValue]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelOptions:
    """How ranks share a step.

    Attributes:
        accumulate_steps: how many micro-batches a rank's share of the batch is split into.
        sync_batch_norm: whether BatchNormalization has the statistics of the batch of all ranks.
        shard_optimizer: whether each rank keeps and updates only a part of the optimizer's state.
        bucket_bytes: smaller gradients are joined up to this size before they are added up; larger ones are not copied.

    Raises:
        OptionError: one is out of its range.
    """

    accumulate_steps: int = 1
    sync_batch_norm: bool = False
    shard_optimizer: bool = False
    bucket_bytes: int = 4 * 2**20

    def __post_init__(self) -> None:
        for name, least in (("accumulate_steps", 1), ("bucket_bytes", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise OptionError(f"{name} must be a whole number from {least} on, got {value!r}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A part of a step, with its session."""

    cut: StepPart
    step: CompiledStep


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """A compiled step.

    Attributes:
        early: the parts that make gradients.
        taken: what the optimizer reads of them.
        late: the optimizer; None if this rank updates nothing.
        checks: the labels and ids to check in each run.
        shares: the states that one rank each updates.
        stacks: values that are rows of a matrix, by its name.
    """

    early: tuple[_Part, ...]
    taken: frozenset[str]
    late: CompiledStep | None
    checks: IndexChecks
    shares: tuple[Share, ...]
    stacks: Mapping[str, Stack]

    @property
    def feeds(self) -> tuple[ValueInfo, ...]:
        """The inputs that the caller feeds."""
        return tuple(dict.fromkeys(info for part in self.early for info in part.step.feeds))

    @property
    def gradients(self) -> frozenset[str]:
        """The sums that the optimizer reads; other sums are statistics of a batch."""
        return frozenset(name for part in self.early for name in part.cut.summed if name in self.taken)


class DataParallelSteps(StepExecutor):
    """Runs training steps together with the other ranks; other programs by itself.

    Args:
        world: the ranks.
        sharing: how they share a step.
        options: how steps are computed.
        max_sessions: how many steps are kept compiled.
    """

    def __init__(
        self, world: World, sharing: DataParallelOptions, options: StepOptions, *, max_sessions: int | None = None
    ) -> None:
        super().__init__(world.place, options, max_sessions=max_sessions)
        self.world, self.sharing, self.exchange = world, sharing, Exchange(world)
        self._plans: OrderedDict[tuple[Any, ...], _Plan | None] = OrderedDict()  # the last used is the last
        self._layouts: set[str] = set()
        self._compared: dict[int, Program] = {}  # which are the same on all ranks
        self._known: dict[tuple[int, int], tuple[Program, Scope]] = {}  # whose values are the same on all ranks
        self._latest: dict[int, _Plan] = {}  # the plan of each program's last step
        self._seeds: dict[int, tuple[onnxruntime.OrtValue, onnxruntime.OrtValue]] = {}

    def run(
        self,
        program: Program,
        fetch: Sequence[str],
        arrays: Mapping[str, np.ndarray],
        scope: Scope,
        not_finite: NotFinite = "allow",
    ) -> list[onnxruntime.OrtValue]:
        """Run a program once. An error leaves this rank's scope as it was, and the other ranks learn of it.

        Raises:
            DistributedError: another rank is lost, or runs another program.
            OptionError: `not_finite` is not "allow" for a training step.
        """
        try:
            if not is_training_step(program):
                return super().run(program, fetch, arrays, scope, not_finite)
            _refuse_checks(not_finite)
            return self._run_together(program, fetch, arrays, scope)
        except DistributedError:
            raise
        except Exception as error:
            self.world.fail(error)
            raise

    def tell_others(self, error: BaseException) -> None:
        """Tell the other ranks why this one does not take part in the next step."""
        self.world.fail(error)

    def close(self) -> None:
        """Close every session."""
        super().close()
        self._plans.clear()
        self._compared.clear()
        self._known.clear()
        self._latest.clear()
        self._seeds.clear()

    # ---- a step ----

    def _run_together(
        self, program: Program, fetch: Sequence[str], arrays: Mapping[str, np.ndarray], scope: Scope
    ) -> list[onnxruntime.OrtValue]:
        shares = split_feeds(program, arrays, self.sharing.accumulate_steps)
        self._compare_programs(program)  # first: other programs have other plans
        plan = self._plan(program, fetch, shares[0])
        if plan is None:
            return super().run(program, fetch, arrays, scope)
        if (id(program), id(scope)) not in self._known:
            self.spread(program, scope)
            self._say(program, arrays)
        self._drop(plan, scope)
        self._latest[id(program)] = plan
        batch = _batch(program, plan, arrays)
        try:
            are_equal = self._start_comparison(batch)
            fetched, carried, sums = self._gradients(plan, shares, scope)
            if not are_equal():
                raise self._unequal(batch)
        except RUN_ERRORS as error:
            raise self._explained(error, program, fetch, shares[0], scope) or plain(error, program) or error from error
        outputs, updated = self._update(plan, sums, scope)
        steps = [part.step for part in plan.early] + ([] if plan.late is None else [plan.late])
        self._commit({**updated, **carried}, steps, scope, list(plan.stacks.values()))
        self.world.step += 1
        results = {name: joined(program, name, values) for name, values in fetched.items()}
        results |= {name: outputs[output] for name, output in ({} if plan.late is None else plan.late.fetches).items()}
        results |= {name: sums[output] for name, output in self._summed_fetches(plan).items()}
        return [results[name] for name in fetch]

    def _start_comparison(self, batch: Mapping[str, int]) -> Callable[[], bool]:
        if not batch or self.world.size == 1:
            return lambda: True
        return self.exchange.start_comparison(tuple(batch.values()))

    def _unequal(self, batch: Mapping[str, int]) -> DistributedError:
        """Return an error that names the batch of each rank; every rank calls it."""
        texts = self.world.gather(", ".join(f"'{name}': {size}" for name, size in batch.items()))
        return DistributedError(
            f"rank {self.world.rank}: the ranks feed batches of different sizes, so that the mean of their gradients "
            f"is not that of the whole batch: {'; '.join(f'rank {rank} {text}' for rank, text in enumerate(texts))}. "
            "Nothing of this step was kept. Feed each rank as many samples as the others, and leave an incomplete last "
            "batch out"
        )

    def _gradients(
        self, plan: _Plan, shares: Sequence[Mapping[str, np.ndarray]], scope: Scope
    ) -> tuple[dict[str, list[onnxruntime.OrtValue]], Values, Values]:
        """Run the parts before the optimizer on every micro-batch.

        Returns:
            What is fetched, one value a micro-batch; values that replace persistable ones; and what the optimizer
            reads, added up over micro-batches and ranks.
        """
        fetched: dict[str, list[onnxruntime.OrtValue]] = {}
        carried: Values = {}
        totals: Values = {}
        pending: list[Callable[[], None]] = []
        wanted = {info.name for info in plan.feeds}
        for index, arrays in enumerate(shares):
            feeds = check_feeds({name: array for name, array in arrays.items() if name in wanted}, plan.feeds)
            plan.checks.check_feeds(feeds)
            handed_on: Values = {}
            for part in plan.early:
                state = {n: carried.get(n, value) for n, value in self._state(part.step, scope).items()}
                taken = {name: handed_on[name] for name in part.cut.takes}
                part_feeds = {info.name: feeds[info.name] for info in part.step.feeds}
                outputs = self._run(part.step, part_feeds, {**state, **taken})
                _check_computed(plan.checks, outputs)
                carried |= {name: outputs[output] for name, output in part.step.updates.items()}
                for name, output in part.step.fetches.items():
                    fetched.setdefault(name, []).append(outputs[output])
                handed_on |= {name: outputs[name] for name in part.cut.gives}
                self._sum(part, handed_on, totals, plan.gradients, pending if index == len(shares) - 1 else None)
        for finish in pending:
            finish()
        return fetched, carried, totals

    def _sum(
        self,
        part: _Part,
        handed_on: Values,
        totals: Values,
        gradients: frozenset[str],
        pending: list[Callable[[], None]] | None,
    ) -> None:
        """Add statistics up over the ranks now; gradients over micro-batches, and after the last over the ranks."""
        for finish in [self.exchange.start_sum(handed_on[name]) for name in part.cut.summed if name not in gradients]:
            finish()
        for name in part.cut.summed:
            if name not in gradients:
                continue
            if name in totals:
                self.exchange.add_into(totals[name], handed_on[name])
            else:
                totals[name] = handed_on[name]
            if pending is not None:
                pending.append(self.exchange.start_sum(totals[name]))

    def _summed_fetches(self, plan: _Plan) -> dict[str, str]:
        return {n: output for part in plan.early for n, output in part.step.fetches.items() if output in plan.gradients}

    def _update(self, plan: _Plan, sums: Values, scope: Scope) -> tuple[Values, Values]:
        """Run the optimizer, and take over what the other ranks have updated.

        Returns:
            What the optimizer made, and the states that replace the present ones.
        """
        outputs: Values = {}
        updated: Values = {}
        if plan.late is not None and plan.late.session is not None:
            inputs = {info.name for info in plan.late.session.get_inputs()}
            taken = {name: value for name, value in sums.items() if name in inputs}
            outputs = self._run(plan.late, {}, {**self._state(plan.late, scope), **taken})
            updated = {name: outputs[output] for name, output in plan.late.updates.items()}
        spread = [share for share in plan.shares if share.spread]
        copies = self.exchange.copies(self._copied(spread, updated.__getitem__))
        updated |= {share.name: value for share, value in zip(spread, copies, strict=True)}
        return outputs, updated

    def _copied(self, shares: Sequence[Share], read: Callable[[str], onnxruntime.OrtValue]) -> list[Copied]:
        rank = self.world.rank
        return [
            Copied(share.owner, share.dtype, share.shape, read(share.name) if share.owner == rank else None)
            for share in shares
        ]

    def _drop(self, plan: _Plan, scope: Scope) -> None:
        """Drop what only other ranks need from the scope."""
        for share in plan.shares:
            if share.owner != self.world.rank and not share.spread:
                stack = plan.stacks.get(share.name)
                for name in (share.name,) if stack is None else stack.members:
                    if name in scope:
                        del scope[name]

    def _state(self, step: CompiledStep, scope: Scope) -> Values:
        state = super()._state(step, scope)
        if RANDOM_SEED in state and self.world.rank:
            state[RANDOM_SEED] = self._own_seed(state[RANDOM_SEED])
        return state

    def _own_seed(self, seed: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
        """Return the seed of this rank's Dropout masks; rank 0 has the program's, which checkpoints hold."""
        known = self._seeds.get(id(seed))
        if known is None or known[0] is not seed:
            rank_seed = (int(to_host(seed)) + self.world.rank * _RANK_STRIDE) % 2**63
            known = self._seeds[id(seed)] = seed, self.place.hold(to_ort(np.array(rank_seed, np.int64)))
        return known[1]

    # ---- the same on all ranks ----

    def spread(self, program: Program, scope: Scope) -> None:
        """Give every rank the values that rank 0 has for a program.

        Raises:
            DistributedError: the ranks have different programs, or one is lost.
            InputError: rank 0 has no value for one of them.
        """
        self._compare_programs(program)
        missing = [name for name in program.persistables if name not in scope]
        told = self.world.from_first(first_few(missing, 5) if self.world.rank == 0 else None)
        if told:
            raise InputError(f"rank 0 has no value for {told}: run the startup program first, or load a checkpoint")
        descriptions = [] if self.world.rank else [_described(scope.held(name)) for name in program.persistables]
        lines = self.world.from_first("\n".join(descriptions) if self.world.rank == 0 else None).split("\n")
        items = []
        for name, text in zip(program.persistables, lines, strict=True):
            dtype, shape = _typed(text)
            value = self.place.hold(scope.held(name)) if self.world.rank == 0 else None
            items.append(Copied(0, dtype, shape, value))
        scope.replace(dict(zip(program.persistables, self.exchange.copies(items), strict=True)))
        self._known[id(program), id(scope)] = program, scope

    def by_first(self, act: Callable[[], None]) -> None:
        """Let rank 0 do something, and raise its error on every rank.

        Raises:
            InputError: the error, if it was one of these.
        """
        told = None
        if self.world.rank == 0:
            try:
                act()
                told = ""
            except InputError as error:
                told = str(error)
        told = self.world.from_first(told)
        if told:
            raise InputError(told if self.world.rank == 0 else f"rank 0: {told}")

    def whole(self, program: Program, scope: Scope) -> Scope:
        """Return a scope with all values of a program; only rank 0 needs it."""
        whole_scope = Scope()
        for name in program.persistables:
            if name in scope and self.world.rank == 0:
                whole_scope.hold(name, scope.held(name))
        plan = self._latest.get(id(program))
        if plan is None:
            return whole_scope
        for share in (share for share in plan.shares if not share.spread):
            [value] = self.exchange.copies(self._copied([share], functools.partial(_held, plan, scope)))
            if self.world.rank == 0:
                replace(whole_scope, {share.name: value}, plan.stacks)
        return whole_scope

    def _compare_programs(self, program: Program) -> None:
        """Raise DistributedError if this program, at its first step, is not the same on all ranks."""
        if id(program) not in self._compared:
            self._compare("program", fingerprint(program, self.sharing), f"{program!r}")
            self._compared[id(program)] = program

    def _compare(self, what: str, mine: str, shown: str) -> None:
        """Raise DistributedError if a text is not the same on all ranks."""
        texts = self.world.gather(mine)
        other = [str(rank) for rank, text in enumerate(texts) if text != texts[0]]
        if other:
            raise DistributedError(
                f"rank {self.world.rank}: the {what} of rank {', '.join(other)} is not that of rank 0 ({shown} here, "
                f"{mine}; all: {', '.join(texts)}). Every rank must build the same program, with the same options and "
                "versions of this package; only the data that they feed may differ"
            )

    def _say(self, program: Program, arrays: Mapping[str, np.ndarray]) -> None:
        world, steps = self.world, self.sharing.accumulate_steps
        sizes = {array.shape[0] for name, array in arrays.items() if array.ndim}
        share = max(sizes, default=0)
        logger.info(
            "rank %d of %d (%s, %s): global batch %d = %d ranks x %d samples, in %s",
            *(world.rank, world.size, world.backend, world.place, share * world.size, world.size, share),
            counted(steps, "accumulation step"),
        )
        if has_batch_statistics(program.model) and world.size > 1:
            per_rank = "its own; sync_batch_norm=True gives all ranks those of the global batch"
            how = "the global batch" if self.sharing.sync_batch_norm else per_rank
            logger.info("BatchNormalization: each rank uses statistics of %s", how)

    # ---- compiling ----

    def _plan(self, program: Program, fetch: Sequence[str], arrays: Mapping[str, np.ndarray]) -> _Plan | None:
        shapes = {name: array.shape for name, array in arrays.items()}
        checked = flag("FLAGS_check_index_range")
        key = (id(program), program.version, tuple(fetch), tuple(sorted(shapes.items())), checked)
        if key not in self._plans:
            for old in [k for k in self._plans if k[0] == id(program) and k[1] != program.version]:
                del self._plans[old]
            self._programs.setdefault(id(program), program)
            with self._limit.compiling(key, program, shapes):
                self._plans[key] = self._planned(program, fetch, shapes, checked=checked)
            if self._limit.is_over(len(self._plans)):
                self._limit.close(self._plans.popitem(last=False)[0])
        self._plans.move_to_end(key)
        return self._plans[key]

    def _planned(
        self, program: Program, fetch: Sequence[str], shapes: Mapping[str, Sequence[int]], *, checked: bool
    ) -> _Plan | None:
        losses = unfetched_losses(program, fetch)
        assembled = assemble(program, (*fetch, *losses))
        checks = find_index_checks(assembled) if checked else IndexChecks()
        states = [name for name, persistable in program.persistables.items() if persistable.kind == "state"]
        cut = self._cut(assembled, states)
        shards = self.sharing.shard_optimizer and self.world.size > 1
        ready = ready_to_open(
            assembled,
            shapes,
            worth=dataclasses.replace(worth_on(self.place), merges=not shards),
            recompute=self._options.recompute,
            by_rows=cut.statistics_factor is None,  # by rows, the statistics are no means over the batch
            weight_gradients=self._options.formulation(self.place),
            tensor_cores=not self.place.in_main_memory,
        )
        ready = leave_out(ready, losses)
        if cut.statistics_factor is not None and has_batch_statistics(program.model):
            _check_statistics(program, ready)
        parts = cut_step(ready, cut)
        if not parts:
            return None
        layout = _digest("\n".join(_layout(part) for part in parts))
        if layout not in self._layouts:
            self._compare("exchange of values", layout, f"{program!r}, fetching {list(fetch)}")
            self._layouts.add(layout)
        shares: tuple[Share, ...] = ()
        last: Assembled | None = parts[-1].assembled
        if shards:
            parameters = [name for name, persistable in program.persistables.items() if persistable.kind == "parameter"]
            shares = share_updates(parts, parameters, self.world.size)
            last = self._own_share(parts[-1].assembled, shares)
        early = tuple(_Part(part, self._open(part.assembled)) for part in parts[:-1])
        late = None if last is None else self._open(last)
        stacks = {stack.name: stack for stack in ready.stacks}
        return _Plan(early, frozenset(parts[-1].takes), late, checks, shares, stacks)

    def _open(self, assembled: Assembled) -> CompiledStep:
        return open_ready(
            assembled,
            self.place,
            self._options,
            is_part=True,
            threads=_threads() if self.place.in_main_memory else None,
        )

    def _own_share(self, last: Assembled, shares: Sequence[Share]) -> Assembled | None:
        others = {share.name: share for share in shares if share.owner != self.world.rank}
        for name, share in others.items():
            if name in last.fetches:
                raise InputError(
                    f"'{name}' is updated on rank {share.owner} (shard_optimizer), so it cannot be fetched here: "
                    "read it from the scope after the step if it is a parameter, or from a checkpoint (exe.save)"
                )
        return restricted(last, others)

    def _cut(self, assembled: Assembled, states: Sequence[str]) -> Cut:
        ranks, steps = self.world.size, self.sharing.accumulate_steps
        return Cut(
            gradient_factor=1.0 / (ranks * steps),
            statistics_factor=1.0 / ranks if self.sharing.sync_batch_norm and ranks > 1 else None,
            scales=loss_scales(assembled, states),
            local=(RANDOM_SEED,),
            counters=(RANDOM_STEP,),
            bucket_bytes=self.sharing.bucket_bytes,
        )


def _batch(program: Program, plan: _Plan, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return the size of the batch in each feed that has one."""
    names = [info.name for info in plan.feeds if is_open(program, info.name)]
    return {name: len(arrays[name]) if name in arrays else 0 for name in names}


def _held(plan: _Plan, scope: Scope, name: str) -> onnxruntime.OrtValue:
    stack = plan.stacks.get(name)
    return scope.held(name) if stack is None else scope.pack(stack)


def fingerprint(program: Program, options: DataParallelOptions) -> str:
    """Return a short text that is equal for equal programs, options and versions."""
    model = to_proto(assemble(program, []).model)
    text = f"{__version__} {onnxruntime.__version__} {options}".encode()
    return hashlib.sha256(text + model.SerializeToString(deterministic=True)).hexdigest()[:16]


def _check_statistics(program: Program, ready: Assembled) -> None:
    """Raise ModelError if a step that was made ready has no statistics to exchange any more."""
    if not has_batch_statistics(ready.model):
        raise ModelError(f"{program!r}: its batch statistics cannot be exchanged: leave sync_batch_norm out")


def _threads() -> int:
    """Return this process's share of the processor, so that the ranks of a host do not wait for each other."""
    return max(1, allowed_cores() // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def _refuse_checks(not_finite: NotFinite) -> None:
    if not_finite != "allow":
        raise OptionError(
            f"not_finite={not_finite!r} would stop or skip a step on one rank alone: leave it out (and "
            "FLAGS_check_nan_inf unset) here; a loss scaler skips a step on all ranks alike"
        )


def _check_computed(checks: IndexChecks, outputs: Mapping[str, onnxruntime.OrtValue]) -> None:
    computed = tuple(use for use in checks.computed if use.value in outputs)
    IndexChecks(computed=computed).check_computed(lambda name: to_host(outputs[name]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _layout(part: StepPart) -> str:
    outputs = {str(value.name): value for value in part.assembled.model.graph.outputs}
    return ", ".join(f"{name} {outputs[name].dtype} {outputs[name].shape}" for name in part.summed)


def _described(value: onnxruntime.OrtValue) -> str:
    return " ".join(map(str, (value.element_type(), *value.shape())))


def _typed(text: str) -> tuple[ir.DataType, tuple[int, ...]]:
    dtype, *shape = map(int, text.split())
    return ir.DataType(dtype), tuple(shape)


def is_training_step(program: Program) -> bool:
    """Whether a run of a program computes gradients and updates values with them."""
    return bool(program.updates) and has_backward_pass(program.model)
