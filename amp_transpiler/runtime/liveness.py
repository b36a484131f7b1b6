"""The memory of a program's results, computed from the program instead of measured on a device."""

from __future__ import annotations

from collections.abc import Sequence

from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.program.assemble import assemble
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.lowering import compute_again, lower, split_large
from amp_transpiler.training_passes import is_recompute_asked
from amp_transpiler.training_passes.alive import Memory, bytes_of, reads

__all__ = ["kept_bytes", "live_bytes"]


def live_bytes(program: Program, fetch: Sequence[str] | None = None, *, recompute: bool = False) -> int:
    """Return the largest number of bytes alive at the same time in one run, as it would run on CUDA.

    Nodes run in the program's order. Inputs, among them parameters and other persistable values, are alive all the
    time. A result is alive from its node to its last reader; fetched values and updates, to the end. Not counted are
    constants and weights of the file, views (they share their input's memory), the workspace of a node, and results
    inside of bodies. No node is taken to overwrite its input or to be fused, so a runtime may need less.

    Args:
        program: a training program or a model; the shapes of its inputs must determine all others.
        fetch: the fetched names; None for the outputs.
        recompute: whether the backward pass computes cheap activations again; see `Executor`.

    Raises:
        InputError: a fetched name does not exist, or a result has no known shape.
    """
    run = _Run(program, fetch, recompute=recompute)
    return max(run.memory.alive())


def kept_bytes(program: Program, fetch: Sequence[str] | None = None, *, recompute: bool = False) -> int:
    """Return the bytes of the forward pass's results that the backward pass of a training program reads.

    These are activations, and low copies of parameters and feeds. Parameters and feeds themselves do not count: their
    size is the same in every precision. The rest is counted as in `live_bytes`. 0 without a backward pass.

    Args:
        program: a training program; the shapes of its inputs must determine all others.
        fetch: the fetched names; None for the outputs.
        recompute: whether the backward pass computes cheap activations again; see `Executor`.

    Raises:
        InputError: a fetched name does not exist, or a result has no known shape.
    """
    run = _Run(program, fetch, recompute=recompute)
    computed = {value for node in run.memory.nodes if role_of(node) == "forward" for value in node.outputs}
    backward = [node for node in run.memory.nodes if role_of(node) == "backward"]
    read = {run.memory.of(value) for node in backward for value in reads(node)}
    return sum(map(bytes_of, computed & read))


class _Run:
    """A program as ONNX Runtime runs it, with the memory of each value."""

    def __init__(self, program: Program, fetch: Sequence[str] | None, *, recompute: bool) -> None:
        if fetch is None:
            outputs = [str(value.name) for value in program.model.graph.outputs]
            fetch = program.outputs if program.is_training else outputs
        model = lower(assemble(program, fetch)).model
        infer_shapes(model)
        split_large(model)
        infer_shapes(model)
        if recompute or is_recompute_asked(program.model):
            compute_again(model)
        self.memory = Memory(model.graph)
