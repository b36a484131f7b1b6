"""Proves that a value is the gradient of an input.

A weight's gradient is the product of what its reader multiplies it with and the gradient of the reader's result, which
depends on that result. Where no weight is trained, only biases, scales or tables, the gradient must have come back
through the very weights that the forward pass went through.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.training.carriers import NO_UPDATE, Carried
from amp_transpiler.precision.training.dataflow import Dataflow
from amp_transpiler.precision.training.operators import (
    PRODUCTS,
    REDUCTIONS,
    SCATTERS,
    is_elementwise,
    is_plain_movement,
    kind,
)
from amp_transpiler.precision.training.products import origins
from amp_transpiler.precision.training.readers import FactorIndex, Reader, entries, readers_of

__all__ = ["Proof", "Proofs", "data_values"]

_MOST_INNER_STEPS = 8  # updates inside one step whose weights another gradient is taken at


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """A gradient of an input.

    Attributes:
        gradient: the value, as the backward pass hands it over.
        reader: the node that reads the input.
        is_table: the product is a scatter, which message passing has as well.
    """

    gradient: ir.Value
    reader: Reader
    is_table: bool = False

    @property
    def reason(self) -> str:
        """The proof in words."""
        return f"its gradient '{self.gradient.name}' is computed from what its reader '{self.reader.node.name}' reads"


def data_values(flow: Dataflow, states: Collection[ir.Value]) -> Collection[ir.Value]:
    """Return the values that depend on inputs which are neither states nor single numbers, such as rates."""
    inputs = [value for value in flow.graph.inputs if value not in states]
    return flow.masks({value: 1 for value in inputs if flow.size(value) != 1})


class Proofs:
    """The readers of possible states, and the proofs of their gradients.

    Args:
        flow: the graph.
        pairs: input -> its possible update.
        carried: the values that carry each input.

    Attributes:
        data: the values that depend on data.
        readers: input -> its readers.
        found: input -> the proofs of its gradients.
        inner: values that are states again after an update, and have a gradient taken at them.
    """

    def __init__(self, flow: Dataflow, pairs: Mapping[ir.Value, ir.Value], carried: Mapping[ir.Value, Carried]) -> None:
        self._flow, self._pairs, self._carried = flow, pairs, carried
        self._index = FactorIndex(flow)
        inputs = {value: 1 << index for index, value in enumerate(flow.graph.inputs)}
        self._inputs, self._sources = inputs, flow.masks(inputs)
        self._reaching: dict[tuple[ir.Value, bool], set[ir.Value]] = {}
        self._bits: dict[ir.Node, int] = {}
        self._depends: dict[ir.Value, int] = {}
        self.data = data_values(flow, pairs)
        self.readers: dict[ir.Value, list[Reader]] = {}
        self.found: dict[ir.Value, list[Proof]] = {}
        self.inner: set[ir.Value] = set()
        for _ in range(_MOST_INNER_STEPS):
            self._read(self.inner)
            self.found = {value: proofs for value in pairs if (proofs := list(self._proofs(value)))}
            more = self._inner_updates() - self.inner
            if not more:
                break
            self.inner |= more
        if all(proof.is_table for proofs in self.found.values() for proof in proofs):
            self._ask_for_more()

    def _read(self, updated: Collection[ir.Value]) -> None:
        """Find the readers of every input, and what depends on each."""
        self.readers = {value: list(readers_of(self._flow, value, self.data, updated)) for value in self._pairs}
        nodes = dict.fromkeys(reader.node for readers in self.readers.values() for reader in readers)
        self._bits = {node: 1 << index for index, node in enumerate(nodes)}
        seeds = {output: bit for node, bit in self._bits.items() for output in node.outputs}
        self._depends = self._flow.masks(seeds)

    def depends_on(self, value: ir.Value, readers: Iterable[Reader]) -> bool:
        """Whether a value depends on the result of any of the readers."""
        return any(self._depends.get(value, 0) & self._bits[reader.node] for reader in readers)

    def _proofs(self, value: ir.Value) -> Iterator[Proof]:
        if self._carried[value].get(self._pairs[value], 0) >= NO_UPDATE:
            return
        for reader in self.readers[value]:
            if reader.other is None or not self._sources.get(reader.other, 0) & ~self._inputs.get(value, 0):
                continue  # what is multiplied by a constant is no weight
            for product in self._index.gradients(reader):
                result = product.node.outputs[0]
                depends = any(self._depends.get(other, 0) & self._bits[reader.node] for other in product.others)
                if depends and self._reaches(result, self._pairs[value], value):
                    yield Proof(self.handed_over(result, value), reader, kind(product.node) in SCATTERS)

    def multiplied(self) -> set[ir.Value]:
        """Return the possible states that are data after all.

        Proven weights are multiplied with them, and gradients are computed from what seemed to be their update.
        """
        others = [proof.reader.other for proofs in self.found.values() for proof in proofs]
        sources = [origins(self._flow, other, None, through_factors=False) for other in others if other is not None]
        numbers = {number for of_source in sources for number in of_source}
        above = self._flow.above(proof.gradient for proofs in self.found.values() for proof in proofs)
        read = {value for value in self._pairs if value not in self.found and self._flow.number(value) in numbers}
        return {value for value in read if self._pairs[value] in above}

    def products_of(self, value: ir.Value) -> set[ir.Value]:
        """Return the products of what the readers of an input multiply it with, whatever else is in them."""
        products = (product for reader in self.readers[value] for product in self._index.gradients(reader))
        return {self.handed_over(product.node.outputs[0], value) for product in products}

    def _reaches(self, start: ir.Value, output: ir.Value, state: ir.Value) -> bool:
        """Whether a value goes into an update, by a way that does not lead through a single number."""
        key = output, self._flow.size(state) == 1
        if key not in self._reaching:
            self._reaching[key] = self._values_above(*key)
        return start in self._reaching[key]

    def _values_above(self, output: ir.Value, scalar: bool) -> set[ir.Value]:
        """Return the values that go into an update; single numbers are not followed, unless it is one itself."""
        pending, above = [output], {output}
        while pending:
            value = pending.pop()
            node = value.producer()
            if node is None or not (scalar or self._flow.size(value) != 1):
                continue
            fresh = [operand for operand in node.inputs if operand is not None and operand not in above]
            above.update(fresh)
            pending.extend(fresh)
        return above

    def handed_over(self, value: ir.Value, state: ir.Value) -> ir.Value:
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

    def _inner_updates(self) -> set[ir.Value]:
        """Return the states after an update at which another gradient is taken: they are weights again."""
        gradients = {proof.gradient for proofs in self.found.values() for proof in proofs}
        above, below = self._flow.above(gradients), self._flow.masks(dict.fromkeys(gradients, 1))
        updates: set[ir.Value] = set()
        for value in self.found:
            for carrier, cost in self._carried[value].items():
                node = carrier.producer()
                if cost or node is None or carrier not in above or not is_elementwise(node):
                    continue
                met = [other for other in node.inputs if other in self.data and other not in self._carried[value]]
                if met and all(other in below for other in met):
                    updates.add(carrier)
        return updates

    # Without a trained weight.

    def _ask_for_more(self) -> None:
        """Keep only the proofs whose gradient came back through what the forward pass went through."""
        direct = {value: self.found.get(value, []) for value in self._pairs}
        summed = {value: list(self._sums(value)) for value, proofs in direct.items() if not proofs}
        self.found = {}
        if not any(direct.values()) and not any(summed.values()):
            return
        nodes = [node for node in self._flow.graph if kind(node) in PRODUCTS or kind(node) == "Mul"]
        results = self._flow.masks({node.outputs[0]: 1 << index for index, node in enumerate(nodes)})
        ways = list(self._index.ways_back(nodes, results))
        if not ways:
            return
        elementwise = sum(1 << index for index, node in enumerate(nodes) if kind(node) == "Mul")
        back = self._came_through(ways)
        strict = self._came_through((node, bits & ~elementwise) for node, bits in ways if kind(node) != "Mul")
        below = _Below(nodes, self._depends, self._bits)
        for value in self._pairs:
            if direct[value]:
                proofs = [p for p in direct[value] if below.meets(back.get(p.gradient, 0), p.gradient, p.reader)]
            else:
                ends = [end for end in summed[value] if strict.get(end, 0)]
                pairs = [(end, reader) for end in ends for reader in self.readers[value]]
                proofs = [Proof(end, reader) for end, reader in pairs if below.meets(strict[end], end, reader)]
            if proofs:
                self.found[value] = proofs

    def _sums(self, value: ir.Value) -> Iterator[ir.Value]:
        """Yield the sums that enter the update of an input, as the backward pass hands them over."""
        for end in entries(self._flow, self._pairs[value], value, ()):
            node = end.producer()
            if node is not None and kind(node) in REDUCTIONS:
                yield self.handed_over(end, value)

    def _came_through(self, ways: Iterable[tuple[ir.Node, int]]) -> dict[ir.Value, int]:
        """Return for every value the bits of the products through which something in it may have come back."""
        seeds: dict[ir.Value, int] = {}
        for node, bits in ways:
            seeds[node.outputs[0]] = seeds.get(node.outputs[0], 0) | bits
        return self._flow.masks(seeds)


class _Below:
    """Which products depend on a reader, worked out once a reader.

    Args:
        nodes: the products; one has the bit of its place in the order.
        depends: value -> the bits of the readers that it depends on.
        bits: reader -> its bit.
    """

    def __init__(self, nodes: Sequence[ir.Node], depends: Mapping[ir.Value, int], bits: Mapping[ir.Node, int]) -> None:
        self._nodes, self._depends, self._bits = nodes, depends, bits
        self._products_met: dict[ir.Node, int] = {}

    def meets(self, products: int, gradient: ir.Value, reader: Reader) -> bool:
        """Whether a value depends on a reader, and came back through a product that depends on it, too."""
        bit = self._bits[reader.node]
        if not products or not self._depends.get(gradient, 0) & bit:
            return False
        if reader.node not in self._products_met:
            below = (self._depends.get(node.outputs[0], 0) & bit for node in self._nodes)
            self._products_met[reader.node] = sum(1 << index for index, is_met in enumerate(below) if is_met)
        return bool(products & self._products_met[reader.node])
