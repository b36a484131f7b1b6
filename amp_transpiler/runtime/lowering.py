"""Lowering: an assembled program becomes a step of plain operators that the CUDA provider runs, in the shapes fed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.autodiff import expand_gradients
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.marked_gradients import has_marks
from amp_transpiler.graph.roles import has_backward_pass
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.guard_vectors import GuardVectors
from amp_transpiler.passes.manager import PassManager
from amp_transpiler.passes.name_nodes import NameNodes
from amp_transpiler.program.assemble import Assembled
from amp_transpiler.program.fed_shapes import specialise
from amp_transpiler.program.low_values import has_low_values
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.places import Place
from amp_transpiler.targets import CUDA
from amp_transpiler.training_passes import (
    AffineRows,
    AttentionSums,
    BiasColumns,
    BiasGradients,
    CancelTransposes,
    CastTogether,
    CentreByProducts,
    DeadKeyBiases,
    DropIdentities,
    Formulation,
    FuseProducts,
    JoinProducts,
    Legalize,
    LowerBatchNorm,
    LowerDropout,
    LowerLoss,
    MeanByProducts,
    MergeEqual,
    MoveRowFactors,
    PadClasses,
    PadInLow,
    PlaceCasts,
    PointwiseProducts,
    PositionsFirst,
    Recompute,
    RoundSlopes,
    ScaleInLow,
    SplitRows,
    SumByProducts,
    SumSlopes,
    WeightGradients,
    WriteInPlace,
    is_recompute_asked,
)
from amp_transpiler.update_passes import (
    CPU_WORTH,
    CUDA_WORTH,
    CheckByProducts,
    FuseUpdates,
    GroupUpdates,
    ReadUnrounded,
    ScaleGradients,
    Worth,
    ZeroBeforeSums,
)

__all__ = [
    "RANDOM_SEED",
    "RANDOM_STEP",
    "compute_again",
    "group_updates",
    "lower",
    "ready_to_open",
    "split_large",
    "worth_on",
]

RANDOM_SEED = "@random_seed@"  # persistable int64 scalars: Dropout's masks depend on both
RANDOM_STEP = "@random_step@"


def ready_to_open(
    assembled: Assembled,
    shapes: Mapping[str, Sequence[int]],
    *,
    worth: Worth | None = None,
    recompute: bool = False,
    by_rows: bool = True,
    weight_gradients: Formulation = "convolution",
    tensor_cores: bool = False,
) -> Assembled:
    """Give an assembled model, which is changed, the shapes that are fed, and lower it; see `compile_step`.

    With `worth`, the updates of equal parameters are computed together where that pays. Activations are computed again
    with `recompute`, or if the program asks for it. Without `by_rows` batch statistics are computed as means, which
    processes that share a batch can average. `weight_gradients` is the formulation of convolutions' weight gradients;
    see `training_passes.WeightGradients`. With `tensor_cores` products are widened where these like that.
    """
    specialise(assembled.model, shapes)
    expand_gradients(assembled.model)
    DropIdentities()(assembled.model)
    ReadUnrounded()(assembled.model)
    if worth is not None:  # first: the optimizer is most of the nodes, and less is left to do for the others
        assembled = group_updates(assembled, worth)
    if (by_rows and _has_batch_norm(assembled.model)) or (weight_gradients == "priced" and has_marks(assembled.model)):
        infer_shapes(assembled.model)
    assembled = lower(assembled, by_rows=by_rows, weight_gradients=weight_gradients)
    split_large(assembled.model, tensor_cores=tensor_cores)
    if recompute or is_recompute_asked(assembled.model):
        compute_again(assembled.model)
    return assembled


def _has_batch_norm(model: ir.Model) -> bool:
    return any(node.op_type == "BatchNormalization" for node in model.graph)


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
    verify(model, "lowering the training program", propagate_types(model))
    legal = [Legalize(CUDA, FLOAT16), Legalize(CUDA, BFLOAT16), GuardVectors()]
    PassManager([*legal, ScaleInLow(), MergeEqual(), PlaceCasts()])(model)
    return dataclasses.replace(assembled, state=state)


def worth_on(place: Place) -> Worth:
    """Return when it pays on a place to compute the updates of several parameters together."""
    return CPU_WORTH if place.in_main_memory else CUDA_WORTH


def group_updates(assembled: Assembled, worth: Worth) -> Assembled:
    """Compute the updates of equal parameters of an assembled step together; their states become rows of matrices."""
    grouped = GroupUpdates(assembled.updates, assembled.fetches.values(), worth)(assembled.model)
    PassManager([CheckByProducts(), ZeroBeforeSums()])(assembled.model)
    rows = {name for stack in grouped.stacks for name in stack.members}
    state = (*(name for name in assembled.state if name not in rows), *(stack.name for stack in grouped.stacks))
    return dataclasses.replace(assembled, state=state, updates=grouped.updates, stacks=grouped.stacks)


def split_large(model: ir.Model, *, tensor_cores: bool = False) -> None:
    """Infer the shapes of a training step; use them to widen and fuse products, and to split what turns out large."""
    if not has_backward_pass(model):
        return
    infer_shapes(model)
    is_low = has_low_values(Program(model))
    AttentionSums()(model)
    if is_low:
        joined = [PadInLow(), MeanByProducts(), SumByProducts(), JoinProducts(), CancelTransposes()]
        PassManager([*joined, MoveRowFactors()])(model)
    if tensor_cores:
        leaner = [DeadKeyBiases(), MoveRowFactors(float32=True), RoundSlopes(), PadClasses()]
        means = CentreByProducts() if is_low else MeanByProducts()
        biases = [BiasColumns(), BiasGradients()]
        PassManager([*leaner, means, *biases, ScaleGradients(), PositionsFirst()])(model)
        PassManager([SumSlopes(), AffineRows(), FuseUpdates()])(model)
    if is_low:
        PassManager([CastTogether(), SplitRows()])(model)
    PassManager([PointwiseProducts(), FuseProducts(), WriteInPlace()])(model)


def compute_again(model: ir.Model) -> None:
    """Infer the shapes of a training step, and compute cheap activations again in its backward pass."""
    infer_shapes(model)
    PassManager([Recompute()])(model)


def _scalar_input(model: ir.Model, name: str) -> ir.Value:
    for value in model.graph.inputs:
        if value.name == name:
            return value
    scalar = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    model.graph.inputs.append(scalar)
    return scalar
