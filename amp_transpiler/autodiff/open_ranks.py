"""Inputs whose rank is known once they are fed, in programs with a backward pass.

Where the check of an input's feeds is off, what is fed decides its rank. So the gradients of the nodes that this
concerns wait for the feed, as those do that need sizes which are free (`deferred.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from amp_transpiler.autodiff.bodies import captured
from amp_transpiler.graph.deferred_nodes import WAITING_DOMAIN
from amp_transpiler.graph.infer_outputs import infer_outputs
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.program.program import Program
from amp_transpiler.program.retyped import is_unchecked

__all__ = ["has_open_rank", "leave_open", "reranked"]

_OPEN_KEY = "amp_transpiler.open_rank"  # in `meta` of an input: the backward pass fits any rank of it


def has_open_rank(value: ir.Value) -> bool:
    """Whether an input may be fed with arrays of another rank than it was declared with, by the backward pass too."""
    return is_unchecked(value) and bool(value.meta.get(_OPEN_KEY))


def leave_open(model: ir.Model) -> Collection[ir.Node]:
    """Return the nodes whose gradients have to wait for the ranks of unchecked inputs, and note at these that they do.

    There are none if control flow reads what follows from such an input: its gradient cannot wait.
    """
    inputs = [value for value in model.graph.inputs if is_unchecked(value)]
    shapes = {value: value.shape for value in inputs}
    waits: set[ir.Node] = set()
    unknown = set(inputs)
    try:
        for value in inputs:
            value.shape = None
        for node in list(model.graph) if inputs else ():
            if unknown.isdisjoint((*node.inputs, *captured(node))):
                continue
            if has_bodies(node):
                return frozenset()
            shapes |= {value: value.shape for value in node.outputs}
            _infer(model, node)
            unknown |= {value for value in node.outputs if not _as_known(value.shape, shapes[value])}
            waits.add(node)
    finally:
        for value, shape in shapes.items():
            value.shape = shape
    for value in inputs:
        value.meta[_OPEN_KEY] = True
    return waits


def reranked(program: Program, ranks: Mapping[str, int]) -> Program:
    """Return a copy of a program with a backward pass in which inputs that `has_open_rank` have other ranks.

    Raises:
        MisfitError: an operator does not take what its inputs are then.
    """
    copy = program.clone()
    changed = {copy.value(name) for name in ranks}
    for name, rank in ranks.items():
        copy.value(name).shape = ir.Shape([None] * rank)
    for node in copy.model.graph:
        if changed.isdisjoint(node.inputs):
            continue
        before = [value.shape for value in node.outputs]
        _infer(copy.model, node)
        changed |= {v for v, shape in zip(node.outputs, before, strict=True) if not _as_known(v.shape, shape)}
    return copy


def _infer(model: ir.Model, node: ir.Node) -> None:
    """Infer the shapes of what a node computes again; a gradient that waits has the shape of its value."""
    for value in node.outputs:
        value.shape = None
    if node.domain != WAITING_DOMAIN:
        infer_outputs(model, node)
        return
    for value, place in zip(node.outputs, node.attributes.get_ints("wanted", ()), strict=True):
        of = node.inputs[place]
        value.shape = None if of is None or of.shape is None else ir.Shape(of.shape)


def _as_known(shape: ir.Shape | None, before: ir.Shape | None) -> bool:
    """Whether a shape still says all that it did: the rank, and the sizes that are numbers."""
    if shape is None or before is None or len(shape) != len(before):
        return False
    return all(size == old for size, old in zip(shape, before, strict=True) if isinstance(old, int))
