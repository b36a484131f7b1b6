"""Compiling a program, with fetched names and fed shapes, into a session that runs one step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import InputError
from amp_transpiler.graph.assemble import Assembled, assemble
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.garbage import collection_paused
from amp_transpiler.graph.low_values import has_low_values
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.proto import to_proto
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.stack import Stack
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.vector_products import vector_products
from amp_transpiler.graph.verifier import verify
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.passes.guard_vectors import GuardVectors
from amp_transpiler.passes.manager import PassManager
from amp_transpiler.passes.name_nodes import NameNodes
from amp_transpiler.passes.training import (
    CPU_WORTH,
    CUDA_WORTH,
    CancelTransposes,
    CastTogether,
    Formulation,
    FuseProducts,
    FuseSkipNorms,
    GroupUpdates,
    Legalize,
    LowerBatchNorm,
    LowerDropout,
    LowerLoss,
    MergeEqual,
    PlaceCasts,
    PlainForCpu,
    Recompute,
    SplitRows,
    SumByProducts,
    WeightGradients,
    Worth,
    WriteInPlace,
)
from amp_transpiler.runtime.alive import Memory
from amp_transpiler.runtime.feeds import ValueInfo, model_inputs
from amp_transpiler.runtime.finite import add_finite_check
from amp_transpiler.runtime.gemm_options import TilingAccum, gemm_option
from amp_transpiler.runtime.index_checks import IndexChecks, find_index_checks
from amp_transpiler.runtime.ort import SessionSettings
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.step_graphs import StepGraph, open_capturing
from amp_transpiler.targets import CUDA

__all__ = [
    "RANDOM_SEED",
    "RANDOM_STEP",
    "CompiledStep",
    "Watch",
    "compile_step",
    "compute_again",
    "group_updates",
    "lower",
    "open_ready",
    "open_step",
    "ready_to_open",
    "specialise",
    "split_large",
    "worth_on",
]

# Bytes of a step, which has no weights: optimizing a larger one takes longer than to keep and to find its graph.
_WORTH_KEEPING = 1 << 17
RANDOM_SEED = "@random_seed@"  # persistable int64 scalars: Dropout's masks depend on both
RANDOM_STEP = "@random_step@"


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
        session: the open session.
        feeds: the inputs that the caller feeds.
        state: persistable values read: name -> element type.
        updates: persistable name -> output that replaces it.
        fetches: fetched name -> output that carries it.
        checks: the labels and ids to check in each run.
        not_finite: the output that says whether an update, a loss or a fetched value is not finite; empty without one.
        stacks: persistable values that are rows of a matrix, whose name is in `state` and `updates` in place of theirs.
        graph: what runs the session as CUDA graphs; None if it is run as it is.
        results: the bytes that results take at most in the memory that sessions share; 0 if it takes none there.
    """

    session: onnxruntime.InferenceSession
    feeds: tuple[ValueInfo, ...]
    state: Mapping[str, ir.DataType]
    updates: Mapping[str, str]
    fetches: Mapping[str, str]
    checks: IndexChecks
    not_finite: str = ""
    stacks: tuple[Stack, ...] = ()
    graph: StepGraph | None = None
    results: int = 0


@collection_paused()
def compile_step(  # noqa: PLR0913  # each keyword is a property of the step of its own
    program: Program,
    fetch: Sequence[str],
    shapes: Mapping[str, Sequence[int]],
    place: Place,
    *,
    emulated: bool = True,
    tiling_accum: TilingAccum = "fp32",
    watch: Watch | None = None,
    updates: bool = True,
    recompute: bool = False,
    cuda_graph: bool = False,
    weight_gradients: Formulation = "auto",
) -> CompiledStep:
    """Open a session of one step.

    Args:
        program: the program.
        fetch: the fetched names.
        shapes: fed name -> its shape. The step only runs with these shapes.
        place: where it runs.
        emulated: on the CPU, compute low values in float32 and round them.
        tiling_accum: on CUDA, the type that float16 matrix products accumulate in; see `Executor`.
        watch: what the step is to check; nothing unless given.
        updates: whether the step computes what replaces persistable values.
        recompute: whether the backward pass computes cheap activations again; see `Executor`.
        cuda_graph: whether it is run as CUDA graphs if possible; see `Executor`.
        weight_gradients: the formulation of convolutions' weight gradients; see `Executor`.

    Raises:
        InputError: a fetched name does not exist, or inputs that share a dimension are fed different sizes.
        EnvironmentProblem: the place cannot be used, or an earlier CUDA session accumulates differently.
    """
    assembled = assemble(program, fetch, updates=updates)
    watch = watch or Watch()
    checks = find_index_checks(assembled) if watch.indices else IndexChecks()
    not_finite = add_finite_check(assembled, program.outputs) if watch.finite else ""
    if weight_gradients == "auto" and not place.emulates_low:
        weight_gradients = "convolution"
    ready = ready_to_open(
        assembled, shapes, worth=worth_on(place), recompute=recompute, weight_gradients=weight_gradients
    )
    step = open_ready(ready, place, emulated=emulated, tiling_accum=tiling_accum, cuda_graph=cuda_graph)
    return dataclasses.replace(step, checks=checks, not_finite=not_finite)


