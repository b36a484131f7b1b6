"""Finds for each result of a float32 program the same result of a low program, whatever tool made that.

A low program has casts more than its source, its names may be others, and some nodes may be fused. So nodes are paired
by structure first, from the inputs on: the same operator, reading what is paired already, casts between floats left
out. Where several fit, names, attributes and constants decide. Where none does, a node or result of the same name does.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_tensor
from amp_transpiler.graph.dtypes import FLOAT_DTYPES
from amp_transpiler.graph.names import values_by_name
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.ops.names import is_standard
from amp_transpiler.program.program import Program

__all__ = ["Pairs", "Shapes", "pair", "through_casts"]

_SAMPLE = 64  # numbers of a constant by which two that fit are told apart
_SUMS = {"SkipLayerNormalization": 3, "SkipSimplifiedLayerNormalization": 3}  # outputs of ONNX Runtime's operators
_MEANT = 0.8  # share of equal names that stand for equal operators, from which names mean anything
_CASTS = frozenset({"Cast", "CastLike", "Identity"})


Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""The name of a result -> its shape."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pairs:
    """Results that two programs have in common.

    Attributes:
        low: result of the float32 program -> result of the low one.
        unmatched: nodes of the float32 program, casts left out, without a paired result.
    """

    low: Mapping[ir.Value, ir.Value]
    unmatched: tuple[ir.Node, ...]

    def of_shapes(self, shapes: Shapes, low_shapes: Shapes) -> Pairs:
        """Return those pairs whose results have one shape, as far as that is known.

        Args:
            shapes: result of the float32 program -> its shape.
            low_shapes: the same for the low program.
        """
        low = {}
        for its, mine in self.low.items():
            shape = shapes.get(str(its.name))
            if shape is None or low_shapes.get(str(mine.name), shape) == shape:
                low[its] = mine
        left_out = dict.fromkeys(its.producer() for its in self.low if its not in low)
        return Pairs(low, (*self.unmatched, *(node for node in left_out if node is not None)))


def pair(reference: Program, low: Program) -> Pairs:
    """Pair the results of the main graphs of two programs; inputs are paired by their names, and so are outputs.

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
        nodes = {str(node.name): node for node in reference if node.name}
        values = values_by_name(reference)
        named = [(node, nodes.get(str(node.name))) for node in low]
        self._nodes = nodes if _are_the_same(named) else {}
        makers = [(node, values[str(v.name)].producer()) for node in low for v in node.outputs if v.name in values]
        self._values = values if _are_the_same(makers) else {}
        self._readers: dict[ir.Value, list[ir.Node]] = collections.defaultdict(list)
        self._operators = {node.op_type for node in reference}
        self._order = {node: index for index, node in enumerate(reference)}
        for node in reference:
            for value in dict.fromkeys(node.inputs):
                if value is not None:
                    self._readers[through_casts(value)].append(node)

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
            elif node.op_type == "Cast" and node.inputs[0] in self._of_low:  # one that the low program has more
                self._pass_on(node)
            else:
                self._take_by_value_names(node)
        self._go_back()
        unmatched = [
            node
            for node in self._reference
            if node.op_type not in _CASTS and not any(value in self._taken for value in node.outputs)
        ]
        return Pairs(self._taken, tuple(unmatched))

    def _go_back(self) -> None:
        """Pair what paired nodes read, such as results of fused nodes, which have no partner of their own."""
        self._pair_outputs()
        makers = {mine: its for its, mine in self._taken.items()}
        for node in reversed(list(self._low)):
            partner = next((makers[value].producer() for value in node.outputs if value in makers), None)
            if partner is None or len(partner.inputs) != len(node.inputs) or not _is_same_operator(node, partner):
                continue
            for mine, its in zip(node.inputs, partner.inputs, strict=True):
                if mine is None or its is None:
                    continue
                read, should = through_casts(mine), through_casts(its)
                if read not in makers and read.producer() is not None and self._may_pair(should, read):
                    self._taken[should] = read
                    makers[read] = should
                    self._pair_sum(read, should, makers)

    def _pair_outputs(self) -> None:
        """Pair outputs of one name, which a fused node may make."""
        outputs = {value.name: value for value in self._reference.outputs}
        paired = set(self._taken.values())
        for value in self._low.outputs:
            if value.name in outputs:
                result, should = through_casts(value), through_casts(outputs[value.name])
                if result not in paired and result.producer() is not None and self._may_pair(should, result):
                    self._taken[should] = result

    def _pair_sum(self, result: ir.Value, should: ir.Value, makers: dict[ir.Value, ir.Value]) -> None:
        """Pair the sum that a fused normalisation also returns: what the plain one reads."""
        fused, plain = result.producer(), should.producer()
        place = None if fused is None else _SUMS.get(fused.op_type)
        if fused is None or plain is None or place is None or len(fused.outputs) <= place:
            return
        total, read = fused.outputs[place], plain.inputs[0]
        if total.name and read is not None and self._may_pair(read, total):
            self._taken[read] = total
            makers[total] = read

    def _may_pair(self, its: ir.Value, mine: ir.Value) -> bool:
        return its.producer() is not None and its not in self._taken and _alike(its, mine)

    def _pass_on(self, cast: ir.Node) -> None:
        source = cast.inputs[0]
        if source in self._of_low:
            self._of_low[cast.outputs[0]] = self._of_low[source]

    def _take(self, node: ir.Node, partner: ir.Node) -> None:
        self._used.add(partner)
        for mine, its in zip(node.outputs, partner.outputs, strict=False):
            if mine.name and its.name and its not in self._taken:
                self._of_low[mine] = through_casts(its)
                self._taken[its] = mine

    def _take_by_value_names(self, node: ir.Node) -> None:
        for value in node.outputs:
            its = self._values.get(str(value.name))
            if its is None or not self._may_pair(its, value):
                continue
            # An operator that both programs have stands for itself, not for another one.
            producer = its.producer()
            if producer is None:
                continue
            is_same = producer.op_type == node.op_type and self._reads_no_other(node, producer)
            if is_same or node.op_type not in self._operators:
                self._of_low[value] = through_casts(its)
                self._taken[its] = value

    def _partner(self, node: ir.Node) -> ir.Node | None:
        reads = [self._of_low.get(value) if value is not None else None for value in node.inputs]
        named = self._nodes.get(str(node.name))
        if named is not None and self._fits(node, reads, named):
            return named
        first = next((value for value in reads if value is not None), None)
        readers = () if first is None else self._readers[through_casts(first)]
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
            if known is not None and (its is None or through_casts(its) is not through_casts(known)):
                return False
            if known is None and mine is not None and constant_tensor(its) is None and _constant(mine) is not None:
                return False
        return True

    def _reads_no_other(self, node: ir.Node, other: ir.Node) -> bool:
        """Whether another node reads all that a node reads, in whatever order, as far as that is paired."""
        known = {through_casts(self._of_low[value]) for value in node.inputs if value in self._of_low}
        return known <= {through_casts(value) for value in other.inputs if value is not None}

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


