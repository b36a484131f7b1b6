"""Reduces long rows in stages, since cuDNN's kernel for maxima, norms and products is serial in a row."""

from __future__ import annotations

import math

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["ReduceInStages"]

_LONG = 1024  # elements of a row, from which the walk takes longer than another kernel
_SHORT = 256  # elements of a row of the first stage, at most
_LEAST = 8  # elements of such a row: with fewer, the second stage has hardly less to do
_ANY_TYPE = frozenset({"ReduceMax", "ReduceMin"})  # they round nothing
_FLOAT32 = frozenset({"ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceProd"})  # 16 bits would round in between


class ReduceInStages(Pass[PassResult]):
    """Writes maxima, minima, norms and products over long last axes as two or more reductions; counts them.

    The maximum of 30,720 numbers becomes 120 maxima of 256 numbers each, and one of these. ReduceSum and ReduceMean
    have kernels of their own, which need no help.

    Maxima and minima stay the same, to the bit; the others are float32 and round elsewhere. Shapes must be inferred.
    """

    def call(self, model: ir.Model) -> PassResult:
        count = 0
        names: NameAllocator | None = None
        for node in list(all_nodes(model)):
            length = _length(node)
            stages = [] if length is None else _stages(length)
            if len(stages) > 1:
                names = names or NameAllocator(model)
                _rewrite(model, node, stages, names)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


def _length(node: ir.Node) -> int | None:
    """Return how many numbers a reduction over the last axes reduces to one; None for other nodes."""
    value = node.inputs[0] if node.op_type in _ANY_TYPE | _FLOAT32 and is_standard(node) else None
    if value is None or not is_static(value) or not is_static(node.outputs[0]):
        return None
    if node.op_type in _FLOAT32 and (value.dtype in LOW_DTYPES or value.dtype is None):
        return None
    shape, axes = shape_of(value), _axes(node, len(shape_of(value)))
    if axes is None or axes != list(range(len(shape) - len(axes), len(shape))):
        return None
    return math.prod(shape[len(shape) - len(axes) :])


def _axes(node: ir.Node, rank: int) -> list[int] | None:
    """Return the axes of a reduction in order; None if they are not known or there are none."""
    listed = node.attributes.get_ints("axes", None)
    if listed is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        constant = constant_of(node.inputs[1])
        listed = None if constant is None else constant.numpy().reshape(-1).tolist()
        if not listed:
            return None
    return sorted(axis % rank for axis in listed) if listed else list(range(rank))


def _stages(length: int) -> list[int]:
    """Return how many numbers each stage reduces to one, the first stage first; one stage if no division is even."""
    stages = []
    while length > _LONG:
        short = next((size for size in range(_SHORT, _LEAST - 1, -1) if length % size == 0), None)
        if short is None:
            break
        stages.append(short)
        length //= short
    return [*stages, length]


def _rewrite(model: ir.Model, node: ir.Node, stages: list[int], names: NameAllocator) -> None:
    graph, value = node.graph, node.inputs[0]
    assert isinstance(graph, ir.Graph)
    assert value is not None
    build = GraphBuilder(
        model, graph=graph, before=node, names=names, metadata=node.metadata_props, prefix=f"{node.name}/"
    )
    rows = math.prod(shape_of(value)) // math.prod(stages)
    for index, short in enumerate(stages):
        rest = math.prod(stages[index + 1 :])
        value = build.reduce(node.op_type, build.reshape(value, [rows * rest, short]), [1], low=True)
    take_over(node.outputs[0], build.reshape(value, list(shape_of(node.outputs[0]))), names)
    graph.remove(node, safe=True)
