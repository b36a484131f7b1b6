"""`Executor`: runs programs whose values live in a scope."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Self, get_args

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.open_ranks import reranked
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.roles import has_backward_pass
from amp_transpiler.paddle.framework.driven_values import DrivenValues
from amp_transpiler.paddle.framework.feeding import (
    FetchList,
    fed_arrays,
    fed_otherwise,
    fetched_names,
    fits,
)
from amp_transpiler.paddle.framework.persistables import renew_draws
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.paddle.framework.pruning import pruned, without_optimizer
from amp_transpiler.paddle.static.buckets import Bucket, Buckets
from amp_transpiler.paddle.static.operator_stats import note_run
from amp_transpiler.paddle.static.printing import print_values, printed_names
from amp_transpiler.paddle.static.settings import CompiledProgram
from amp_transpiler.paddle.static.tensor_checker import check_tensors, is_exempt
from amp_transpiler.paddle.static.together import Together, steps_together
from amp_transpiler.paddle.static.training import Ranks, TrainOptions, train
from amp_transpiler.paddle.training_log import TrainingLog
from amp_transpiler.phrases import first_few, quoted
from amp_transpiler.program.program import Program
from amp_transpiler.program.retyped import retyped
from amp_transpiler.runtime.checked_steps import CheckedSteps
from amp_transpiler.runtime.distributed.executor import DataParallelSteps, is_training_step
from amp_transpiler.runtime.distributed.joined import joined_world
from amp_transpiler.runtime.distributed.world import World
from amp_transpiler.runtime.executor import NotFinite, StepExecutor
from amp_transpiler.runtime.flags import flag
from amp_transpiler.runtime.gemm_options import TilingAccum
from amp_transpiler.runtime.places import Place, default_place, place_named, to_host
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.runtime.step_options import StepOptions
from amp_transpiler.runtime.values import to_ort
from amp_transpiler.training_passes import Formulation

__all__ = ["Executor"]

logger = logging.getLogger(__name__)


class Executor:
    """Runs programs, keeping one session for each program, fetch list and shape fed.

    Persistable values stay where the program runs. In a process that has joined others
    (`distributed.init_parallel_env`, `fleet.init`) it runs training steps together with them, as
    `distributed.DataParallelExecutor` does.

    Args:
        place: where to run, such as `CPUPlace()`, or its name: "cpu", "gpu", "gpu:1"; None for the place that
            AMP_TRANSPILER_PLACE names, else CUDA where a device answers, else the CPU.
        emulate: on the CPU, run float16 and bfloat16 values as float32 that is rounded like them, so that overflow
            is as visible as on a GPU.
        tiling_accum: what float16 matrix products (MatMul, Gemm and what ONNX Runtime makes of them) accumulate in:
            "fp32", or "low" for float16, on CUDA only. ONNX Runtime reads this once in a process, so that all CUDA
            executors and sessions of a process must have the same. bfloat16 is accumulated in float32 always: a
            program that is fed and has no float16 value is run with a warning.
        recompute: in training steps, compute large activations that are cheap (casts, activation functions,
            normalisation, masks) again in the backward pass, instead of keeping them. It saves memory and takes time;
            the results stay the same, to the bit.
        max_sessions: how many sessions are kept. For one more, that which was not used for the longest time is closed,
            and is compiled again when it is needed, with a warning: give at least as many as there are shapes that take
            turns. None: as memory allows, 8 to 256; and after 8 shapes of a step further ones share one session that
            leaves sizes open, where the step does not need them. Its sums may be rounded otherwise.
        cuda_graph: on CUDA, whether a step is captured as CUDA graphs after its second run, one for each of the two
            sets of buffers that state lies in, and then repeated as one launch. The log warns of a step where that is
            not possible, and why: nodes on the CPU, operators that wait for the host or have it upload tables. It pays
            where the host is slower than the device, and takes memory that no other session can use.
        in_place: with `cuda_graph`, whether a step overwrites its state, so that there is one set of buffers and one
            graph. The log warns of a step where that is not possible, and why: a node may read the old value late, or
            `not_finite` or a check of indices must be able to take the step back. Feeds are then copied when the step
            before is done, and an error on the device loses the state: keep checkpoints. No device has confirmed it.
        weight_gradients: how weight gradients of convolutions are computed: "convolution" (of the input with the
            gradient of the result), "taps" (a matrix product for each tap of the kernel), "columns" (one for all taps),
            "priced" (products of unfolded operands, or what a GPU computes faster, by the price list), or "auto":
            "priced" on CUDA; on a CPU "taps" or "columns" by sizes, in float32.
        provider_options: options of ONNX Runtime's CUDA provider for steps, over the package's own choice, such as
            `{"use_tf32": "0"}`; on CUDA only. Options of memory have no effect: all executors of a process share it.
        check: whether the first three steps of every compiled training step are computed a second time, by the
            emulation on the CPU from the same state and feeds, and compared; six with CUDA graphs, so that graphs are
            checked as they are captured and as they are repeated. On the CPU, too: there it compares two forms of the
            program. Steps of a program with random operators of ONNX are not compared, and the log says so.
        bucket: feeds whose sizes vary -> how they are padded to few sizes (`static.Bucket`, or several), so that few
            steps are compiled: `{"ids": Bucket(axis=1, value=0), "label": Bucket(axis=1, value=-100)}`. What is
            fetched is cut back. The first step of a program that is padded is computed as it was fed, too, in float32
            and without Dropout: where loss, gradients, statistics or what is fetched differ, an error says so. Masks
            of Dropout are those of the padded sizes.

    On CUDA a run returns when its work is queued: feeds are copied while the step before runs, and the host waits only
    for what is read. All executors of a process queue work on a device in one stream, and share its memory.

    As a context manager it is closed in the end.

    Raises:
        OptionError: there is no such place, `tiling_accum` is neither "fp32" nor "low", `max_sessions` is less than 1,
            `weight_gradients` is none of the five, `bucket` is no dictionary of `Bucket`, or `provider_options` has one
            that the executor sets itself (device, stream, CUDA graph).
        EnvironmentProblem: `tiling_accum` is "low", or there are `provider_options`, on the CPU.
    """

    def __init__(
        self,
        place: Place | str | None = None,
        *,
        emulate: bool = True,
        tiling_accum: TilingAccum = "fp32",
        recompute: bool = False,
        max_sessions: int | None = None,
        cuda_graph: bool = False,
        in_place: bool = False,
        weight_gradients: Formulation = "auto",
        provider_options: Mapping[str, str] | None = None,
        check: bool = False,
        bucket: Mapping[str, Bucket | Sequence[Bucket]] | None = None,
    ) -> None:
        if check and in_place:
            raise OptionError("Executor(check=True) computes steps again from the state before: leave in_place out")
        self._checks = check
        self._buckets = None if bucket is None else Buckets(bucket)
        self.place: Place = _place_of(place)
        options = StepOptions(
            emulate=emulate,
            tiling_accum=tiling_accum,
            recompute=recompute,
            cuda_graph=cuda_graph,
            in_place=in_place,
            weight_gradients=weight_gradients,
            provider_options=dict(provider_options or {}),
        )
        self._options, self._max_sessions = options, max_sessions
        self._together: DataParallelSteps | None = None  # where this process has joined others
        self._steps = self._executor(options, max_sessions)
        self._warned: weakref.WeakSet[Program] = weakref.WeakSet()
        self._unread: weakref.WeakKeyDictionary[Program, set[str]] = weakref.WeakKeyDictionary()
        self._pruned: weakref.WeakKeyDictionary[Program, dict[Any, Program]] = weakref.WeakKeyDictionary()
        self._driven = DrivenValues(self.place)
        self._retyped: weakref.WeakKeyDictionary[Program, dict[Any, Program]] = weakref.WeakKeyDictionary()

    def _executor(self, options: StepOptions, max_sessions: int | None) -> StepExecutor:
        kind = CheckedSteps if self._checks else StepExecutor
        return kind(self.place, options, max_sessions=max_sessions)

    def _steps_for(self, program: Program) -> StepExecutor:
        """Return what runs a program; it runs a training step with the other processes that this one has joined."""
        world = joined_world()
        return self._steps if world is None or not is_training_step(program) else self._shared(world)

    def _is_shared(self, program: Program) -> bool:
        """Whether other processes run a program with this one."""
        steps = self._steps_for(program)
        return isinstance(steps, DataParallelSteps) and steps.world.size > 1 and is_training_step(program)

    def _shared(self, world: World) -> DataParallelSteps:
        if self._together is None:
            self._together = steps_together(world, self.place, self._options, self._max_sessions, check=self._checks)
        return self._together

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Executor({self.place})"

    def run(
        self,
        program: Program | CompiledProgram | None = None,
        feed: Mapping[Any, Any] | Sequence[Mapping[Any, Any]] | None = None,
        fetch_list: FetchList = None,
        feed_var_name: str | Scope = "feed",
        fetch_var_name: str = "fetch",  # noqa: ARG002  # Paddle's
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = True,  # noqa: ARG002  # Paddle's
        return_merged: bool = True,  # noqa: ARG002  # Paddle's
        use_prune: bool = False,
        *,
        not_finite: NotFinite | None = None,
    ) -> list[Any]:
        """Run a program once, replace the persistable values that it updates, and return what is fetched.

        An error leaves the scope as it was.

        Args:
            program: a startup, training or inference program; the default main program unless given.
            feed: input name -> array, or a list of one such dictionary. Lists take the input's element type. A name
                that the program does not have is left out, with one warning.
            fetch_list: variables or their names, or a single one of them; lists in it are joined. A persistable one has
                its value after the run.
            feed_var_name: Paddle's, no effect; a scope given here is taken as `scope`.
            fetch_var_name: Paddle's, no effect.
            scope: where persistable values live; the global scope unless given.
            return_numpy: False for ONNX Runtime's values, left where they are.
            use_program_cache: Paddle's, no effect: sessions are kept always.
            return_merged: Paddle's, no effect.
            use_prune: compute only what is fetched, and leave the optimizer out, unless what `minimize` returned is in
                `fetch_list`. Running statistics that the fetched values update are replaced all the same.
            not_finite: what happens if a value that replaces a persistable one, a loss, or a fetched value of the
                forward pass is infinite or NaN. "allow": nothing; "skip": the scope stays as it was, all of the step's
                updates are left out, and a warning says so; "stop": the scope stays as it was, and an error names the
                first node that made it, after a second run that watches every value. Without it, "stop" if the flag
                `FLAGS_check_nan_inf` is set, else "allow", which costs nothing. Gradients that a loss scale lets
                overflow do not count: that step is the scaler's.

        Raises:
            NotFiniteError: something is not finite, and the run was to stop then.
            StepCheckFailed: with `check`, what the step computes contradicts its emulation. The scope stays as it was.
            OptionError: `not_finite` is another word.
            InputError: a feed is missing or of a wrong shape or type; something fetched does not exist; a
                value that the program reads is not in the scope yet.
            EnvironmentProblem: the place cannot be used or does not know an option of its provider; or `tiling_accum`
                is another one than an earlier CUDA session's, or contradicts the environment variable
                ORT_CUDA_GEMM_OPTIONS.
        """
        if isinstance(program, CompiledProgram):
            program = program.program
        if not isinstance(program, (Program, type(None))):
            raise InputError(f"Executor.run takes a program, got {program!r:.80}: give the feeds as feed={{...}}")
        program = default_main_program() if program is None else program
        reaction = _reaction(not_finite)
        scope = feed_var_name if isinstance(feed_var_name, Scope) else scope
        scope = global_scope() if scope is None else scope
        renew_draws(program)
        fetch_list, with_optimizer = without_optimizer(program, fetch_list)
        self._driven.write(program, scope)
        fetch = fetched_names(program, fetch_list)
        if use_prune and fetch and not with_optimizer:
            program = self._without_updates(program, fetch)
        program, feed = self._as_fed(program, feed)
        arrays, unread = fed_arrays(program, feed)
        self._warn_of_unread(program, unread)
        if not fetch and not program.updates:
            return []  # nothing to compute: an empty startup program, for one
        self._look(program, arrays, scope)
        count, fetch = len(fetch), [*fetch, *printed_names(program)]
        values = self._run(program, fetch, arrays, scope, reaction)
        print_values(program, [to_host(value) for value in values[count:]])
        fetch, values = fetch[:count], values[:count]
        if not return_numpy:
            return list(values)
        results = [to_host(value) for value in values]
        self._warn_of_lost_values(program, dict(zip(fetch, results, strict=True)), scope)
        return results

    def _look(self, program: Program, arrays: Mapping[str, Any], scope: Scope) -> None:
        """Check the tensors of the coming run, and count its operators, where that is asked for."""
        if is_exempt(program):
            return
        note_run(program)

        def compute(names: Sequence[str]) -> list[np.ndarray]:
            return [to_host(value) for value in self._steps.run(program, names, arrays, scope.shared_copy())]

        device = str(self.place).lower().replace("cuda", "gpu")
        check_tensors(program, compute, has_feeds=bool(arrays), device=device, together=self._is_shared(program))

    def _run(
        self, program: Program, fetch: Sequence[str], arrays: Mapping[str, Any], scope: Scope, reaction: NotFinite
    ) -> list[Any]:
        """Run a step with its feeds, padded where they have a bucket."""
        cuts: Mapping[str, tuple[slice, ...]] = {}
        steps = self._steps_for(program)
        if self._buckets is not None:
            try:
                arrays, cuts = self._buckets.fit(program, fetch, arrays, scope, together=self._is_shared(program))
            except Exception as error:
                steps.tell_others(error)
                raise
        values = steps.run(program, fetch, arrays, scope, reaction)
        if not cuts:
            return values
        uncut = slice(None)
        parts = [cuts.get(name, ()) for name in fetch]
        return [
            value if all(part == uncut for part in cut) else to_ort(np.ascontiguousarray(to_host(value)[cut]))
            for value, cut in zip(values, parts, strict=True)
        ]

    def _without_updates(self, program: Program, fetch: Sequence[str]) -> Program:
        """Return the program for `use_prune`, made once for what is fetched."""
        cached, key = self._pruned.setdefault(program, {}), (program.version, *fetch)
        if key not in cached:
            cached[key] = pruned(program, fetch)
        return cached[key]

    def _warn_of_unread(self, program: Program, names: Sequence[str]) -> None:
        warned = self._unread.setdefault(program, set()) if names else set()
        if new := [name for name in names if name not in warned]:
            warned.update(new)
            logger.warning(
                "%s of what is fed %s no input of the program (%s): left out",
                first_few(quoted(new)),
                "is" if len(new) == 1 else "are",
                ", ".join(str(v.name) for v in program.model.graph.inputs if v.name not in program.persistables),
            )

    def _as_fed(self, program: Program, feed: Any) -> tuple[Program, Any]:
        """Return the program for the types and ranks that unchecked inputs are fed with, and the feed for it."""
        others = fed_otherwise(program, feed)
        if not others:
            return program, feed
        [feeds] = feed if isinstance(feed, (list, tuple)) else [feed]
        feed = {**{program.name_of(name): array for name, array in feeds.items()}, **others}
        cached = self._retyped.setdefault(program, {})
        if has_backward_pass(program.model):
            ranks = {name: array.ndim for name, array in others.items() if not fits(program.value(name), array)}
            key: Any = (program.version, tuple(sorted(ranks.items())))
            if ranks and key not in cached:
                cached[key] = reranked(program, ranks)
            return cached[key] if ranks else program, feed
        types = {name: (ir.DataType.from_numpy(array.dtype), array.shape) for name, array in others.items()}
        key = (program.version, tuple(sorted(types.items())))
        if key not in cached:
            cached[key] = retyped(program, types)
        return cached[key], feed

    def _warn_of_lost_values(self, program: Program, results: Mapping[str, Any], scope: Scope) -> None:
        """Warn once of a loss that is not finite, if the step has written such values to parameters, too."""
        losses = [name for name in program.outputs if name in results and not _is_finite(results[name])]
        if not losses or not program.updates or program in self._warned:
            return
        parameters = [p for p in program.persistables.values() if p.kind == "parameter" and p.name in program.updates]
        lost = [p.name for p in parameters if p.name in scope and not _is_finite(scope[p.name])]
        if lost:
            self._warned.add(program)
            logger.warning(
                "the loss '%s' is not finite, and now %d of %d parameters hold infinity or NaN, such as '%s': look at "
                "the data and the learning rate. not_finite='stop' names the first node that makes such a value and "
                "keeps the parameters, not_finite='skip' leaves out such steps",
                *(losses[0], len(lost), len(parameters), lost[0]),
            )

    def train(self, program: Program | None = None, loader: Any = None, epochs: int = 1, **options: Any) -> TrainingLog:
        """Train a program for some epochs, and go on from the last checkpoint if there is one.

        Where several processes train together, each calls it with a loader of its own share, of as many batches; rank 0
        reads and writes the files.

            log = exe.train(main, loader, epochs=10, checkpoints="run1", save_every=500, plot="loss.png")

        Args:
            program: the training program; the default main program unless given.
            loader: what an epoch goes through: a `DataLoader` or any iterable of feeds (dictionaries, or lists for
                `feed_list`) that can be gone through again, or a function that returns one.
            epochs: how many there are, those before a resumed checkpoint included.
            options: the attributes of `training.TrainOptions`: `loss`, `optimizer`, `schedule_by`, `feed_list`,
                `scope`, `callbacks`, `steps`, `checkpoints`, `save_every`, `keep`, `resume`, `patience`, `evaluate`,
                `log_file`, `plot`, `progress` and `statistics_every`.

        Returns:
            The record of the steps of this call.

        Raises:
            InputError: the program trains nothing or names no loss, a batch does not fit, or a checkpoint is damaged.
            OptionError: a number has no meaning.
            OutputError: a file cannot be written.
        """
        chosen = default_main_program() if program is None else program
        return train(self, chosen, loader, epochs, TrainOptions(**options))

    def ranks(self) -> Ranks:
        """Return the processes that train together, for `train`."""
        world = joined_world()
        return Ranks() if world is None else Together(self._shared(world))

    def close(self) -> None:
        """Close every session, and give back the memory that they took. What lies in scopes stays there."""
        self._steps.close()
        if self._together is not None and self._together is not self._steps:
            self._together.close()


def _place_of(place: Place | str | None) -> Place:
    if place is None:
        world = joined_world()
        return default_place() if world is None else world.place
    chosen = place_named(place.replace("gpu", "cuda")) if isinstance(place, str) else place
    if not isinstance(chosen, Place):
        raise OptionError(f"Executor: place must be CPUPlace(), CUDAPlace(0) or a name such as 'cpu', got {place!r}")
    return chosen


def _is_finite(array: Any) -> bool:
    return not isinstance(array, np.ndarray) or bool(np.isfinite(array.astype(np.float32)).all())


def _reaction(not_finite: NotFinite | None) -> NotFinite:
    if not_finite is None:
        return "stop" if flag("FLAGS_check_nan_inf") else "allow"
    if not_finite not in (words := get_args(NotFinite)):
        raise OptionError(f"not_finite must be one of {', '.join(map(repr, words))}, got {not_finite!r}")
    return not_finite
