"""Finds the states of a training step among inputs and outputs that may be states: their pairs, and proofs of them."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.training_step import State, StateRole, TrainingStep
from amp_transpiler.precision.training.carriers import NO_UPDATE, Carried, carry
from amp_transpiler.precision.training.dataflow import Dataflow
from amp_transpiler.precision.training.matching import cheapest_pairs
from amp_transpiler.precision.training.operators import is_elementwise, is_plain_movement, kind
from amp_transpiler.precision.training.proofs import Proofs
from amp_transpiler.precision.training.readers import Reader, entries

__all__ = ["StateSearch"]

_BESIDE = "the forward pass reads it in '{0}', and its gradient enters its update, beside proven parameters"

Pairs: TypeAlias = Collection[tuple[list[ir.Value], list[ir.Value]]]
"""Inputs and outputs that have type and shape in common."""


@dataclasses.dataclass(slots=True)
class _Parameter:
    reason: str
    gradients: dict[str, None]


class StateSearch:
    """One search: candidates, their pairs, and the proofs.

    Args:
        model: a typed and prepared program without control flow; not changed.
        possible: inputs and outputs that have type and shape in common.
        given: input -> output that replaces it, for pairs that the user or the file names.
        reasons: input -> why it is a state, for these.
    """

    def __init__(
        self,
        model: ir.Model,
        possible: Pairs,
        recorded: dict[ir.Value, ir.Value],
        reasons: Mapping[ir.Value, str],
    ) -> None:
        self._model = model
        self._reasons = reasons
        self._flow = Dataflow(model)
        self._recorded = recorded
        self._carried: dict[ir.Value, Carried] = {value: carry(self._flow, value) for value in recorded}
        self._pairs = dict(recorded) | self._matched(possible)
        self._borders: set[ir.Value] = set()
        self._inner: set[ir.Value] = set()
        self._parameters: dict[ir.Value, _Parameter] = {}
        self._above: set[ir.Value] = set()
        self._below: dict[ir.Value, int] = {}

    def _matched(self, possible: Pairs) -> dict[ir.Value, ir.Value]:
        """Pair every input with the output that is most its update, over all inputs of one shape and type."""
        costs: dict[tuple[ir.Value, ir.Value], float] = {}
        taken = set(self._recorded.values())
        for inputs, outputs in possible:
            open_outputs = [value for value in outputs if value not in taken and not value.is_graph_input()]
            for value in inputs:
                if value in self._recorded or not open_outputs or not value.uses():
                    continue
                carried = self._carried[value] = carry(self._flow, value)
                single = self._flow.size(value) == 1  # else proofs ask for a sum
                most = NO_UPDATE if single else math.inf
                costs.update({(value, o): carried[o] for o in open_outputs if carried.get(o, math.inf) < most})
        last = len(self._flow.position)
        for (value, output), cost in costs.items():  # of two equally good, the one computed later
            node = output.producer()
            place = 0 if node is None else self._flow.position.get(node, 0)
            costs[value, output] = cost + 0.01 * (1 - place / (last + 1))
        return cheapest_pairs(costs)

    def run(self) -> TrainingStep | None:
        """Return the training step that the program is, or None."""
        if not self._pairs:
            return None
        self._proofs = Proofs(self._flow, self._pairs, self._carried)
        if multiplied := self._proofs.multiplied() - self._recorded.keys():
            self._pairs = {value: output for value, output in self._pairs.items() if value not in multiplied}
            self._proofs = Proofs(self._flow, self._pairs, self._carried)
        for value, proofs in self._proofs.found.items():
            reasons = {proof.gradient: proof.reason for proof in reversed(proofs)}
            last = self._last([value for value in reasons if not _is_power(value, reasons, self._flow)])
            self._parameters[value] = _Parameter(reasons[last[0]], dict.fromkeys(str(v.name) for v in last))
            self._borders.update(last)
        if not self._parameters and not self._recorded:
            return None
        self._accept()
        states = [
            State(
                input=str(value.name),
                output=str(output.name),
                role=role,
                reason=self._reasons.get(value, reason),
            )
            for value, output in self._pairs.items()
            for role, reason in self._role(value, output)
        ]
        if not states:
            return None
        order = {str(value.name): index for index, value in enumerate(self._model.graph.inputs)}
        roles = ("parameter", "moment", "statistic", "counter")
        states.sort(key=lambda state: (roles.index(state.role), order.get(state.input, -1)))
        gradients = {str(value.name): tuple(parameter.gradients) for value, parameter in self._parameters.items()}
        inner = tuple(sorted(str(value.name) for value in self._proofs.inner | self._inner))
        return TrainingStep(tuple(states), gradients, inner=inner)

    def _last(self, borders: Iterable[ir.Value]) -> list[ir.Value]:
        """Return the values that no other of them is computed from."""
        candidates = list(borders)
        if len(candidates) == 1:
            return candidates
        depends = self._flow.masks({value: 1 << index for index, value in enumerate(candidates)})
        return [v for i, v in enumerate(candidates) if not any(depends[o] >> i & 1 for o in candidates if o is not v)]

    def _accept(self) -> None:
        """Accept, besides proven parameters, those that the forward pass reads and whose gradient enters the update."""
        self._above = self._flow.above(self._borders)
        inside = {value for value in self._above if value.producer() is not None}
        for single in (False, True):  # norms of gradients go into the updates of single numbers
            below = self._flow.masks(dict.fromkeys(self._borders, 1))
            for value, output in self._pairs.items():
                if (self._flow.size(value) == 1) == single and output not in inside:
                    self._accept_one(value, output, inside, below)
        for value in self._recorded:
            if value not in self._parameters and self._is_weight(value):
                self._take_as_given(value, inside)
        self._above |= self._flow.above(self._borders)
        self._below = self._flow.masks(dict.fromkeys(self._borders, 1))
        for value in [value for value in self._parameters if self._looks_ahead(value)]:
            del self._parameters[value]

    def _accept_one(
        self, value: ir.Value, output: ir.Value, inside: Collection[ir.Value], below: Collection[ir.Value]
    ) -> None:
        readers = [reader for reader in self._proofs.readers[value] if self._reads_as_weight(reader)]
        if not readers:
            return
        ends = entries(self._flow, output, value, inside)
        before = {end for end in ends if self._is_inner_update(value, end, readers)}
        self._inner |= before
        ends -= before
        hits = [end for end in ends if self._proofs.depends_on(end, readers)]
        if value in self._parameters:
            hits = [end for end in hits if end not in below]
        else:
            hits = [end for end in hits if end in inside or end in self._borders or end not in below]
            rest = {self._proofs.handed_over(end, value) for end in ends if end not in below}
            hits = hits or list(rest & self._proofs.products_of(value))
        borders = [self._proofs.handed_over(end, value) for end in hits]
        if borders:
            parameter = self._parameters.setdefault(value, _Parameter(_BESIDE.format(readers[0].node.name), {}))
            parameter.gradients.update(dict.fromkeys(str(border.name) for border in borders))
            self._borders.update(borders)

    def _is_weight(self, value: ir.Value) -> bool:
        """Whether an input is multiplied with data, is a table, or is added to something larger."""
        size = self._flow.size(value)
        return any(
            not is_elementwise(reader.node) or self._flow.size(reader.node.outputs[0]) != size
            for reader in self._proofs.readers[value]
        )

    def _take_as_given(self, value: ir.Value, inside: Collection[ir.Value]) -> None:
        """Take what enters the update of a state that was named as its gradient."""
        ends = entries(self._flow, self._pairs[value], value, inside)
        gradients = [self._proofs.handed_over(end, value) for end in ends if end is not self._pairs[value]]
        if gradients:  # else it is made only of itself, as Adam's powers are
            self._parameters[value] = _Parameter("", dict.fromkeys(str(gradient.name) for gradient in gradients))
            self._borders.update(gradients)

    def _is_inner_update(self, value: ir.Value, end: ir.Value, readers: Iterable[Reader]) -> bool:
        """Whether the state is there again, after it was changed by something that depends on its readers."""
        carried, node = self._carried[value], end.producer()
        if carried.get(end) != 0 or node is None:
            return False
        others = (other for other in node.inputs if other is not None and other not in carried)
        return any(self._proofs.depends_on(other, readers) for other in others)

    def _reads_as_weight(self, reader: Reader) -> bool:
        """Whether a reader belongs to the forward pass, and multiplies data, if anything."""
        if self._above.isdisjoint(reader.node.outputs):
            return False
        return reader.other is None or reader.other in self._proofs.data

    def _looks_ahead(self, value: ir.Value) -> bool:
        """Whether the forward pass reads a moment, added to the parameter that it moves."""
        carried = self._carried[value]
        readers = [reader for reader in self._proofs.readers[value] if self._reads_as_weight(reader)]
        if not readers or any(carried.get(reader.read, 0) == 0 for reader in readers):
            return False
        return any(self._pairs[other] in carried for other in self._parameters if other is not value)

    def _mixes(self, value: ir.Value) -> bool:
        """Whether gradients are in an update directly, as in those of a parameter's moments."""
        return not self._borders.isdisjoint(entries(self._flow, self._pairs[value], value, self._borders))

    def _role(self, value: ir.Value, output: ir.Value) -> list[tuple[StateRole, str]]:
        if value in self._parameters:
            return [("parameter", self._parameters[value].reason)]
        single = self._flow.size(value) == 1
        is_float = value.dtype is not None and value.dtype.is_floating_point()
        made_of_gradients = self._mixes(value) or (output in self._below and not single and value not in self._above)
        if is_float and made_of_gradients:
            return [("moment", "its update is made of gradients of proven parameters")]
        is_apart = value not in self._above and output not in self._above
        if self._parameters and is_float and not single and is_apart:
            return [("statistic", "the forward pass updates it and does not read it")]
        if value in self._recorded:
            return [("moment" if is_float and not single else "counter", "")]
        if single or not is_float:
            return [("counter", "its update reads only it, beside proven parameters")]
        return []


def _is_power(value: ir.Value, gradients: Collection[ir.Value], flow: Dataflow) -> bool:
    """Whether a value is a product of gradients and single numbers: a clipped gradient, or one with itself."""
    node = value.producer()
    while node is not None and is_plain_movement(node):
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    if node is None or kind(node) != "Mul":
        return False
    of_gradients = [_is_made_of(operand, gradients) for operand in node.inputs]
    numbers = [operand is not None and flow.size(operand) == 1 for operand in node.inputs]
    return any(of_gradients) and all(map(operator.or_, of_gradients, numbers))


def _is_made_of(value: ir.Value | None, gradients: Collection[ir.Value]) -> bool:
    """Whether a value is one of the gradients, but for its shape and a constant factor."""
    while value is not None and value not in gradients:
        node = value.producer()
        operands = [] if node is None else [operand for operand in node.inputs if constant_of(operand) is None]
        if node is None or not (is_plain_movement(node) or (kind(node) in ("Mul", "Div") and len(operands) == 1)):
            return False
        value = node.inputs[0] if is_plain_movement(node) else operands[0]
    return value is not None
