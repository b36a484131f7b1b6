"""An outline of a graph: what a drawing shows of it, without its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import onnx_ir as ir

from amp_transpiler.graph.dtypes import AMP_DTYPES, LOW_DTYPES, dtype_name
from amp_transpiler.graph.regions import REGION_KEY
from amp_transpiler.graph.roles import Role, role_of
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.walk import INSERTED, has_bodies, reads_of
from amp_transpiler.ops.names import is_standard, operator_name

__all__ = ["Outline", "OutlineNode", "marks_of", "outline", "precision_of", "type_text", "typed"]

_MODULES = "pkg.torch.onnx.name_scopes"  # a list as Python text: ['', 'encoder', 'encoder.layer.0', 'matmul']
_INFERRED = 2000  # nodes; more take seconds


class OutlineNode(NamedTuple):  # made faster than a frozen dataclass, once for every node that is converted
    """A node of the main graph.

    Attributes:
        operator: its operator's name.
        name: its name, or that of its first output.
        inputs: names of the values that it and its bodies read from the main graph.
        outputs: names of its results.
        precision: see `precision_of`.
        role: its part of a training step.
        marks: see `marks_of`.
        modules: the modules of PyTorch that it was exported from, as the exporter writes them; empty for other nodes.
    """

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    precision: str
    role: Role
    marks: str
    modules: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Outline:
    """A graph without its weights.

    Attributes:
        nodes: the nodes, in the order of execution.
        inputs: names of the graph's inputs, without those that hold values of a scope.
        outputs: names of its outputs.
        types: value -> type and shape, in words.
    """

    nodes: tuple[OutlineNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: dict[str, str]

    def forward(self) -> Outline:
        """Return only the forward pass; all of it if no backward pass is known."""
        if all(node.role != "backward" for node in self.nodes):
            return self
        return dataclasses.replace(self, nodes=tuple(node for node in self.nodes if node.role == "forward"))


def outline(graph: ir.Graph, held: Iterable[str] = (), outputs: Iterable[str] = ()) -> Outline:
    """Return the outline of a graph.

    Args:
        graph: the graph.
        held: inputs that hold values of a scope: parameters and state.
        outputs: values that are outputs besides the graph's own.
    """
    types: dict[str, str] = {}
    shapes: dict[object, str] = {}  # equal types share one text
    nodes = []
    held_names = set(held)
    for value in graph.inputs:
        _remember(value, types, shapes)
    for node in graph:
        read = dict.fromkeys([str(value.name) for value in reads_of(node)])
        for value in node.outputs:
            _remember(value, types, shapes)
        results = tuple(value.name for value in node.outputs if value.name)
        name = node.name or (results[0] if results else "")
        role = role_of(node)
        nodes.append(
            OutlineNode(
                operator_name(node),
                name,
                tuple(read),
                results,
                precision_of(node),
                role,
                marks_of(node),
                node.metadata_props.get(_MODULES, "") if node.metadata_props else "",
            )
        )
    inputs = tuple(
        str(value.name) for value in graph.inputs if value.name not in held_names and not value.is_initializer()
    )
    names = dict.fromkeys((*(str(value.name) for value in graph.outputs), *outputs))
    return Outline(tuple(nodes), inputs, tuple(names), types)


def typed(model: ir.Model) -> ir.Model:
    """Return the model, or a copy with types and shapes inferred if it leaves some open and is of moderate size."""
    outputs = (value for node in model.graph for value in node.outputs)
    if model.graph.num_nodes() > _INFERRED or all(v.type is not None and v.shape is not None for v in outputs):
        return model
    try:
        copy = model.clone()
    except RuntimeError:  # the nodes are not in their order: it is shown as it is
        return model
    propagate_types(copy)
    infer_shapes(copy)
    return copy


def _remember(value: ir.Value, types: dict[str, str], shapes: dict[object, str]) -> None:
    key = type(value.type), value.dtype, None if value.shape is None else value.shape.dims
    text = shapes.get(key) if value.dtype is not None else None
    if text is None:
        text = shapes[key] = type_text(value)
    types[str(value.name)] = text


def precision_of(node: ir.Node) -> str:
    """Return what a node computes in: `float16`, `bfloat16`, `float32`, `cast`, or nothing if no float is involved.

    A cast between floats is a `cast`. A node with bodies has no precision of its own.
    """
    if has_bodies(node):
        return ""
    written = [value.dtype for value in node.outputs if value.dtype in AMP_DTYPES]
    read = [value.dtype for value in node.inputs if value is not None and value.dtype in AMP_DTYPES]
    if written and read and node.op_type == "Cast" and is_standard(node):
        return "cast"
    dtypes = written or read
    dtype = next((dtype for dtype in dtypes if dtype in LOW_DTYPES), dtypes[0] if dtypes else None)
    return "" if dtype is None else dtype_name(dtype)


def marks_of(node: ir.Node) -> str:
    """Return what else is known about a node: role, regions, whether a conversion put it in; with commas."""
    if not node.metadata_props and not node.meta:
        return ""
    role, region = role_of(node), node.metadata_props.get(REGION_KEY, "")
    marks: list[str] = [] if role == "forward" else [role]
    marks += [f"in {kind}" for kind in dict.fromkeys(region.split(";")) if kind]
    if INSERTED in node.meta:
        marks.append("inserted")
    return ", ".join(marks)


def type_text(value: ir.Value) -> str:
    """Return type and shape of a value: `float16[n, 4]`, `float32[]`; `?` for what is not known."""
    if value.type is None:
        kind = "?"
    elif isinstance(value.type, ir.TensorType):
        kind = dtype_name(value.type.dtype)
    else:
        kind = str(value.type)
    if value.shape is None:
        return kind
    sizes = (size if isinstance(size, int) else size.value for size in value.shape)
    return f"{kind}[{', '.join('?' if size is None else str(size) for size in sizes)}]"
