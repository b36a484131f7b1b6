"""Walking a model: every scope, every node, and the ports through which values enter and leave bodies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.ops.names import is_standard

__all__ = [
    "GRAPHS",
    "INSERTED",
    "PLUGIN",
    "WIDENED",
    "ControlPort",
    "Scope",
    "Use",
    "all_nodes",
    "bodies",
    "control_ports",
    "has_bodies",
    "in_order",
    "is_used",
    "reads_of",
    "scopes",
]

INSERTED = "amp_transpiler.inserted"  # key in `Node.meta` of casts that a conversion put in; not written to files
PLUGIN = "amp_transpiler.plugin"  # key in `Node.meta` of a user's operator in ONNX's domain; not written to files
WIDENED = (
    "amp_transpiler.widened"  # key in `Node.meta`: the 16-bit format that a node computed in; not written to files
)

GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
"""Types of the attributes that hold bodies."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A graph of the model: the main one (`owner` is None) or a body of a node."""

    graph: ir.Graph
    owner: ir.Node | None
    path: str


def bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """Yield attribute name and graph of every body of `node`."""
    # `data` is the plain dict behind a UserDict, whose own items() takes ten times as long.
    for name, attribute in node.attributes.data.items():
        kind = attribute.type
        if kind is ir.AttributeType.GRAPH and not attribute.is_ref():
            yield name, attribute.as_graph()
        elif kind is ir.AttributeType.GRAPHS and not attribute.is_ref():
            for index, graph in enumerate(attribute.as_graphs()):
                yield f"{name}[{index}]", graph


def is_used(value: ir.Value) -> bool:
    """Whether anything reads `value`, or it is an output of its graph."""
    return bool(value.uses()) or value.is_graph_output()


def has_bodies(node: ir.Node) -> bool:
    """Whether `node` has a body."""
    attributes = node.attributes.data
    if not attributes:
        return False
    for attribute in attributes.values():  # noqa: SIM110  every walk asks this of every node: no generator
        if attribute.type in GRAPHS:
            return True
    return False


def scopes(model: ir.Model) -> Iterator[Scope]:
    """Yield the main graph, then every body, an outer scope always before its inner ones."""
    pending = [Scope(model.graph, None, "")]
    while pending:
        scope = pending.pop()
        yield scope
        for node in scope.graph:
            if has_bodies(node):
                prefix = f"{scope.path}/" if scope.path else ""
                path = f"{prefix}{node.name or node.op_type}"
                pending.extend(Scope(graph, node, f"{path}/{name}") for name, graph in bodies(node))


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield every node of every scope, in the order of `scopes`."""
    pending = [model.graph]
    while pending:
        graph = pending.pop()
        for node in graph:
            yield node
            if has_bodies(node):
                pending.extend(body for _, body in bodies(node))


def in_order(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph and of its bodies in the order of execution; a body before its owner."""
    for node in graph:
        if has_bodies(node):
            for _, body in bodies(node):
                yield from in_order(body)
        yield node


def reads_of(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node and its bodies, at any depth, read from the graph that the node is in."""
    read = [value for value in node.inputs if value is not None]
    if has_bodies(node):
        inner = [inside for _, body in bodies(node) for inside in body.all_nodes()]
        captured = [value for inside in inner for value in inside.inputs]
        captured += [value for reader in (node, *inner) for _, body in bodies(reader) for value in body.outputs]
        read += [value for value in captured if value is not None and value.graph is node.graph]
    return read


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One place that reads a value: an input of a node, or an output of a graph."""

    user: ir.Node | ir.Graph
    index: int

    @property
    def value(self) -> ir.Value | None:
        """The value read here."""
        return self.user.inputs[self.index] if isinstance(self.user, ir.Node) else self.user.outputs[self.index]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ControlPort:
    """Values that must have one element type because a control-flow operator passes one on as the other.

    A Loop's carried state, for example, is defined by the body's input and the Loop's output, and used by the Loop's
    input and the body's output.

    Attributes:
        kind: `branch`, `state`, `scan` or `opaque` (an operator whose body has a meaning unknown here).
        definitions: values that are born with the port's type.
        uses: places that expect the port's type.
    """

    kind: str
    definitions: tuple[ir.Value, ...]
    uses: tuple[Use, ...]


def control_ports(node: ir.Node) -> list[ControlPort]:
    """Return the ports of a node with bodies, in a stable order; an empty list for other nodes."""
    if not has_bodies(node):
        return []
    graphs = [graph for _, graph in bodies(node)]
    if is_standard(node) and node.op_type == "If":
        return [
            ControlPort("branch", (output,), tuple(Use(g, i) for g in graphs if i < len(g.outputs)))
            for i, output in enumerate(node.outputs)
        ]
    if is_standard(node) and node.op_type == "Loop":
        return _loop_ports(node, graphs[0])
    if is_standard(node) and node.op_type == "Scan":
        return _scan_ports(node, graphs[0])
    opaque = [ControlPort("opaque", (value,), ()) for g in graphs for value in g.inputs]
    return opaque + [ControlPort("opaque", (), (Use(g, i),)) for g in graphs for i in range(len(g.outputs))]


def _loop_ports(node: ir.Node, body: ir.Graph) -> list[ControlPort]:
    states = len(body.inputs) - 2  # the body also gets the trip count and the condition
    ports = [
        _port("state", (body.inputs[2 + i], _output(node, i)), ((node, 2 + i), (body, 1 + i))) for i in range(states)
    ]
    scans = range(states, len(body.outputs) - 1)
    return ports + [_port("scan", (_output(node, i),), ((body, 1 + i),)) for i in scans]


def _scan_ports(node: ir.Node, body: ir.Graph) -> list[ControlPort]:
    scan_inputs = node.attributes["num_scan_inputs"].as_int()
    states = len(body.inputs) - scan_inputs
    first = len(node.inputs) - len(body.inputs)  # 1 at opset 8, which has sequence_lens in front
    ports = []
    for i, value in enumerate(body.inputs):
        if i < states:
            ports.append(_port("state", (value, _output(node, i)), ((node, first + i), (body, i))))
        else:
            ports.append(_port("scan", (value,), ((node, first + i),)))
    scans = range(states, len(body.outputs))
    return ports + [_port("scan", (_output(node, i),), ((body, i),)) for i in scans]


def _output(node: ir.Node, index: int) -> ir.Value | None:
    return node.outputs[index] if index < len(node.outputs) else None


def _port(
    kind: str, definitions: tuple[ir.Value | None, ...], uses: tuple[tuple[ir.Node | ir.Graph, int], ...]
) -> ControlPort:
    sizes = (len(user.inputs) if isinstance(user, ir.Node) else len(user.outputs) for user, _ in uses)
    valid_uses = tuple(Use(user, index) for (user, index), size in zip(uses, sizes, strict=True) if index < size)
    return ControlPort(kind, tuple(value for value in definitions if value is not None), valid_uses)
