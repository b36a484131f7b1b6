"""From a loaded program to its training step: which outputs replace which inputs, by dataflow; names prove nothing."""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
import operator
from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.shape_inference import sizes_from_inputs
from amp_transpiler.graph.training_step import State, StateRole, TrainingStep
from amp_transpiler.precision.training.carriers import NO_UPDATE, Carried, carry
from amp_transpiler.precision.training.dataflow import Dataflow
from amp_transpiler.precision.training.flatten import flattened, has_control_flow
from amp_transpiler.precision.training.matching import cheapest_pairs
from amp_transpiler.precision.training.necessary import may_hold_gradients
from amp_transpiler.precision.training.operators import is_elementwise, is_movement, is_plain_movement, kind
from amp_transpiler.precision.training.proofs import Proofs
from amp_transpiler.precision.training.readers import Reader, entries

__all__ = ["find_training_step", "holds_gradients", "possible_states"]

logger = logging.getLogger(__name__)

_MOST_LOOKED_AT = 200
_TRAINING_DOMAIN = "ai.onnx.preview.training"
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
    if has_control_flow(model):
        flat = flattened(model)
        return find_training_step(flat, bound, recorded)
    if not reasons:
        values, outputs = ([v for side in sides for v in side] for sides in zip(*possible.values(), strict=True))
        if not may_hold_gradients(model.graph, values, outputs):
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


def possible_states(model: ir.Model) -> frozenset[str]:
    """Return the names of the inputs with an initial value that have the type and shape of some output."""
    pairs = _possible_pairs(model).values()
    return frozenset(str(value.name) for inputs, _ in pairs for value in inputs if value.is_initializer())


def holds_gradients(model: ir.Model) -> bool:
    """Whether a typed and prepared program without known states computes gradients of inputs or weights all the same.

    It does if it has operators that are gradients or optimizers by name, or if the gradient of a weight is proven that
    goes into an output of the weight's shape.
    """
    if any(node.op_type.endswith("Grad") or node.domain == _TRAINING_DOMAIN for node in model.graph):
        return True
    outputs = {(value.dtype, _static(value)): value for value in model.graph.outputs if _static(value)}
    weights = (*model.graph.inputs, *model.graph.initializers.values())
    pairs = {
        value: outputs[value.dtype, _static(value)] for value in weights if (value.dtype, _static(value)) in outputs
    }
    if not pairs or not may_hold_gradients(model.graph, pairs, pairs.values()):
        return False
    flow = Dataflow(model)
    proofs = Proofs(flow, pairs, {value: {value: 0} for value in pairs})
    return any(flow.size(proof.gradient) == flow.size(value) for value in proofs.found for proof in proofs.found[value])


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
    inferred: dict[str, list[int | None]] | None = None
    for side, values in enumerate((model.graph.inputs, model.graph.outputs)):
        for value in values:
            shape = _static(value)
            if shape is None and side and _is_carried_from_static(value):
                inferred = sizes_from_inputs(model) if inferred is None else inferred
                sizes = inferred.get(str(value.name), [None])
                shape = None if None in sizes else tuple(size or 0 for size in sizes)
            if shape is not None:
                found[value.dtype, shape][side].append(value)
    return {key: pair for key, pair in found.items() if pair[0] and pair[1]}


def _is_carried_from_static(output: ir.Value) -> bool:
    """Whether elementwise arithmetic leads from an input of static shape and the same type to an output, soon."""
    pending, seen = [output], {output}
    while pending and len(seen) < _MOST_LOOKED_AT:
        value = pending.pop()
        if value.is_graph_input() and value.dtype == output.dtype and _static(value):
            return True
        node = value.producer()
        if node is not None and (is_elementwise(node) or is_movement(node)):
            fresh = [operand for operand in node.inputs if operand is not None and operand not in seen]
            seen.update(fresh)
            pending.extend(fresh)
    return False


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
        self._carried: dict[ir.Value, Carried] = {value: carry(self._flow, value) for value in given}
        self._pairs = dict(given) | self._matched(possible)
        self._borders: set[ir.Value] = set()
        self._inner: set[ir.Value] = set()
        self._parameters: dict[ir.Value, _Parameter] = {}
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
        if not self._pairs:
            return None
        self._proofs = Proofs(self._flow, self._pairs, self._carried)
        if multiplied := self._proofs.multiplied() - self._given.keys():
            self._pairs = {value: output for value, output in self._pairs.items() if value not in multiplied}
            self._proofs = Proofs(self._flow, self._pairs, self._carried)
        for value, proofs in self._proofs.found.items():
            reasons = {proof.gradient: proof.reason for proof in reversed(proofs)}
            last = self._last([value for value in reasons if not _is_power(value, reasons, self._flow)])
            self._parameters[value] = _Parameter(reasons[last[0]], dict.fromkeys(str(v.name) for v in last))
            self._borders.update(last)
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
        inner = tuple(sorted(str(value.name) for value in self._proofs.inner | self._inner))
        return TrainingStep(tuple(states), gradients, inner=inner)

    def _last(self, borders: Iterable[ir.Value]) -> list[ir.Value]:
        """Return the values that no other of them is computed from."""
        found = list(borders)
        if len(found) == 1:
            return found
        depends = self._flow.masks({value: 1 << index for index, value in enumerate(found)})
        return [v for i, v in enumerate(found) if not any(depends[o] >> i & 1 for o in found if o is not v)]

    def _accept(self) -> None:
        """Accept, beside proven parameters, those that the forward pass reads and whose gradient enters the update."""
        self._above = self._flow.above(self._borders)
        inside = {value for value in self._above if value.producer() is not None}
        for single in (False, True):  # norms of gradients go into the updates of single numbers
            below = self._flow.masks(dict.fromkeys(self._borders, 1))
            for value, output in self._pairs.items():
                if (self._flow.size(value) == 1) == single and output not in inside:
                    self._accept_one(value, output, inside, below)
        for value in self._given:
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
            found = self._parameters.setdefault(value, _Parameter(_BESIDE.format(readers[0].node.name), {}))
            found.gradients.update(dict.fromkeys(str(border.name) for border in borders))
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
        if gradients:  # else it is made of itself alone, as Adam's powers are
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
        if value in self._given:
            return [("moment" if is_float and not single else "counter", "")]
        if single or not is_float:
            return [("counter", "its update is made of it alone, beside proven parameters")]
        return []


def _is_power(value: ir.Value, gradients: Collection[ir.Value], flow: Dataflow) -> bool:
    """Whether a value is a product of gradients and single numbers: a clipped gradient, or one with itself."""
    node = value.producer()
    while node is not None and is_plain_movement(node):
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    if node is None or kind(node) != "Mul":
        return False
    made = [_is_made_of(operand, gradients) for operand in node.inputs]
    numbers = [operand is not None and flow.size(operand) == 1 for operand in node.inputs]
    return any(made) and all(map(operator.or_, made, numbers))


def _is_made_of(value: ir.Value | None, gradients: Collection[ir.Value]) -> bool:
    """Whether a value is one of the gradients, but for its shape and a constant factor."""
    while value is not None and value not in gradients:
        node = value.producer()
        operands = [] if node is None else [operand for operand in node.inputs if constant_of(operand) is None]
        if node is None or not (is_plain_movement(node) or (kind(node) in ("Mul", "Div") and len(operands) == 1)):
            return False
        value = node.inputs[0] if is_plain_movement(node) else operands[0]
    return value is not None
