"""Finds chains: what an optimizer computes for one parameter, apart from what parameters share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Hashable, Iterable, Mapping

import onnx_ir as ir

from amp_transpiler.graph.builder import is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.tensors import content_of
from amp_transpiler.graph.walk import has_bodies, reads_of
from amp_transpiler.ops.names import is_standard

__all__ = [
    "Chain",
    "Ref",
    "find_chains",
    "is_elementwise",
    "is_scalar",
    "is_widened",
    "low_source",
    "optimizer_nodes",
    "source_of",
]

ELEMENTWISE = frozenset(
    "Abs Add And Cast Div Equal Exp Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Log Max Min Mul Neg Not Or Pow "
    "Reciprocal Sign Sqrt Sub Tanh Where".split()
)
"""Operators that compute each element by itself, so that they may compute many tensors at once."""

_SHORT = 64  # elements of a constant that is compared by content
_MODERATE = 1 << 19  # elements of a parameter of which a float32 copy costs little

Ref = tuple[Hashable, ...] | None
"""An input of a chain's node: ("node", place), ("leaf", index), ("scalar", index), ("constant", content) or None."""


@dataclasses.dataclass(frozen=True, slots=True)
class Chain:
    """Nodes that work on tensors of one shape, joined by these, and the scalars that only they compute.

    Attributes:
        nodes: in the program's order; each has one output.
        shape: the shape of the tensors; () for a chain of only scalars.
        refs: the inputs of each node.
        leaves: the tensors that come from outside, and the scalar states that the chain reads and replaces.
        scalars: the other scalars that come from outside.
        states: index of a leaf that the chain replaces, and that nothing else of the optimizer reads -> the node that
            makes its new value.
        key: equal for chains that compute the same from other leaves and scalars, whatever the shape of the tensors.
    """

    nodes: tuple[ir.Node, ...]
    shape: tuple[int, ...]
    refs: tuple[tuple[Ref, ...], ...]
    leaves: tuple[ir.Value, ...]
    scalars: tuple[ir.Value, ...]
    states: Mapping[int, int]
    key: Hashable


def is_scalar(value: ir.Value) -> bool:
    """Whether a value has no dimensions."""
    return value.shape is not None and len(value.shape) == 0


def is_widened(node: ir.Node) -> bool:
    """Whether a node is a cast from 16 bits to float32."""
    source = node.inputs[0] if node.op_type == "Cast" and is_standard(node) else None
    return source is not None and source.dtype in LOW_DTYPES and node.outputs[0].dtype == ir.DataType.FLOAT


def low_source(value: ir.Value) -> ir.Value | None:
    """Return the 16-bit value that a float32 one is cast from; None if it is not."""
    node = value.producer()
    return node.inputs[0] if node is not None and is_widened(node) else None


def source_of(value: ir.Value) -> ir.Value:
    """Return the 16-bit value that a float32 gradient was cast from, or the gradient itself."""
    node = value.producer()
    while node is not None and node.op_type == "Identity" and is_standard(node):
        before = node.inputs[0]
        node = None if before is None else before.producer()
    if node is None or not is_widened(node):
        return value
    source = node.inputs[0]
    return source if source is not None and source.shape == value.shape else value


