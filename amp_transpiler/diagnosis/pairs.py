"""Finds for each result of a float32 program the same result of a low program, whatever tool made that.

A low program has casts more than its source, its names may be others, and some nodes may be fused. So nodes are paired
by structure first, from the inputs on: the same operator, reading what is paired already, casts between floats left
out. Where several fit, names, attributes and constants decide. Where none does, a node or result of the same name does.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_tensor
from amp_transpiler.graph.dtypes import FLOAT_DTYPES
from amp_transpiler.graph.names import values_by_name
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.ops.names import is_standard
from amp_transpiler.program.program import Program

__all__ = ["Pairs", "pair"]

_SAMPLE = 64  # numbers of a constant by which two that fit are told apart
_CASTS = frozenset({"Cast", "CastLike", "Identity"})


@dataclasses.dataclass(frozen=True, slots=True)
class Pairs:
    """Results that two programs have in common.

    Attributes:
        low: result of the float32 program -> result of the low one.
        unmatched: nodes of the float32 program, casts left out, without a paired result.
    """

    low: Mapping[ir.Value, ir.Value]
    unmatched: tuple[ir.Node, ...]


def pair(reference: Program, low: Program) -> Pairs:
    """Pair the results of the main graphs of two programs; inputs are paired by their names.

    Args:
        reference: the float32 program, typed, without functions.
        low: the low program, typed, without functions.
    """
    return _Pairing(reference.model.graph, low.model.graph).run()


class _Pairing:
    def __init__(self, reference: ir.Graph, low: ir.Graph) -> None:
        self._reference, self._low = reference, low
        self._of_low: dict[ir.Value, ir.Value] = {}  # value of the low program -> value of the float32 program
        self._taken: dict[ir.Value, ir.Value] = {}  # the other way round: results only
        self._used: set[ir.Node] = set()
        self._nodes = {str(node.name): node for node in reference if node.name}
        self._values = values_by_name(reference)
        self._readers: dict[ir.Value, list[ir.Node]] = collections.defaultdict(list)
        self._order = {node: index for index, node in enumerate(reference)}
        for node in reference:
            for value in dict.fromkeys(node.inputs):
                if value is not None:
                    self._readers[_through_casts(value)].append(node)

    def run(self) -> Pairs:
        """Pair everything, in the order of the low program."""
        inputs = {value.name: value for value in self._reference.inputs}
        for value in self._low.inputs:
            if value.name in inputs:
                self._of_low[value] = inputs[value.name]
        for node in self._low:
            if _is_float_cast(node):
                self._pass_on(node)
            elif (partner := self._partner(node)) is not None:
                self._take(node, partner)
            else:
                self._take_by_value_names(node)
        unmatched = [
            node
            for node in self._reference
            if node.op_type not in _CASTS and not any(value in self._taken for value in node.outputs)
        ]
        return Pairs(self._taken, tuple(unmatched))

    def _pass_on(self, cast: ir.Node) -> None:
        source = cast.inputs[0]
        if source in self._of_low:
            self._of_low[cast.outputs[0]] = self._of_low[source]

    def _take(self, node: ir.Node, partner: ir.Node) -> None:
        self._used.add(partner)
        for mine, its in zip(node.outputs, partner.outputs, strict=False):
            if mine.name and its.name and its not in self._taken:
                self._of_low[mine] = _through_casts(its)
                self._taken[its] = mine

    def _take_by_value_names(self, node: ir.Node) -> None:
        for value in node.outputs:
            its = self._values.get(str(value.name))
            if its is not None and its.producer() is not None and its not in self._taken and _alike(its, value):
                self._of_low[value] = _through_casts(its)
                self._taken[its] = value

    def _partner(self, node: ir.Node) -> ir.Node | None:
        reads = [self._of_low.get(value) if value is not None else None for value in node.inputs]
        named = self._nodes.get(str(node.name))
        if named is not None and self._fits(node, reads, named):
            return named
        first = next((value for value in reads if value is not None), None)
        readers = () if first is None else self._readers[_through_casts(first)]
        fitting = [other for other in readers if self._fits(node, reads, other)]
        if not fitting:
            return None
        return max(fitting, key=lambda other: (*self._likeness(node, other), -self._order[other]))

    def _fits(self, node: ir.Node, reads: Sequence[ir.Value | None], other: ir.Node) -> bool:
        """Whether another node computes the same and reads the same, as far as that is paired."""
        return other not in self._used and _is_same_operator(node, other) and self._reads_the_same(node, reads, other)

    def _reads_the_same(self, node: ir.Node, reads: Sequence[ir.Value | None], other: ir.Node) -> bool:
        if len(node.inputs) != len(other.inputs):
            return False
        for mine, known, its in zip(node.inputs, reads, other.inputs, strict=True):
            if (mine is None) != (its is None):
                return False
            if known is not None and (its is None or _through_casts(its) is not _through_casts(known)):
                return False
            if known is None and mine is not None and constant_tensor(its) is None and _constant(mine) is not None:
                return False
        return True

    def _likeness(self, node: ir.Node, other: ir.Node) -> tuple[int, int, int, float]:
        """Say how much two nodes have in common; the larger, the more."""
        names = {value.name for value in node.outputs} & {value.name for value in other.outputs}
        same = sum(
            _same_attribute(other.attributes[name], a)
            for name, a in node.attributes.items()
            if name in other.attributes
        )
        readers = -abs(len(node.outputs[0].uses()) - len(other.outputs[0].uses()))
        return len(names), same, readers, -_distance(node, other)


def _is_same_operator(node: ir.Node, other: ir.Node) -> bool:
    return node.op_type == other.op_type and is_standard(node) == is_standard(other)


def _is_float_cast(node: ir.Node) -> bool:
    """Whether a node hands a float on, in another format or in the same."""
    if node.op_type not in _CASTS or not is_standard(node):
        return False
    read, result = node.inputs[0], node.outputs[0]
    if node.op_type == "Identity":
        return True
    return read is not None and read.dtype in FLOAT_DTYPES and result.dtype in FLOAT_DTYPES


def _through_casts(value: ir.Value) -> ir.Value:
    while (node := value.producer()) is not None and _is_float_cast(node) and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _alike(value: ir.Value, other: ir.Value) -> bool:
    """Whether both are floats, or of one type."""
    return value.dtype == other.dtype or (value.dtype in FLOAT_DTYPES and other.dtype in FLOAT_DTYPES)


def _same_attribute(first: ir.Attr, second: ir.Attr) -> bool:
    if first.type != second.type or first.type in (ir.AttributeType.GRAPH, ir.AttributeType.TENSOR):
        return first.type == second.type
    return bool(first.value == second.value)


def _constant(value: ir.Value) -> np.ndarray | None:
    tensor = constant_tensor(_through_casts(value))
    return None if tensor is None else tensor.numpy().reshape(-1)[:_SAMPLE].astype(np.float64)


def _distance(node: ir.Node, other: ir.Node) -> float:
    """Return how far the constants of two nodes lie apart: the sum of relative differences."""
    total = 0.0
    if has_bodies(node):
        return total
    for mine, its in zip(node.inputs, other.inputs, strict=False):
        first, second = (None if value is None else _constant(value) for value in (mine, its))
        if first is None or second is None:
            continue
        if first.shape != second.shape:
            return float("inf")
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.nan_to_num(np.abs(first - second), nan=1.0, posinf=1.0).clip(0.0, 1e30)
            total += float(distance.sum() / (np.abs(np.nan_to_num(second)).sum() + 1e-30))
    return total
