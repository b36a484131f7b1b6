"""Finds the backward pass of a training step, from its gradients upward: where it begins, and that it is linear."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.training_step import TrainingStep
from amp_transpiler.precision.training.forward_pass import ancestors, forward_values, heights, inputs_of, root_of
from amp_transpiler.precision.training.linearity import Linear, is_zero, linearity_of

__all__ = ["Cotangents", "NotLinear", "find_cotangents"]

_ROUNDS = 5  # each may correct which factor of a product is followed; two are usual


class NotLinear(Exception):
    """The backward pass cannot be proven linear.

    Attributes:
        node: the node at which the proof ends; None if no gradient was found at all.
    """

    def __init__(self, message: str, node: ir.Node | None = None) -> None:
        super().__init__(message)
        self.node = node


@dataclasses.dataclass(frozen=True, slots=True)
class Cotangents:
    """A backward pass: values that are linear in the values that it begins with.

    Attributes:
        seeds: the values that it begins with, such as probabilities minus labels.
        before: nodes between the forward pass and the seeds: arithmetic of single elements.
        carriers: node of the backward pass -> the inputs in which it is linear, and that depend on the seeds. All other
            inputs do not depend on them.
        gradients: the gradients of the parameters.
    """

    seeds: tuple[ir.Value, ...]
    before: frozenset[ir.Node]
    carriers: dict[ir.Node, tuple[int, ...]]
    gradients: tuple[ir.Value, ...]

    def carries(self, node: ir.Node, index: int) -> bool:
        """Whether input `index` of a node is one that the backward pass runs through."""
        return index in self.carriers.get(node, ())


def find_cotangents(graph: ir.Graph, step: TrainingStep) -> Cotangents:
    """Return the backward pass of a training step.

    Args:
        graph: the main graph of a prepared program.
        step: its states and gradients.

    Raises:
        NotLinear: the gradients depend on each other, or on where they begin, in a way that the table does not know.
    """
    search = _Search(graph, step)
    cotangents = search.run()
    for _ in range(_ROUNDS):
        wrong = search.fault(cotangents)
        if wrong is None:
            return cotangents
        search.follow(cotangents)
        cotangents, blamed = search.run(), search.blamed(wrong)
    raise NotLinear(f"{blamed.op_type} '{blamed.name}' is not known to be linear in the gradient that it reads", blamed)


class _Search:
    def __init__(self, graph: ir.Graph, step: TrainingStep) -> None:
        by_name = {str(value.name): value for node in graph for value in node.outputs}
        borders = ([by_name[name] for name in names if name in by_name] for names in step.gradients.values())
        self._gradients = tuple(dict.fromkeys(value for values in borders for value in _uppermost(values)))
        if not self._gradients:
            raise NotLinear("no gradient is known")
        self._forward = forward_values(graph, step)
        self._heights = heights(graph, self._forward)
        self._above = ancestors(self._gradients)
        states = {state.input for state in step.states}
        self._states = {value for value in (*graph.inputs, *graph.initializers.values()) if value.name in states}
        self._nodes = [node for node in graph if any(value in self._above for value in node.outputs)]
        self._dependent: set[ir.Value] = set()  # on what a round before took for a beginning

    def run(self) -> Cotangents:
        """Follow the gradients upward to where they begin."""
        chosen, first = self._choose()
        seeds: dict[ir.Value, None] = {}
        carriers: dict[ir.Node, tuple[int, ...]] = {}
        pending = list(self._gradients)
        while pending:
            value = pending.pop()
            node = value.producer()
            if node is None or value in first:
                seeds[value] = None
            elif node not in carriers:
                carriers[node] = chosen[node]
                pending.extend(_input(node, index) for index in chosen[node])
        before = self._before(list(seeds), chosen)
        return Cotangents(tuple(seeds), frozenset(before), carriers, self._gradients)

    def _choose(self) -> tuple[dict[ir.Node, tuple[int, ...]], set[ir.Value]]:
        """Return node -> the inputs through which a gradient comes, and the values at which it may begin."""
        chosen: dict[ir.Node, tuple[int, ...]] = {}
        first = set(self._forward)
        for node in self._nodes:
            row = linearity_of(node)
            inputs = () if row is None else self._carriers(node, row)
            if row is not None and inputs:
                chosen[node] = inputs
            if row is None or not inputs or self._is_before(node, row, inputs, first):
                first.update(node.outputs)
        return chosen, first

    def _carriers(self, node: ir.Node, row: Linear) -> tuple[int, ...]:
        """Return the inputs of a linear node through which a gradient comes; none if they are not known."""
        if row.together:
            return tuple(i for i in row.together if i < len(node.inputs) and not is_zero(node.inputs[i]))
        ranks = sorted(((self._rank(_input(node, i)), i) for i in row.either if i < len(node.inputs)), reverse=True)
        if len(ranks) > 1 and ranks[0][0] == ranks[1][0]:
            return ()
        return (ranks[0][1],)

    def _rank(self, value: ir.Value) -> tuple[bool, int, int, bool]:
        """Return how much a factor looks like the one through which a gradient comes."""
        root = root_of(value)
        if constant_of(root) is not None:
            kind = 1
        elif root in self._states:
            kind = 0
        else:
            kind = 2 if root.producer() is None else 3
        return value in self._dependent, kind, self._heights.get(value, 0), value not in self._forward

    def _is_before(self, node: ir.Node, row: Linear, inputs: tuple[int, ...], first: set[ir.Value]) -> bool:
        """Whether a gradient may as well begin behind this node as before it."""
        if row.sums or any(_input(node, i).producer() is not None and _input(node, i) not in first for i in inputs):
            return False
        others = (node.inputs[i] for i in row.either if i not in inputs)
        return not row.either or all(constant_of(value) is not None for value in (*others, *_divisor(node)))

    def _before(self, seeds: list[ir.Value], chosen: dict[ir.Node, tuple[int, ...]]) -> set[ir.Node]:
        """Return the nodes of single elements that compute the seeds, up to the forward pass."""
        before: set[ir.Node] = set()
        pending = seeds
        while pending:
            value = pending.pop()
            node = value.producer()
            if node is not None and node not in before and value not in self._forward and node in chosen:
                before.add(node)
                pending.extend(_input(node, index) for index in chosen[node])
        return before

    def fault(self, cotangents: Cotangents) -> ir.Node | None:
        """Return a node that reads what depends on the seeds, not linearly as far as is known, on a gradient's way."""
        computed = {value for node in cotangents.carriers for value in node.outputs}
        own_seeds = {value for value in cotangents.seeds if value not in self._forward and not _is_given(value)}
        for node in self._nodes:
            carriers = cotangents.carriers.get(node, ())
            carried = {node.inputs[index] for index in carriers}
            beside = {value for index, value in enumerate(node.inputs) if index not in carriers and value in carried}
            beside.update(value for value in inputs_of(node) if value not in carried)
            if beside & computed:
                return node
            if (
                beside & own_seeds and node not in cotangents.before
            ):  # there another gradient begins, with the seed as it was
                return node
        for value in cotangents.gradients:
            if value in cotangents.seeds and not self._is_linear_seed(value, cotangents):
                return value.producer()
        return None

    @staticmethod
    def _is_linear_seed(value: ir.Value, cotangents: Cotangents) -> bool:
        """Whether a gradient is one from the beginning, as that of an output's bias may be."""
        node = value.producer()
        if node is not None and linearity_of(node) is not None:
            return True
        return any(cotangents.carries(use.node, use.idx) for use in value.uses())

    def blamed(self, node: ir.Node) -> ir.Node:
        """Return the first node on the way from a node of the backward pass to the gradients that is not linear."""
        on_the_way, seen, pending = set(self._nodes), {node}, [node]
        for reached in pending:  # it grows
            row = linearity_of(reached)
            factors = [i for i in (() if row is None else row.either) if reached.inputs[i] in self._dependent]
            if row is None or len(factors) > 1:
                return reached
            readers = (use.node for value in reached.outputs for use in value.uses())
            new = [reader for reader in dict.fromkeys(readers) if reader in on_the_way and reader not in seen]
            seen.update(new)
            pending.extend(new)
        return node

    def follow(self, cotangents: Cotangents) -> None:
        """From now on take the factors that depend on the seeds of a round for those that gradients come through.

        A seed that some function computes, such as the slope of an activation, may just be such a factor's other.
        """
        self._dependent = {value for node in cotangents.carriers for value in node.outputs}
        began = (value for node in cotangents.before for value in node.outputs if value in cotangents.seeds)
        self._dependent.update(value for value in began if _is_linear_view(value))
        for node in self._nodes:
            if any(value in self._dependent for value in inputs_of(node)):
                self._dependent.update(node.outputs)


def _uppermost(values: list[ir.Value]) -> list[ir.Value]:
    """Leave out what is computed from another of the values: the square of a gradient is none."""
    if len(values) < 2:
        return values
    above = {value: ancestors([value]) for value in values}
    return [value for value in values if not any(other in above[value] for other in values if other is not value)]


def _is_linear_view(value: ir.Value) -> bool:
    """Whether a value is, but for its form, a constant, or computed by a linear operator."""
    root = root_of(value)
    node = root.producer()
    return constant_of(root) is not None or (node is not None and linearity_of(node) is not None)


def _is_given(value: ir.Value) -> bool:
    """Whether a value is an input or a constant, which others may read with no regard to the backward pass."""
    return value.producer() is None or constant_of(value) is not None


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None  # linearity_of saw it
    return value


def _divisor(node: ir.Node) -> tuple[ir.Value | None, ...]:
    return (node.inputs[1],) if node.op_type == "Div" else ()