def optimizer_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes of the optimizer that nothing but the optimizer needs, in order."""
    nodes: list[ir.Node] = []
    before: set[ir.Node] = set()
    for node in reversed(graph):
        if role_of(node) == "optimize" and node not in before:
            nodes.append(node)
        else:
            before.update(producer for value in reads_of(node) if (producer := value.producer()) is not None)
    return nodes[::-1]


def find_chains(nodes: Iterable[ir.Node], updates: Mapping[str, str], *, read_elsewhere: bool = True) -> list[Chain]:
    """Return the chains among the optimizer's nodes, in order of their first nodes.

    Args:
        nodes: `optimizer_nodes`.
        updates: persistable name -> output that replaces it.
        read_elsewhere: whether what the rest of the step reads too may be a state of a chain.
    """
    nodes = list(nodes)
    members = set(nodes)
    fit = [node for node in nodes if (is_elementwise(node) and not _is_border(node, members)) or _is_total(node)]
    parts = _Parts(fit, updates)
    chains = [_chain(sorted(part, key=parts.place.__getitem__), updates, read_elsewhere) for part in parts.all()]
    return sorted((c for c in chains if c is not None), key=lambda chain: parts.place[chain.nodes[0]])


def is_elementwise(node: ir.Node) -> bool:
    """Whether a node computes each element of its one result by itself."""
    plain = is_standard(node) and len(node.outputs) == 1 and not has_bodies(node)
    return plain and node.op_type in ELEMENTWISE


def _is_border(node: ir.Node, members: Collection[ir.Node]) -> bool:
    """Whether a node only changes the type of what a chain reads from outside, or of what it gives away.

    So chains of parameters with and without masters are alike, and a group does it once.
    """
    if node.op_type != "Cast" or not is_standard(node) or node.inputs[0] is None or is_scalar(node.outputs[0]):
        return False
    if is_widened(node):
        return node.inputs[0].producer() not in members
    is_low = node.outputs[0].dtype in LOW_DTYPES
    return is_low and not any(use.node in members for use in node.outputs[0].uses())


def _is_total(node: ir.Node) -> bool:
    """Whether a node sums all of a tensor up to a scalar."""
    if node.op_type != "ReduceSum" or not is_standard(node) or any(value is not None for value in node.inputs[1:]):
        return False
    return is_scalar(node.outputs[0]) and "noop_with_empty_axes" not in node.attributes


_MANY = -1  # more than one chain, or a reader that belongs to none


def _combined(chains: Iterable[int | None]) -> int | None:
    """Return the one chain that is named, `_MANY` for several; None for none."""
    names = {chain for chain in chains if chain is not None}
    if not names:
        return None
    return names.pop() if len(names) == 1 else _MANY


class _Parts:
    """The nodes of each chain: tensors' nodes are joined by tensors; scalars' nodes go where their results go."""

    def __init__(self, nodes: list[ir.Node], updates: Mapping[str, str]) -> None:
        self.place = {node: index for index, node in enumerate(nodes)}
        self._updates = updates
        self._parent = list(range(len(nodes)))
        self._scalar_nodes = [node for node in nodes if _is_of_scalars(node)]
        of_scalars = set(self._scalar_nodes)
        tensor_nodes = [node for node in nodes if node not in of_scalars]
        for node in tensor_nodes:
            self._join(node)
        self._of = {node: self._root(self.place[node]) for node in tensor_nodes}
        self._inner: dict[ir.Node, int] = {}  # scalar node -> the chain whose tensors it depends on
        self._only_reader: dict[
            ir.Node, int
        ] = {}  # scalar node -> the only chain that reads what it makes of its own states
        self._assign()

    def all(self) -> Iterable[list[ir.Node]]:
        """Return the nodes of each chain."""
        tensors: dict[int, list[ir.Node]] = {}
        for node, name in (*self._of.items(), *self._inner.items()):
            tensors.setdefault(name, []).append(node)
        scalars: dict[int, list[ir.Node]] = {}
        for node, name in self._only_reader.items():
            scalars.setdefault(name, []).append(node)
        return [*tensors.values(), *scalars.values()]

    def _root(self, index: int) -> int:
        while self._parent[index] != index:
            self._parent[index] = self._parent[self._parent[index]]
            index = self._parent[index]
        return index

    def _join(self, node: ir.Node) -> None:
        for value in node.inputs:
            producer = None if value is None or is_scalar(value) else value.producer()
            if producer in self.place:
                self._parent[self._root(self.place[producer])] = self._root(self.place[node])

    def _assign(self) -> None:
        needs = self._needs()
        goes = self._goes()
        owners = self._owners(goes)
        for node in self._scalar_nodes:
            to, of = goes[node], needs[node]
            if of is not None:
                if of != _MANY and to in (of, None):
                    self._inner[node] = of
                continue
            held = _combined(self._held_by(value, owners) for value in node.inputs)
            if held is not None and held != _MANY and to in (held, None):
                self._only_reader[node] = held

    def _held_by(self, value: ir.Value | None, owners: Mapping[ir.Value, int]) -> int | None:
        if value is None:
            return None
        producer = value.producer()
        return owners.get(value) if producer is None else self._only_reader.get(producer)

    def _needs(self) -> dict[ir.Node, int | None]:
        """Return the chain whose tensors each scalar node depends on."""
        needed: dict[ir.Node, int | None] = {}
        for node in self._scalar_nodes:
            makers = [value.producer() for value in node.inputs if value is not None]
            needed[node] = _combined(self._of[m] if m in self._of else needed.get(m) for m in makers if m is not None)
        return needed

    def _goes(self) -> dict[ir.Node, int | None]:
        """Return the chain that the result of each scalar node goes to, directly or through scalar nodes."""
        targets: dict[ir.Node, int | None] = {}
        for node in reversed(self._scalar_nodes):
            targets[node] = self._readers(node.outputs[0], targets)
        return targets

    def _readers(self, value: ir.Value, goes: Mapping[ir.Node, int | None]) -> int | None:
        users = (use.node for use in value.uses())
        return _combined(self._of[user] if user in self._of else goes.get(user, _MANY) for user in users)

    def _owners(self, goes: Mapping[ir.Node, int | None]) -> dict[ir.Value, int]:
        """Return the scalar states that only one chain reads."""
        states = {
            value
            for node in self._scalar_nodes
            for value in node.inputs
            if value is not None and value.is_graph_input() and value.name in self._updates
        }
        owners = {value: self._readers(value, goes) for value in states}
        return {value: name for value, name in owners.items() if name is not None and name != _MANY}


def _is_of_scalars(node: ir.Node) -> bool:
    return all(is_scalar(value) for value in (*node.inputs, *node.outputs) if value is not None)


def _chain(nodes: list[ir.Node], updates: Mapping[str, str], read_elsewhere: bool) -> Chain | None:
    """Return the chain of these nodes; None if they work on tensors of several or unknown shapes."""
    tensors = [v for node in nodes for v in (*node.inputs, *node.outputs) if v is not None and not is_scalar(v)]
    if not all(is_static(value) for value in tensors) or len(shapes := {shape_of(value) for value in tensors}) > 1:
        return None
    return _Reading(nodes, shapes.pop() if shapes else (), updates, read_elsewhere).chain()


class _Reading:
    """Describes the nodes of a chain, so that equal descriptions mean equal computations."""

    def __init__(
        self, nodes: list[ir.Node], shape: tuple[int, ...], updates: Mapping[str, str], read_elsewhere: bool
    ) -> None:
        self._nodes, self._shape, self._updates, self._read_elsewhere = nodes, shape, updates, read_elsewhere
        self._place = {node.outputs[0]: index for index, node in enumerate(nodes)}
        self._index_of = {str(value.name): index for value, index in self._place.items()}
        self._members = set(nodes)
        self._leaves: dict[ir.Value, int] = {}
        self._scalars: dict[ir.Value, int] = {}
        self._states: dict[int, int] = {}

    def chain(self) -> Chain | None:
        refs = tuple(tuple(self._ref(value) for value in node.inputs) for node in self._nodes)
        if not self._leaves:
            return None
        kinds = tuple(
            (
                node.op_type,
                tuple(sorted((n, repr(a.value)) for n, a in node.attributes.items())),
                _kind(node.outputs[0]),
                self._summed(node),
            )
            for node in self._nodes
        )
        leaves = tuple(
            (value.dtype, source_of(value).dtype, is_scalar(value), index in self._states)
            for value, index in self._leaves.items()
        )
        scalars = tuple(value.dtype for value in self._scalars)
        key = (kinds, refs, leaves, scalars, tuple(sorted(self._states.items())))
        return Chain(
            tuple(self._nodes), self._shape, refs, tuple(self._leaves), tuple(self._scalars), self._states, key
        )

    def _summed(self, node: ir.Node) -> Hashable:
        """Return what a sum over a tensor is part of: a sum over all tensors, else it is one of this shape."""
        if node.op_type != "ReduceSum":
            return None
        value = node.outputs[0]
        readers = {use.node for use in value.uses()}
        reader = readers.pop() if len(readers) == 1 and len(value.uses()) == 1 else None
        is_part = reader is not None and reader.op_type == "Sum" and not value.is_graph_output()
        return id(reader) if is_part else self._shape

    def _ref(self, value: ir.Value | None) -> Ref:
        if value is None:
            return None
        if value in self._place:
            return "node", self._place[value]
        tensor = constant_of(value)
        if tensor is not None and is_scalar(value) and tensor.size <= _SHORT:
            return "constant", tensor.dtype, content_of(tensor)
        state = self._is_state(value)
        if is_scalar(value) and not state:
            return "scalar", self._scalars.setdefault(value, len(self._scalars))
        index = self._leaves.setdefault(value, len(self._leaves))
        if state:
            self._states[index] = self._index_of[self._updates[str(value.name)]]
        return "leaf", index

    def _is_state(self, value: ir.Value) -> bool:
        """Whether the chain makes what replaces a persistable value, and nothing else of the optimizer reads it."""
        if not value.is_graph_input() or self._updates.get(str(value.name)) not in self._index_of:
            return False
        replacement = self._nodes[self._index_of[self._updates[str(value.name)]]].outputs[0]
        if value.dtype != replacement.dtype or is_scalar(value) != is_scalar(replacement):
            return False
        others = [use.node for use in value.uses() if use.node not in self._members]
        if not others:
            return True
        if not self._read_elsewhere or is_scalar(value) or value.is_graph_output():
            return False
        if any(role_of(node) == "optimize" and not _narrows(node) for node in others):
            return False
        # A copy of its rows is handed out in each run, and stays until its last reader.
        return all(_narrows(node) for node in others) or math.prod(shape_of(value)) <= _MODERATE


def _narrows(node: ir.Node) -> bool:
    return node.op_type == "Cast" and is_standard(node) and node.outputs[0].dtype in LOW_DTYPES


def _kind(value: ir.Value) -> tuple[ir.DataType | None, bool]:
    return value.dtype, is_scalar(value)
