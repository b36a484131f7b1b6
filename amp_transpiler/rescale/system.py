"""The linear system of a program's exponents: an unknown a value and a place, solved for a few that are free.

Most equations say that two exponents are equal, so they are joined at once; the others are solved by elimination.
Constants are eliminated first: one with a reader of its own takes any exponent, so it ties nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.walk import has_bodies, reads_of
from amp_transpiler.precision.constraints import is_float32
from amp_transpiler.rescale.places import Place, Places, is_scalable
from amp_transpiler.rescale.rules import EVERY, Form, Rule, Slot, rule_of

__all__ = [
    "AtBorder",
    "Exponent",
    "System",
    "Unknown",
    "cuts_of",
    "is_border_slot",
    "is_made_at_border",
    "system_of",
]


@dataclasses.dataclass(frozen=True, slots=True)
class AtBorder:
    """A value as a border makes or reads it: unscaled."""

    value: ir.Value


Unknown: TypeAlias = "ir.Value | Place | AtBorder"
"""What has an exponent: a value that is no constant, or a place; 0 at a border."""

Exponent: TypeAlias = Mapping[int, Fraction]
"""An exponent as a sum of free ones: number of a free exponent -> its factor."""

_ZERO = 0  # the number of the unknown that is 0


@dataclasses.dataclass(frozen=True, slots=True)
class System:
    """The solved system of a program.

    Attributes:
        free: the numbers of the free exponents.
        exponents: value or place -> its exponent; one that is missing is 0.
        reads: node of the main graph -> the unknowns that it reads, by index of the input; None for one that is fixed.
        results: likewise those that it computes, by index of the output.
        cuts: values that are scaled on one side only: a product by a power of two must be added for any exponent but 0.
    """

    free: tuple[int, ...]
    exponents: Mapping[Unknown, Exponent]
    reads: Mapping[ir.Node, tuple[Unknown | None, ...]]
    results: Mapping[ir.Node, tuple[Unknown | None, ...]]
    cuts: frozenset[ir.Value] = frozenset()


def system_of(model: ir.Model, *, may_cut: bool = False) -> System:
    """Return the system of a typed program without functions. What bodies read is fixed.

    Args:
        model: the program.
        may_cut: whether a value that only one side of is a border may be scaled on the other side.
    """
    builder = _Builder(model, cuts_of(model) if may_cut else frozenset())
    for node in model.graph:
        builder.add(node)
    return builder.solved()


def cuts_of(model: ir.Model) -> frozenset[ir.Value]:
    """Return the values between a border and something that is scaled: where a product may take the scale on or off."""
    captured = {value for node in model.graph if has_bodies(node) for value in reads_of(node)}
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    return frozenset(
        value
        for value in values
        if is_float32(value) and not is_scalable(value) and value not in captured and _is_between(value)
    )


def _is_between(value: ir.Value) -> bool:
    is_free = [not is_border_slot(user, ("x", index)) for user, index in value.uses()]
    if is_made_at_border(value):
        return any(is_free)
    return value.is_graph_output() or not all(is_free)


def is_made_at_border(value: ir.Value) -> bool:
    """Whether a value comes from outside, or from an operator whose results are unscaled."""
    node = value.producer()
    return node is None or is_border_slot(node, ("y", value.index() or 0))


def is_border_slot(node: ir.Node, slot: Slot) -> bool:
    """Whether a slot of a node of the main graph is unscaled."""
    if has_bodies(node):
        return True
    mentioned = rule_of(node).mentioned
    return slot not in mentioned and (slot[0], EVERY) not in mentioned


class _Builder:
    def __init__(self, model: ir.Model, cuts: frozenset[ir.Value]) -> None:
        self._cuts, self._places = cuts, Places(model)
        self._numbers: dict[Unknown, int] = {}
        self._parents = [_ZERO]
        self._is_place = [False]
        self._equations: list[dict[int, int]] = []
        self._reads: dict[ir.Node, tuple[Unknown | None, ...]] = {}
        self._results: dict[ir.Node, tuple[Unknown | None, ...]] = {}
        for value in (*model.graph.inputs, *model.graph.outputs):
            self._fix(value)

    def add(self, node: ir.Node) -> None:
        """Add the equations of a node."""
        if has_bodies(node):
            for value in (*reads_of(node), *node.outputs):
                self._fix(value)
            return
        rule = rule_of(node)
        reads = tuple(self._unknown_read(node, index) for index in range(len(node.inputs)))
        results = tuple(self._unknown_made(node, index) for index in range(len(node.outputs)))
        self._reads[node], self._results[node] = reads, results
        slots: dict[Slot, int] = {}
        for index, (read, unknown) in enumerate(zip(node.inputs, reads, strict=True)):
            if read is not None and read.name:
                slots["x", index] = self._number(unknown)
        for index, (result, unknown) in enumerate(zip(node.outputs, results, strict=True)):
            if result.name:
                slots["y", index] = self._number(unknown)
        for slot, number in slots.items():
            if is_border_slot(node, slot):
                self._join(number, _ZERO)
        for kind, name in rule.mentioned:
            if kind == "@" and isinstance(name, str):
                slots[kind, name] = self._number(self._places.of_attribute(node, name))
        self._add_chains(rule, node, slots)

    def _unknown_read(self, node: ir.Node, index: int) -> Unknown | None:
        value = node.inputs[index]
        if is_scalable(value):
            return self._places.of_input(node, index)
        return self._unknown(value, node, ("x", index)) if is_float32(value) else None

    def _unknown_made(self, node: ir.Node, index: int) -> Unknown | None:
        value = node.outputs[index]
        return self._unknown(value, node, ("y", index)) if is_float32(value) else None

    def _unknown(self, value: ir.Value, node: ir.Node, slot: Slot) -> Unknown:
        return AtBorder(value) if value in self._cuts and is_border_slot(node, slot) else value

    def _add_chains(self, rule: Rule, node: ir.Node, slots: Mapping[Slot, int]) -> None:
        def is_float_slot(slot: Slot) -> bool:
            kind, index = slot
            if kind == "@" or not isinstance(index, int):
                return True
            value = node.inputs[index] if kind == "x" else node.outputs[index]
            return is_float32(value) or is_scalable(value)

        for chain in rule.chains:
            forms = [form for sum_ in chain for form in _expanded(sum_, slots)]
            known = [form for form in forms if all(slot in slots and is_float_slot(slot) for _, slot in form)]
            for first, second in itertools.pairwise(known):
                self._equate([*_numbered(first, slots, 1), *_numbered(second, slots, -1)])

    def _equate(self, terms: Iterable[tuple[int, int]]) -> None:
        """Add an equation: a sum of unknowns is 0."""
        equation: dict[int, int] = {}
        for number, factor in terms:
            equation[number] = equation.get(number, 0) + factor
        equation.pop(_ZERO, None)
        equation = {number: factor for number, factor in equation.items() if factor}
        factors = list(equation.values())
        if len(factors) == 1:
            self._join(next(iter(equation)), _ZERO)
        elif len(factors) == 2 and sum(factors) == 0:
            self._join(*equation)
        elif equation:
            self._equations.append(equation)

    def _number(self, unknown: Unknown | None) -> int:
        if unknown is None or isinstance(unknown, AtBorder):
            return _ZERO
        number = self._numbers.get(unknown)
        if number is None:
            number = self._numbers[unknown] = len(self._parents)
            self._parents.append(number)
            self._is_place.append(isinstance(unknown, Place))
        return number

    def _fix(self, value: ir.Value) -> None:
        if is_float32(value) and not is_scalable(value) and value not in self._cuts:
            self._join(self._number(value), _ZERO)

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            self._parents[number] = self._parents[self._parents[number]]
            number = self._parents[number]
        return number

    def _join(self, first: int, second: int) -> None:
        """Make two exponents one: that of a value, if there is one, and of zero before all."""
        first, second = self._root(first), self._root(second)
        if first == second:
            return
        if second == _ZERO or (first != _ZERO and self._is_place[first]):
            first, second = second, first
        self._parents[second] = first

    def solved(self) -> System:
        definitions = self._eliminated()
        memory: dict[int, Exponent] = {_ZERO: {}}
        exponents = {
            unknown: exponent
            for unknown, number in self._numbers.items()
            if (exponent := _resolved(self._root(number), definitions, memory))
        }
        free = sorted({number for exponent in exponents.values() for number in exponent})
        return System(tuple(free), exponents, self._reads, self._results, self._cuts)

    def _eliminated(self) -> dict[int, Exponent]:
        """Return the unknowns that equations define, each as a sum of others that are defined later or free."""
        definitions: dict[int, Exponent] = {}
        reduced = [self._rooted(equation) for equation in self._equations]
        counts: dict[int, int] = {}
        for equation in reduced:
            for number in equation:
                counts[number] = counts.get(number, 0) + 1
        # Equations with a constant of their own first: they say only what that constant is.
        alone = [self._has_own_place(equation, counts) for equation in reduced]
        for equation in itertools.chain(itertools.compress(reduced, alone), _others(reduced, alone)):
            remaining = _substituted(equation, definitions)
            if remaining:
                pivot = min(remaining, key=lambda number: self._rank(number, remaining[number], counts))
                factor = remaining.pop(pivot)
                definitions[pivot] = {number: -other / factor for number, other in remaining.items()}
        return definitions

    def _rooted(self, equation: Mapping[int, int]) -> dict[int, Fraction]:
        rooted: dict[int, Fraction] = {}
        for number, factor in equation.items():
            root = self._root(number)
            rooted[root] = rooted.get(root, Fraction(0)) + factor
        rooted.pop(_ZERO, None)
        return {number: factor for number, factor in rooted.items() if factor}

    def _has_own_place(self, equation: Mapping[int, Fraction], counts: Mapping[int, int]) -> bool:
        return any(self._is_place[number] and counts[number] == 1 for number in equation)

    def _rank(self, number: int, factor: Fraction, counts: Mapping[int, int]) -> tuple[bool, bool, Fraction, int]:
        is_own = self._is_place[number] and counts.get(number, 0) == 1
        return not is_own, not self._is_place[number], abs(abs(factor) - 1), -number  # the latest: chains stay short


def _others(equations: Iterable[dict[int, Fraction]], chosen: Iterable[bool]) -> Iterator[dict[int, Fraction]]:
    return itertools.compress(equations, (not each for each in chosen))


def _expanded(form: Form, slots: Mapping[Slot, int]) -> Iterator[Form]:
    """Yield a form, or one for each slot where it stands for all of a kind."""
    if len(form) != 1 or form[0][1][1] != EVERY:
        yield form
        return
    factor, (kind, _) = form[0]
    yield from (((factor, slot),) for slot in slots if slot[0] == kind)


def _numbered(form: Form, slots: Mapping[Slot, int], sign: int) -> Iterator[tuple[int, int]]:
    return ((slots[slot], sign * factor) for factor, slot in form)


def _substituted(equation: Mapping[int, Fraction], definitions: Mapping[int, Exponent]) -> dict[int, Fraction]:
    """Return an equation without unknowns that are defined."""
    remaining = dict(equation)
    while (number := next((number for number in remaining if number in definitions), None)) is not None:
        factor = remaining.pop(number)
        for other, share in definitions[number].items():
            total = remaining.get(other, Fraction(0)) + factor * share
            if total:
                remaining[other] = total
            else:
                remaining.pop(other, None)
    return remaining


def _resolved(number: int, definitions: Mapping[int, Exponent], memory: dict[int, Exponent]) -> Exponent:
    """Return an unknown as a sum of free ones; definitions are followed by a stack, since a chain may be long."""
    stack = [number]
    while stack:
        current = stack[-1]
        definition = definitions.get(current)
        if current in memory:
            stack.pop()
        elif definition is None:
            memory[current] = {current: Fraction(1)}
        elif missing := [other for other in definition if other not in memory]:
            stack += missing
        else:
            memory[current] = _substituted({current: Fraction(1)}, {current: _combined(definition, memory)})
    return memory[number]


def _combined(definition: Exponent, memory: Mapping[int, Exponent]) -> dict[int, Fraction]:
    total: dict[int, Fraction] = {}
    for number, factor in definition.items():
        for free, share in memory[number].items():
            total[free] = total.get(free, Fraction(0)) + factor * share
    return {free: share for free, share in total.items() if share}