def open_step(
    assembled: Assembled,
    shapes: Mapping[str, Sequence[int]],
    place: Place,
    *,
    emulated: bool,
    tiling_accum: TilingAccum,
    optimize: bool = True,
) -> CompiledStep:
    """Open a session of an assembled model, which is changed; see `compile_step`.

    Without `optimize` it opens sooner, and runs the nodes as they are.
    """
    ready = ready_to_open(assembled, shapes, worth=worth_on(place) if optimize else None)
    return open_ready(ready, place, emulated=emulated, tiling_accum=tiling_accum, optimize=optimize)


def ready_to_open(
    assembled: Assembled,
    shapes: Mapping[str, Sequence[int]],
    *,
    worth: Worth | None = None,
    recompute: bool = False,
    by_rows: bool = True,
    weight_gradients: Formulation = "convolution",
) -> Assembled:
    """Give an assembled model, which is changed, the shapes that are fed, and lower it; see `compile_step`.

    With `worth`, the updates of equal parameters are computed together where that pays. Without `by_rows` batch
    statistics are computed as means, which processes that share a batch can average. `weight_gradients` is the
    formulation of convolutions' weight gradients; see `passes.training.WeightGradients`.
    """
    specialise(assembled.model, shapes)
    if worth is not None:  # first: the optimizer is most of the nodes, and less is left to do for the others
        assembled = group_updates(assembled, worth)
    if by_rows and any(node.op_type == "BatchNormalization" for node in assembled.model.graph):
        infer_shapes(assembled.model)
    assembled = lower(assembled, by_rows=by_rows, weight_gradients=weight_gradients)
    split_large(assembled.model)
    if recompute:
        compute_again(assembled.model)
    return assembled


def compute_again(model: ir.Model) -> None:
    """Infer the shapes of a training step, and compute cheap activations again in its backward pass."""
    infer_shapes(model)
    PassManager([Recompute()])(model)


def open_ready(
    assembled: Assembled,
    place: Place,
    *,
    emulated: bool,
    tiling_accum: TilingAccum,
    optimize: bool = True,
    cuda_graph: bool = False,
    is_part: bool = False,
    threads: int | None = None,
) -> CompiledStep:
    """Open a session of a model that `ready_to_open` made, or of a part of a training step.

    Args:
        assembled: the model.
        place: where it runs.
        emulated: see `compile_step`.
        tiling_accum: see `compile_step`.
        optimize: whether ONNX Runtime may rewrite the graph.
        cuda_graph: whether the step is captured as a CUDA graph.
        is_part: whether it is a part of a step, perhaps without a node of the backward pass.
        threads: threads inside an operator; None leaves the choice to ONNX Runtime.
    """
    infos = {info.name: info for info in model_inputs(assembled.model)}
    feeds = tuple(infos[name] for name in assembled.feeds)
    for info in feeds:
        if info.numpy is None:
            raise InputError(f"input '{info.name}' is not a tensor, so it cannot be fed")
    types = {str(value.name): value.dtype or ir.DataType.FLOAT for value in assembled.model.graph.inputs}
    state = {name: types[name] for name in assembled.state}
    model, fuse = assembled.model, True
    lean = is_part or _is_trained(model)
    if emulated and place.emulates_low:
        wrapped = Program(model)
        if has_low_values(wrapped):
            model, fuse = emulate(wrapped).model, False
    if place.emulates_low:
        PassManager([PlainForCpu()])(model)
    if lean and fuse:  # not where it is emulated: a fused operator would round less often
        PassManager([FuseSkipNorms()])(model)
    right = not vector_products(model, unknown=True)
    message = to_proto(model).SerializeToString()
    settings = SessionSettings(
        optimize=optimize,
        # On a CPU the fusions of a training step save no time, and to look for them takes long.
        fuse=fuse and not (lean and place.in_main_memory),
        fuse_transposes=right,
        lean=lean,
        threads=threads,
        provider_options=tuple(place.options_for("step").items()),
        shared_memory=place.queues_steps(),
        cached=len(message) >= _WORTH_KEEPING,
    )
    with gemm_option(tiling_accum, place):
        captured = open_capturing(message, model, settings, place) if cuda_graph and feeds else None
        session = captured or place.open_session(message, settings)
    graph = StepGraph(captured, place, assembled.updates) if captured else None
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


