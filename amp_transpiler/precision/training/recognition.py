"""From a loaded program to its training step: which outputs replace which inputs, by dataflow; names prove nothing."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.training_step import State, StateRole, TrainingStep
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.training.carriers import Carried, carry
from amp_transpiler.precision.training.dataflow import Dataflow
from amp_transpiler.precision.training.matching import cheapest_pairs
from amp_transpiler.precision.training.operators import REDUCTIONS, is_plain_movement
from amp_transpiler.precision.training.readers import FactorIndex, Reader, entries, readers_of

__all__ = ["find_training_step"]

logger = logging.getLogger(__name__)

_PROVEN = "its gradient, {0}, is computed from what its reader '{1}' reads"
_BESIDE = "the forward pass reads it in '{0}', and its gradient enters its update, beside proven parameters"


def find_training_step(
    model: ir.Model, bound: Mapping[str, str] | None = None, recorded: Mapping[str, str] | None = None
) -> TrainingStep | None:
    """Return the training step that a program is, or None.

    Args:
        model: a typed and prepared program: functions inlined, nodes in topological order. It is not changed.
        bound: input -> output that replaces it, for pairs that the user names.
        recorded: likewise, for pairs that the file names; those that are not there count for nothing.

    Raises:
        OptionError: a pair in `bound` cannot be: a name is unknown, or shape or type differ.
    """
    by_user, by_file = _checked(model, bound or {}), _recorded(model, recorded or {})
    reasons = dict.fromkeys(by_file, "the file says so") | dict.fromkeys(by_user, "named with --state")
    possible = _possible_pairs(model)
    if not possible and not reasons:
        return None
    return _Search(model, possible, by_file | by_user, reasons).run()


def _recorded(model: ir.Model, recorded: Mapping[str, str]) -> dict[ir.Value, ir.Value]:
    """Return the pairs that a file names, as values, without those whose names are gone or do not fit."""
    found: dict[ir.Value, ir.Value] = {}
    for name, output in recorded.items():
        try:
            found |= _checked(model, {name: output})
        except OptionError as error:
            logger.info("a state that the file names is not used: %s", error)
    return found


def _checked(model: ir.Model, bound: Mapping[str, str]) -> dict[ir.Value, ir.Value]:
    """Return the given pairs as values."""
    inputs = {str(value.name): value for value in (*model.graph.initializers.values(), *model.graph.inputs)}
    outputs = {str(value.name): value for value in model.graph.outputs}
    found: dict[ir.Value, ir.Value] = {}
    for name, output in bound.items():
        which = f"--state {name}={output}"
        if name not in inputs:
            raise OptionError(f"{which}: the model has no input '{name}'; it has {', '.join(inputs) or 'none'}")
        if output not in outputs:
            raise OptionError(f"{which}: the model has no output '{output}'; it has {', '.join(outputs)}")
        old, new = inputs[name], outputs[output]
        if old.dtype != new.dtype or not _may_be_equal(old, new):
            raise OptionError(
                f"{which}: an update has the shape and type of its state, but '{name}' is {old.dtype} {old.shape} and "
                f"'{output}' is {new.dtype} {new.shape}"
            )
        if new in found.values():
            raise OptionError(f"{which}: output '{output}' is the update of another input already")
        found[old] = new
    return found


def _may_be_equal(old: ir.Value, new: ir.Value) -> bool:
    if old.shape is None or new.shape is None:
        return True
    sizes = zip(old.shape, new.shape, strict=False)
    return len(old.shape) == len(new.shape) and all(
        a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int)
    )


Key = tuple[ir.DataType | None, tuple[int, ...]]


def _possible_pairs(model: ir.Model) -> dict[Key, tuple[list[ir.Value], list[ir.Value]]]:
    """Return inputs and outputs by type and static shape, where there are both."""
    found: dict[Key, tuple[list[ir.Value], list[ir.Value]]] = collections.defaultdict(lambda: ([], []))
    for side, values in enumerate((model.graph.inputs, model.graph.outputs)):
        for value in values:
            shape = _static(value)
            if shape is not None:
                found[value.dtype, shape][side].append(value)
    return {key: pair for key, pair in found.items() if pair[0] and pair[1]}


def _static(value: ir.Value) -> tuple[int, ...] | None:
    if value.shape is None or not all(isinstance(size, int) for size in value.shape):
        return None
    return tuple(int(size) for size in value.shape)  # type: ignore[arg-type]  # all are


@dataclasses.dataclass(slots=True)
class _Parameter:
    reason: str
    gradients: dict[str, None]


class _Search:
    """One search: candidates, their pairs, and the proofs."""

    def __init__(
        self,
        model: ir.Model,
        possible: Mapping[Key, tuple[list[ir.Value], list[ir.Value]]],
        given: dict[ir.Value, ir.Value],
        reasons: Mapping[ir.Value, str],
    ) -> None:
        self._model = model
        self._reasons = reasons
        self._flow = Dataflow(model)
        self._given = given
        self._carried: dict[ir.Value, Carried] = {}
        self._pairs = dict(given) | self._matched(possible)
        self._readers: dict[ir.Value, list[Reader]] = {}
        self._borders: set[ir.Value] = set()
        self._parameters: dict[ir.Value, _Parameter] = {}
        self._bits: dict[ir.Node, int] = {}
        self._depends: dict[ir.Value, int] = {}
        self._data: Collection[ir.Value] = ()
        self._above: set[ir.Value] = set()
        self._below: dict[ir.Value, int] = {}

    def _matched(self, possible: Mapping[Key, tuple[list[ir.Value], list[ir.Value]]]) -> dict[ir.Value, ir.Value]:
        """Pair every input with the output that is most its update, over all inputs of one shape and type."""
        costs: dict[tuple[ir.Value, ir.Value], float] = {}
        taken = set(self._given.values())
        for inputs, outputs in possible.values():
            open_outputs = [value for value in outputs if value not in taken and not value.is_graph_input()]
            for value in inputs:
                if value in self._given or not open_outputs or not value.uses():
                    continue
                carried = self._carry(value)
                costs.update({(value, output): carried[output] for output in open_outputs if output in carried})
        last = len(self._flow.position)
        for (value, output), cost in costs.items():  # of two equally good, the one computed later
            node = output.producer()
            place = 0 if node is None else self._flow.position.get(node, 0)
            costs[value, output] = cost + 0.01 * (1 - place / (last + 1))
        return cheapest_pairs(costs)

    def _carry(self, value: ir.Value) -> Carried:
        if value not in self._carried:
            self._carried[value] = carry(self._flow, value)
        return self._carried[value]

    def run(self) -> TrainingStep | None:
        if not self._pairs:
            return None
        self._data = self._values_with_data()
        for value in self._pairs:
            self._readers[value] = list(readers_of(self._flow, value, self._data))
        self._prove()
        if not self._parameters and not self._given:
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
        gradients = {str(value.name): tuple(found.gradients) for value, found in self._parameters.items()}
        return TrainingStep(tuple(states), gradients)

    def _values_with_data(self) -> Collection[ir.Value]:
        """Return the values that depend on inputs which are neither states nor single numbers, such as rates."""
        inputs = [value for value in self._model.graph.inputs if value not in self._pairs]
        return self._flow.masks({value: 1 for value in inputs if self._flow.size(value) != 1})

    def _prove(self) -> None:
        """Find the inputs whose gradient is proven by a product."""
        numbered = [(value, reader) for value, readers in self._readers.items() for reader in readers]
        bits = {reader.node: 1 << index for index, reader in enumerate({r.node: r for _, r in numbered}.values())}
        seeds: dict[ir.Value, int] = {}
        for node, bit in bits.items():
            seeds.update(dict.fromkeys(node.outputs, bit))
        self._bits = bits
        self._depends = self._flow.masks(seeds)
        if not any(reader.other is not None for _, reader in numbered):
            return
        inputs = {value: 1 << index for index, value in enumerate(self._model.graph.inputs)}
        sources = self._flow.masks(inputs)
        index = FactorIndex(self._flow)
        proofs: dict[ir.Value, dict[ir.Value, str]] = collections.defaultdict(dict)
        for value, reader in numbered:
            output = self._pairs[value]
            if reader.other is None or not sources.get(reader.other, 0) & ~inputs.get(value, 0):
                continue  # what is multiplied by a constant is no weight
            for product in index.gradients(reader, self._depends, bits[reader.node]):
                result = product.node.outputs[0]
                if not self._reaches(result, output, value):
                    continue
                reason = _PROVEN.format(f"'{product.node.name}'", reader.node.name)
                proofs[value].setdefault(self._handed_over(result, value), reason)
        for value, borders in proofs.items():
            kept = self._last(borders)
            self._parameters[value] = _Parameter(borders[kept[0]], dict.fromkeys(str(border.name) for border in kept))
            self._borders.update(kept)

    def _last(self, borders: Iterable[ir.Value]) -> list[ir.Value]:
        """Return the values that no other of them is computed from."""
        found = list(borders)
        if len(found) == 1:
            return found
        depends = self._flow.masks({value: 1 << index for index, value in enumerate(found)})
        return [v for i, v in enumerate(found) if not any(depends[o] >> i & 1 for o in found if o is not v)]

    def _reaches(self, start: ir.Value, output: ir.Value, state: ir.Value) -> bool:
        """Whether a value goes into an update, by a way that does not lead through a single number."""
        scalar = self._flow.size(state) == 1
        pending, seen = [start], {start}
        while pending:
            value = pending.pop()
            if value is output:
                return True
            for node, _ in value.uses():
                for result in node.outputs:
                    if result not in seen and (scalar or self._flow.size(result) != 1):
                        seen.add(result)
                        pending.append(result)
        return False

    def _handed_over(self, value: ir.Value, state: ir.Value) -> ir.Value:
        """Return the gradient of a state as the backward pass hands it over: summed to the state's size, and moved."""
        while True:
            uses = list(value.uses())
            if len(uses) != 1 or value.is_graph_output():
                return value
            node = uses[0].node
            sums = is_standard(node) and node.op_type in REDUCTIONS and self._flow.size(value) != self._flow.size(state)
            if not (sums or is_plain_movement(node)):
                return value
            value = node.outputs[0]

    def _accept(self) -> None:
        """Accept, beside proven parameters, those that the forward pass reads and whose gradient enters the update."""
        self._above = self._flow.above(self._borders)
        inside = {value for value in self._above if value.producer() is not None}
        for single in (False, True):  # norms of gradients go into the updates of single numbers
            below = self._flow.masks(dict.fromkeys(self._borders, 1))
            for value, output in self._pairs.items():
                if (self._flow.size(value) == 1) == single and output not in inside:
                    self._accept_one(value, output, inside, below)
        self._above |= self._flow.above(self._borders)
        self._below = self._flow.masks(dict.fromkeys(self._borders, 1))

    def _accept_one(
        self, value: ir.Value, output: ir.Value, inside: Collection[ir.Value], below: Collection[ir.Value]
    ) -> None:
        readers = [reader for reader in self._readers[value] if self._reads_as_weight(reader)]
        bits = 0
        for reader in readers:
            bits |= self._bits[reader.node]
        hits = [end for end in entries(self._flow, output, value, inside) if self._depends.get(end, 0) & bits]
        if value in self._parameters:
            hits = [end for end in hits if end not in below]
        else:
            hits = [end for end in hits if end in inside or end in self._borders or end not in below]
        borders = [self._handed_over(end, value) for end in hits]
        if borders:
            found = self._parameters.setdefault(value, _Parameter(_BESIDE.format(readers[0].node.name), {}))
            found.gradients.update(dict.fromkeys(str(border.name) for border in borders))
            self._borders.update(borders)

    def _reads_as_weight(self, reader: Reader) -> bool:
        """Whether a reader belongs to the forward pass, and multiplies data, if anything."""
        if self._above.isdisjoint(reader.node.outputs):
            return False
        return reader.other is None or reader.other in self._data

    def _mixes(self, value: ir.Value) -> bool:
        """Whether a single number's update has a gradient in it directly, as a scalar parameter's moments have."""
        return not self._borders.isdisjoint(entries(self._flow, self._pairs[value], value, self._borders))

    def _role(self, value: ir.Value, output: ir.Value) -> list[tuple[StateRole, str]]:
        if value in self._parameters:
            return [("parameter", self._parameters[value].reason)]
        single = self._flow.size(value) == 1
        is_float = value.dtype is not None and value.dtype.is_floating_point()
        if is_float and self._below.get(output, 0) and value not in self._above and (not single or self._mixes(value)):
            return [("moment", "its update is made of gradients of proven parameters")]
        if value in self._given:
            return [("moment" if is_float and not single else "counter", "")]
        if single or not is_float:
            return [("counter", "its update is made of it alone, beside proven parameters")]
        if value not in self._above and output not in self._above:
            return [("statistic", "the forward pass updates it and does not read it")]
        return []
