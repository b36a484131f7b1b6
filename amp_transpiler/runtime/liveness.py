"""How many bytes of results a program holds on to, counted from the program instead of measured on a device."""

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
from amp_transpiler.runtime.compile import lower

__all__ = ["kept_bytes", "live_bytes"]

# Operators whose result is their input in another shape, which ONNX Runtime does not copy.
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


def live_bytes(program: Program, fetch: Sequence[str] | None = None) -> int:
    """Return the most bytes alive at the same time in one run, as it would run on CUDA.

    Counted: the inputs, parameters and other persistable values of a training program among them, all the time; every
    result of the main graph from its node to its last reader, what is fetched and what replaces a persistable value to
    the end; nodes in the program's order. Not counted: constants and weights inside of the file, views, which share
    their input's memory, a node's own workspace, and what the bodies of If, Loop and Scan make. No node writes over its
    input and none is fused with another, so that a runtime may need less.

    Args:
        program: a training program or a model; every shape must follow from those of its inputs.
        fetch: names of what is fetched; None for the outputs.

    Raises:
        InputError: something fetched does not exist, or a result has no known shape.
    """
    run = _Run(program, fetch)
    return max(run.alive())


def kept_bytes(program: Program, fetch: Sequence[str] | None = None) -> int:
    """Return the bytes that the forward pass of a training program makes and its backward pass reads.

    They are the activations kept for the backward pass, and low copies of parameters and feeds that it reads. The
    parameters and feeds themselves are not counted, whose size is the same in every precision; otherwise it is counted
    as for `live_bytes`. 0 for a program without a backward pass.

    Args:
        program: a training program; every shape must follow from those of its inputs.
        fetch: names of what is fetched; None for the outputs.

    Raises:
        InputError: something fetched does not exist, or a result has no known shape.
    """
    run = _Run(program, fetch)
    made = {value for node in run.nodes if role_of(node) == "forward" for value in node.outputs}
    read = {run.memory(value) for node in run.nodes if role_of(node) == "backward" for value in _reads(node)}
    return sum(map(_bytes_of, made & read))


class _Run:
    """A program as ONNX Runtime gets it, and whose memory each of its values is in."""

    def __init__(self, program: Program, fetch: Sequence[str] | None) -> None:
        if fetch is None:
            outputs = [str(value.name) for value in program.model.graph.outputs]
            fetch = program.outputs if program.is_training else outputs
        model = lower(assemble(program, fetch)).model
        infer_shapes(model)
        self.graph = model.graph
        self.nodes = list(model.graph)
        self._sources: dict[ir.Value, ir.Value] = {}
        for node in self.nodes:
            if node.op_type in _VIEWS and node.inputs[0] is not None:
                self._sources[node.outputs[0]] = self.memory(node.inputs[0])

    def memory(self, value: ir.Value) -> ir.Value:
        """Return the value itself, or what it is a view of."""
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
    """Yield what a node reads, through its bodies too."""
    yield from (value for value in node.inputs if value is not None)
    for _, body in bodies(node):
        for inner in body:
            yield from _reads(inner)


def _bytes_of(value: ir.Value) -> int:
    if value.dtype is None or not is_static(value):
        raise InputError(f"'{value.name}' has no known size, {value.type} {value.shape}: give every input a full shape")
    return math.prod(shape_of(value)) * value.dtype.bitwidth // 8