def lower(assembled: Assembled, *, by_rows: bool = True, weight_gradients: Formulation = "convolution") -> Assembled:
    """Replace nodes that ONNX Runtime's CUDA provider refuses: training forms, and low operators without a kernel.

    This is done for every place, so that a CPU shows the numerics of a GPU.
    """
    model, state = assembled.model, assembled.state
    layers = [LowerBatchNorm(by_rows=by_rows), WeightGradients(weight_gradients), CancelTransposes(), LowerLoss()]
    PassManager([NameNodes(), *layers], typed=False)(model)
    if any(is_standard(node) and node.op_type == "Dropout" and len(node.inputs) > 2 for node in all_nodes(model)):
        seed, step = (_scalar_input(model, name) for name in (RANDOM_SEED, RANDOM_STEP))
        LowerDropout(seed, step)(model)
        state = tuple(dict.fromkeys((*state, RANDOM_SEED, RANDOM_STEP)))
    propagate_types(model)
    verify(model, "lowering the training program")
    legal = [Legalize(CUDA, FLOAT16), Legalize(CUDA, BFLOAT16), GuardVectors()]
    PassManager([*legal, MergeEqual(), PlaceCasts()])(model)
    return dataclasses.replace(assembled, state=state)


def worth_on(place: Place) -> Worth:
    """Return when it pays on a place to compute the updates of several parameters together."""
    return CPU_WORTH if place.in_main_memory else CUDA_WORTH


def group_updates(assembled: Assembled, worth: Worth) -> Assembled:
    """Compute the updates of equal parameters of an assembled step together; their states become rows of matrices."""
    grouped = GroupUpdates(assembled.updates, assembled.fetches.values(), worth)(assembled.model)
    rows = {name for stack in grouped.stacks for name in stack.members}
    state = (*(name for name in assembled.state if name not in rows), *(stack.name for stack in grouped.stacks))
    return dataclasses.replace(assembled, state=state, updates=grouped.updates, stacks=grouped.stacks)


def _is_trained(model: ir.Model) -> bool:
    return any(role_of(node) == "backward" for node in model.graph)


def _most_alive(model: ir.Model) -> int:
    """Return the most bytes that results take at a time, inputs not counted; 0 if a shape is not known."""
    infer_shapes(model)
    try:
        before, *during = Memory(model.graph).alive()
    except InputError:
        return 0
    return max(during, default=before) - before


def split_large(model: ir.Model) -> None:
    """Infer the shapes of a training step; use them to fuse products, and to split what turns out to be large."""
    if not _is_trained(model):
        return
    infer_shapes(model)
    if has_low_values(Program(model)):
        PassManager([SumByProducts(), CastTogether(), SplitRows()])(model)
    PassManager([FuseProducts(), WriteInPlace()])(model)


def _scalar_input(model: ir.Model, name: str) -> ir.Value:
    for value in model.graph.inputs:
        if value.name == name:
            return value
    scalar = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    model.graph.inputs.append(scalar)
    return scalar


def specialise(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give the inputs of a model the shapes that are fed, in place.

    Raises:
        InputError: they do not fit the declared shapes, or inputs that share a dimension are fed different sizes.
    """
    sizes: dict[str, tuple[int, str]] = {}
    for value in model.graph.inputs:
        name = str(value.name)
        if name not in shapes or value.shape is None:
            continue
        for declared, size in zip(value.shape, shapes[name], strict=True):
            if isinstance(declared, int):
                if declared != size:
                    raise InputError(f"input '{name}': got shape {list(shapes[name])}, expected {value.shape}")
                continue
            if declared.value is None:
                continue
            known, where = sizes.setdefault(declared.value, (size, name))
            if known != size:
                raise InputError(
                    f"'{name}' is fed with {declared.value} = {size}, but '{where}' with {known}: feed the same size, "
                    f"or give the dimensions names of their own, as in static.data('{name}', ['n', ...])"
                )
        value.shape = ir.Shape([int(size) for size in shapes[name]])