def _are_the_same(named: Sequence[tuple[ir.Node, ir.Node | None]]) -> bool:
    """Whether names mean the same in both programs: where names were given anew, equal ones are chance.

    Args:
        named: a node of the low program, and the one of that name in the float32 program.
    """
    both = [(node, other) for node, other in named if other is not None and node.op_type not in _CASTS]
    same = sum(node.op_type == other.op_type for node, other in both)
    return same >= _MEANT * len(both)


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


def through_casts(value: ir.Value) -> ir.Value:
    """Return the value that casts between floats, and Identities, make another one of."""
    while (node := value.producer()) is not None and _is_float_cast(node) and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _alike(value: ir.Value, other: ir.Value) -> bool:
    """Whether both are floats, or of one type, and of one rank as far as that is known."""
    if value.shape is not None and other.shape is not None and len(value.shape) != len(other.shape):
        return False
    return value.dtype == other.dtype or (value.dtype in FLOAT_DTYPES and other.dtype in FLOAT_DTYPES)


def _same_attribute(first: ir.Attr, second: ir.Attr) -> bool:
    if first.type != second.type or first.type in (ir.AttributeType.GRAPH, ir.AttributeType.TENSOR):
        return first.type == second.type
    return bool(first.value == second.value)


def _constant(value: ir.Value) -> np.ndarray | None:
    tensor = constant_tensor(through_casts(value))
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
