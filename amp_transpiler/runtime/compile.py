"""Compiling a program, with fetched names and fed shapes, into a session that runs one step."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence

import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import InputError
from amp_transpiler.fusion.skip_norms import FuseSkipNorms
from amp_transpiler.garbage import collection_paused
from amp_transpiler.graph.proto import to_proto
from amp_transpiler.graph.roles import has_backward_pass
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.vector_products import vector_products
from amp_transpiler.ops.schema import type_string
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.passes.manager import PassManager
from amp_transpiler.program.assemble import Assembled, assemble
from amp_transpiler.program.low_values import has_low_values
from amp_transpiler.program.packed_state import Stack
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.feeds import ValueInfo, model_inputs
from amp_transpiler.runtime.finite import add_finite_check
from amp_transpiler.runtime.gemm_options import gemm_option
from amp_transpiler.runtime.in_place import in_place_obstacle
from amp_transpiler.runtime.in_place_graphs import InPlaceGraph
from amp_transpiler.runtime.index_checks import IndexChecks, find_index_checks
from amp_transpiler.runtime.known_updates import Known, known_updates
from amp_transpiler.runtime.lowering import ready_to_open, worth_on
from amp_transpiler.runtime.opening import open_with_options
from amp_transpiler.runtime.ort import SessionSettings
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.step_graphs import StepGraph, open_capturing
from amp_transpiler.runtime.step_options import StepOptions
from amp_transpiler.runtime.unfetched_losses import leave_out, unfetched_losses
from amp_transpiler.training_passes import (
    AddInPlace,
    ComputeLate,
    FreeUnread,
    FuseBiases,
    PlainForCpu,
    ReduceInStages,
    ShortenScatters,
    SimplifyConcats,
    SliceKnownRows,
    SplitScatters,
)
from amp_transpiler.training_passes.alive import Memory
from amp_transpiler.update_passes import ReadBeforeUpdate

__all__ = ["CompiledStep", "Watch", "compile_step", "open_ready", "open_step"]

_logger = logging.getLogger(__name__)

# Bytes of a step, which has no weights: optimizing a larger one takes longer than to keep and to find its graph.
_WORTH_KEEPING = 1 << 17


@dataclasses.dataclass(frozen=True, slots=True)
class Watch:
    """The checks of a step in each run.

    Attributes:
        indices: whether labels and ids are in their range.
        finite: whether what it hands out is finite.
    """

    indices: bool = False
    finite: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledStep:
    """A session of one step of a program.

    Attributes:
        session: the open session; None if everything is known.
        feeds: the inputs that the caller feeds.
        state: persistable values read: name -> element type.
        updates: persistable name -> output that replaces it.
        fetches: fetched name -> output that carries it.
        checks: the labels and ids to check in each run.
        not_finite: the output that says whether an update, a loss or a fetched value is not finite; empty without one.
        stacks: persistable values that are rows of a matrix, whose name is in `state` and `updates` in place of theirs.
        graph: what runs the session as CUDA graphs; None if it is run as it is.
        results: the bytes that results take at most in the memory that sessions share; 0 if it takes none there.
        known: persistable name -> what makes the value that replaces it, without the session.
    """

    session: onnxruntime.InferenceSession | None
    feeds: tuple[ValueInfo, ...]
    state: Mapping[str, ir.DataType]
    updates: Mapping[str, str]
    fetches: Mapping[str, str]
    checks: IndexChecks
    not_finite: str = ""
    stacks: tuple[Stack, ...] = ()
    graph: StepGraph | InPlaceGraph | None = None
    results: int = 0
    known: Mapping[str, Known] = dataclasses.field(default_factory=dict)


@collection_paused()
def compile_step(
    program: Program,
    fetch: Sequence[str],
    shapes: Mapping[str, Sequence[int]],
    place: Place,
    options: StepOptions,
    *,
    watch: Watch | None = None,
    updates: bool = True,
) -> CompiledStep:
    """Open a session of one step.

    Args:
        program: the program.
        fetch: the fetched names.
        shapes: fed name -> its shape. The step only runs with these shapes.
        place: where it runs.
        options: how it is computed.
        watch: what the step is to check; nothing unless given.
        updates: whether the step computes what replaces persistable values.

    Raises:
        InputError: a fetched name does not exist, or inputs that share a dimension are fed different sizes.
        EnvironmentProblem: the place cannot be used or refuses a provider option, or an earlier CUDA session
            accumulates differently.
    """
    watch = watch or Watch()
    known = known_updates(program) if updates and not watch.finite else {}
    if known and not fetch and len(known) == len(program.updates):
        return CompiledStep(None, (), {}, {}, {}, IndexChecks(), known=known)
    losses = unfetched_losses(program, fetch) if updates else ()
    assembled = assemble(program, (*fetch, *losses), updates=updates, known=known)
    checks = find_index_checks(assembled) if watch.indices else IndexChecks()
    not_finite = add_finite_check(assembled, program.outputs) if watch.finite else ""
    ready = ready_to_open(
        assembled,
        shapes,
        worth=worth_on(place),
        recompute=options.recompute,
        weight_gradients=options.formulation(place),
        tensor_cores=not place.in_main_memory,
    )
    if options.in_place and (why := _needs_old_state(watch, checks, known)):
        _logger.warning("a step writes no state in place: %s", why)
        options = dataclasses.replace(options, in_place=False)
    step = open_ready(leave_out(ready, losses), place, options)
    return dataclasses.replace(step, checks=checks, not_finite=not_finite, known=known)


def _needs_old_state(watch: Watch, checks: IndexChecks, known: Mapping[str, Known]) -> str:
    """Return why the state of before a step is needed after it, or an empty string."""
    if watch.finite:
        return "a step whose values are not finite is to change nothing"
    if checks.computed:
        return "a step that has computed an index out of range is to change nothing"
    return "some of it is replaced without computing it" if known else ""


def open_step(
    assembled: Assembled, shapes: Mapping[str, Sequence[int]], place: Place, options: StepOptions
) -> CompiledStep:
    """Open a session of an assembled model, which is changed, that runs the nodes as they are.

    It opens sooner than a step of `compile_step`; what only makes steps faster is left out of `options`.
    """
    plain = dataclasses.replace(options, cuda_graph=False, in_place=False)
    return open_ready(ready_to_open(assembled, shapes), place, plain, optimize=False)


def open_ready(
    assembled: Assembled,
    place: Place,
    options: StepOptions,
    *,
    optimize: bool = True,
    is_part: bool = False,
    threads: int | None = None,
) -> CompiledStep:
    """Open a session of a model that `ready_to_open` made, or of a part of a training step.

    Args:
        assembled: the model.
        place: where it runs.
        options: how it is computed.
        optimize: whether ONNX Runtime may rewrite the graph.
        is_part: whether it is a part of a step, perhaps without a node of the backward pass.
        threads: threads inside an operator; None leaves the choice to ONNX Runtime.
    """
    infos = {info.name: info for info in model_inputs(assembled.model)}
    feeds = tuple(infos[name] for name in assembled.feeds)
    for info in feeds:
        if info.numpy is None:
            raise InputError(f"input '{info.name}' is not a tensor, so it cannot be fed")
    _refuse_others_than_tensors(assembled)
    types = {str(value.name): value.dtype or ir.DataType.FLOAT for value in assembled.model.graph.inputs}
    state = {name: types[name] for name in assembled.state}
    lean = is_part or has_backward_pass(assembled.model)
    model, fuse = _for_place(assembled.model, place, emulated=options.emulate, lean=lean, threads=threads)
    if options.in_place:
        infer_shapes(model)
        PassManager([ReadBeforeUpdate(assembled.updates)])(model)
    message = to_proto(model).SerializeToString()
    settings = SessionSettings(
        optimize=optimize,
        # On a CPU the fusions of a training step save no time, and to look for them takes long.
        fuse=fuse and not (lean and place.in_main_memory),
        fuse_transposes=not vector_products(model, unknown=True),
        lean=lean,
        quick=lean and place.in_main_memory,
        threads=threads,
        provider_options=options.provider(place),
        shared_memory=place.queues_steps(),
        cached=len(message) >= _WORTH_KEEPING,
    )
    with gemm_option(options.tiling_accum, place):
        graph = _graph(message, model, assembled.updates, settings, place, options) if feeds else None
        session = graph.session if graph else open_with_options(message, settings, place)
    return CompiledStep(
        session,
        feeds,
        state,
        assembled.updates,
        assembled.fetches,
        IndexChecks(),
        stacks=assembled.stacks,
        graph=graph,
        results=_most_alive(model) if settings.shared_memory and graph is None and lean else 0,
    )


def _graph(
    message: bytes,
    model: ir.Model,
    updates: Mapping[str, str],
    settings: SessionSettings,
    place: Place,
    options: StepOptions,
) -> StepGraph | InPlaceGraph | None:
    """Return what runs a model as CUDA graphs; None if it is run as it is."""
    if not options.cuda_graph:
        return None
    if not options.in_place:
        session = open_capturing(message, model, settings, place)
        return StepGraph(session, place, updates) if session else None
    with tempfile.TemporaryDirectory(prefix="amp-transpiler-step-") as folder:
        path = pathlib.Path(folder) / "optimized.onnx"
        watched = dataclasses.replace(settings, cached=False, written_to=os.fspath(path))
        session = open_capturing(message, model, watched, place)
        if session is None:
            return None
        optimized = ir.load(path)
        optimized.graph.sort()
        why = in_place_obstacle(optimized, updates)
    if why:
        _logger.warning("a step writes no state in place: %s", why)
        return StepGraph(session, place, updates)
    return InPlaceGraph(session, place, updates)


def _refuse_others_than_tensors(assembled: Assembled) -> None:
    """Raise InputError if a fetched value is no tensor: ONNX Runtime's bindings end the process where they read one."""
    types = {value.name: value.type for value in assembled.model.graph.outputs}
    for name, output in assembled.fetches.items():
        if not isinstance(types[output], ir.TensorType | None):
            kind = type_string(types[output])
            raise InputError(
                f"'{name}' is {kind}: an executor fetches only tensors; read it with "
                f"amp.Session(program).run(feeds, ['{name}'])"
            )


