"""The memory of a program's results, computed from the program instead of measured on a device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.assemble import assemble
from amp_transpiler.graph.builder import is_static, shape_of
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.walk import bodies
from amp_transpiler.passes.training import VIEWS
from amp_transpiler.runtime.compile import compute_again, lower, split_large

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
    return max(run.alive())


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
    computed = {value for node in run.nodes if role_of(node) == "forward" for value in node.outputs}
    read = {run.memory(value) for node in run.nodes if role_of(node) == "backward" for value in _reads(node)}
    return sum(map(_bytes_of, computed & read))


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
        if recompute:
            compute_again(model)
        self.graph = model.graph
        self.nodes = list(model.graph)
        self._sources: dict[ir.Value, ir.Value] = {}
        for node in self.nodes:
            if node.op_type in VIEWS and node.inputs[0] is not None:
                self._sources[node.outputs[0]] = self.memory(node.inputs[0])

    def memory(self, value: ir.Value) -> ir.Value:
        """Return the value whose memory holds `value`: `value` itself, or the one it is a view of."""
        return self._sources.get(value, value)

    def alive(self) -> Iterator[int]:
        """Yield the bytes alive before the first node and during each node."""
        ends: dict[ir.Value, int] = {}
        for index, node in enumerate(self.nodes):
            ends |= {self.memory(value): index for value in _reads(node)}
        ends |= {self.memory(value): len(self.nodes) for value in self.graph.outputs}
        alive = sum(map(_bytes_of, self.graph.inputs))
        yield alive
        dying: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            for value in node.outputs:
                if value in ends and value not in self._sources:
                    alive += _bytes_of(value)
                    dying[ends[value]] = dying.get(ends[value], 0) + _bytes_of(value)
            yield alive
            alive -= dying.pop(index, 0)


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node and its bodies read."""
    yield from (value for value in node.inputs if value is not None)
    for _, body in bodies(node):
        for inner in body:
            yield from _reads(inner)


def _bytes_of(value: ir.Value) -> int:
    if value.dtype is None or not is_static(value):
        raise InputError(f"'{value.name}' has no known size, {value.type} {value.shape}: give every input a full shape")
    return math.prod(shape_of(value)) * value.dtype.bitwidth // 8
