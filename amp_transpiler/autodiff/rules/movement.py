"""Gradients of operators that move elements about: their transposes move them back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.autodiff.rules.placing import axis_of, dim
from amp_transpiler.graph.builder import rank_of


@gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(n: NodeGradient) -> ir.Value:
    """`g` in the shape of `x`."""
    return n.b.reshape_like(n.g, n.x)


@gradient("Transpose")
def transpose(n: NodeGradient) -> ir.Value:
    """`g` by the inverse permutation; without one, axes were reversed, which undoes itself."""
    perm = n.attribute("perm")
    if perm is None:
        return n.b.op("Transpose", [n.g])
    return n.b.transpose(n.g, [int(axis) for axis in np.argsort(list(perm))])


@gradient("Concat")
def concat(n: NodeGradient) -> Sequence[ir.Value | None]:
    """`g` split at the seams."""
    parts = [value for value in n.node.inputs if value is not None]
    if len(parts) == 1:
        return [n.g]
    axis = axis_of(n.attribute("axis"), rank_of(n.y))
    sizes = [dim(part, axis) for part in parts]
    if None in sizes:
        where = n.b.constant(np.array([axis], np.int64))
        split = n.b.concat([n.b.op("Gather", [n.b.shape(part), where]) for part in parts], 0)
    else:
        split = n.b.constant(np.array(sizes, np.int64))
    made = n.b.nodes("Split", [n.g, split], {"axis": axis}, outputs=len(parts))
    for value, part in zip(made, parts, strict=True):
        if part.shape is not None:
            value.shape = ir.Shape(part.shape)
    return made


@gradient("Split")
def split(n: NodeGradient) -> ir.Value:
    """The gradients of the parts put together, zeros where a part has none."""
    parts = [n.b.zeros_like(n.output(i)) if grad is None else grad for i, grad in enumerate(n.grads)]
    return n.b.concat(parts, n.attribute("axis", 0))


@gradient("Expand")
def expand(n: NodeGradient) -> ir.Value:
    """`g`: the driver sums it over the axes that were repeated."""
    return n.g


@gradient("Tile")
def tile(n: NodeGradient) -> ir.Value:
    """`g` as [repeats, size, repeats, size, ...], summed over the repeats."""
    rank, repeats = rank_of(n.x), n.input(1)
    shape = n.b.concat([n.b.unsqueeze(part, [1]) for part in (repeats, n.b.shape(n.x))], 1)
    pairs = n.b.reshape(n.g, n.b.reshape(shape, [-1]))
    return n.b.reshape_like(n.b.sum(pairs, range(0, 2 * rank, 2), keepdims=False), n.x)


@gradient("Trilu")
def trilu(n: NodeGradient) -> ir.Value:
    """The same triangle of `g`."""
    return n.b.op("Trilu", [n.g, *n.node.inputs[1:]], {"upper": n.attribute("upper", 1)})


@gradient("CumSum")
def cumulative_sum(n: NodeGradient) -> ir.Value:
    """The cumulative sum of `g` from the other end, in float32."""
    attributes = {"exclusive": n.attribute("exclusive", 0), "reverse": 1 - n.attribute("reverse", 0)}
    return n.b.op("CumSum", [n.b.high(n.g), n.input(1)], attributes)


@gradient("ReverseSequence")
def reverse_sequence(n: NodeGradient) -> ir.Value:
    """The same sequences of `g` reversed."""
    attributes = {"batch_axis": n.attribute("batch_axis", 1), "time_axis": n.attribute("time_axis", 0)}
    return n.b.op("ReverseSequence", [n.g, n.input(1)], attributes)