def _for_place(
    model: ir.Model, place: Place, *, emulated: bool, lean: bool, threads: int | None
) -> tuple[ir.Model, bool]:
    """Return a model as a place computes it, and whether ONNX Runtime may fuse its operators."""
    fuse = True
    if place.in_main_memory and threads != 1:
        PassManager([SplitScatters()])(model)
    if emulated and place.emulates_low:
        wrapped = Program(model)
        if has_low_values(wrapped):
            model, fuse = emulate(wrapped).model, False
    if place.emulates_low:
        PassManager([PlainForCpu()])(model)
    if lean and fuse:  # not where it is emulated: a fused operator would round less often
        PassManager([SliceKnownRows(), SimplifyConcats(), FuseSkipNorms()])(model)
    if lean and not place.in_main_memory:
        infer_shapes(model)
        PassManager([ReduceInStages(), ShortenScatters(), FuseBiases(), AddInPlace(), ComputeLate()])(model)
    if lean:
        PassManager([FreeUnread()])(model)
    return model, fuse


def _most_alive(model: ir.Model) -> int:
    """Return the most bytes that results take at a time, inputs not counted; 0 if a shape is not known."""
    infer_shapes(model)
    try:
        before, *during = Memory(model.graph).alive()
    except InputError:
        return 0
    return max(during, default=before) - before
