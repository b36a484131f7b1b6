"""A program as Paddle shows it: blocks of operators with Paddle's names."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from amp_transpiler.graph.operator_class import operator_class
from amp_transpiler.graph.origins import BUILT_BY_KEY, OPERATOR_KEY
from amp_transpiler.graph.roles import Role, role_of
from amp_transpiler.graph.walk import bodies
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.vocabulary import paddle_names

__all__ = ["Block", "Operator", "blocks_of", "working_type"]

# The name that Paddle's static programs use today, where the table knows several for an ONNX operator.
_CURRENT_NAMES = {
    "Add": "elementwise_add",
    "Clip": "clip",
    "Concat": "concat",
    "Expand": "expand_v2",
    "Floor": "floor",
    "Gather[embedding]": "lookup_table_v2",
    "Gemm": "matmul_v2",
    "MatMul": "matmul_v2",
    "Mul": "elementwise_mul",
    "OneHot": "one_hot_v2",
    "ReduceMean": "reduce_mean",
    "Reshape": "reshape2",
    "Shape": "shape",
    "Split": "split",
    "Squeeze": "squeeze2",
    "Tile": "tile",
    "TopK": "top_k_v2",
    "Transpose": "transpose2",
    "Unsqueeze": "unsqueeze2",
    "BatchNormalization": "batch_norm",
}
_WITH_BIAS = frozenset({"Conv", "ConvTranspose", "Gemm"})  # their third input is an operator of its own in Paddle


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """One of Paddle's operators: a node, part of a node, or the nodes of one parameter's update.

    Attributes:
        type: Paddle's name; ONNX's for an operator that Paddle does not have. Those of the backward pass end in
            `@grad`: a gradient here is as many operators as its formula has.
        inputs: slot -> names of values. An optimizer's are `Param` and `Grad`; the others have one, `X`.
        outputs: slot -> names of values. There is one, `Out`.
        dtype: the element type it computes in; None if it reads and writes no tensors.
        role: the part of a training step it belongs to.
        attributes: an optimizer has `multi_precision`; nodes have those of ONNX.
    """

    type: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    dtype: ir.DataType | None
    role: Role
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def input_names(self) -> list[str]:
        """The input slots."""
        return list(self.inputs)

    @property
    def output_names(self) -> list[str]:
        """The output slots."""
        return list(self.outputs)

    @property
    def input_arg_names(self) -> list[str]:
        """The names of the values it reads."""
        return [name for names in self.inputs.values() for name in names]

    @property
    def output_arg_names(self) -> list[str]:
        """The names of the values it makes."""
        return [name for names in self.outputs.values() for name in names]

    def input(self, slot: str) -> list[str]:
        """Return the names of the values in an input slot."""
        return list(self.inputs.get(slot, ()))

    def output(self, slot: str) -> list[str]:
        """Return the names of the values in an output slot."""
        return list(self.outputs.get(slot, ()))

    def has_attr(self, name: str) -> bool:
        """Whether it has an attribute."""
        return name in self.attributes

    def attr(self, name: str) -> Any:
        """Return the value of an attribute.

        Raises:
            KeyError: it has no such attribute.
        """
        return self.attributes[name]

    def all_attrs(self) -> dict[str, Any]:
        """Return every attribute by its name."""
        return dict(self.attributes)


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A graph of a program: the main one, or a body of control flow.

    Attributes:
        idx: its number; 0 is the main graph.
        ops: its operators, in their order.
        var: returns a variable of the main graph by its name.
    """

    idx: int
    ops: Sequence[Operator]
    var: Callable[[str], Any]


def blocks_of(graph: ir.Graph, var: Callable[[str], Any]) -> list[Block]:
    """Return the main graph and the bodies of its control flow, outer ones first.

    Args:
        graph: the main graph of a program.
        var: returns a variable of the main graph by its name.
    """
    graphs = [graph]
    for outer in graphs:  # grows while it is read
        graphs.extend(body for node in outer for _, body in bodies(node))
    return [Block(number, list(_operators(block_graph)), var) for number, block_graph in enumerate(graphs)]


def _operators(graph: Iterable[ir.Node]) -> Iterator[Operator]:
    """Yield the operators of a graph; nodes with one label, which follow each other, are one operator."""
    for label, nodes in itertools.groupby(graph, key=lambda node: node.metadata_props.get(OPERATOR_KEY, "")):
        if label:
            yield _labelled(label, list(nodes))
        else:
            for node in nodes:
                yield from _of_node(node)


def _labelled(label: str, nodes: Sequence[ir.Node]) -> Operator:
    """Return the operator that several nodes are together, such as the update of a parameter."""
    described = json.loads(label)
    return Operator(
        described["type"],
        {slot: (name,) for slot, name in described["inputs"].items()},
        {"Out": tuple(str(value.name) for value in nodes[-1].outputs)},
        ir.DataType[described["dtype"]],
        role_of(nodes[0]),
        described["attributes"],
    )


def _of_node(node: ir.Node) -> Iterator[Operator]:
    if operator_name(node) == "Constant":
        return
    role = role_of(node)
    kind = _paddle_name(node) if role != "backward" else f"{_paddle_name(node)}@grad"
    inputs = tuple(str(value.name) for value in node.inputs if value is not None)
    outputs = tuple(str(value.name) for value in node.outputs if value.name)
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    yield Operator(kind, {"X": inputs}, {"Out": outputs}, working_type(node), role, attributes)
    has_bias = is_standard(node) and node.op_type in _WITH_BIAS and len(node.inputs) > 2 and node.inputs[2] is not None
    if has_bias and role == "forward":
        yield Operator("elementwise_add", {"X": (*outputs, inputs[-1])}, {"Out": outputs}, working_type(node), role)


def _paddle_name(node: ir.Node) -> str:
    """Return Paddle's name of a node's operator, or ONNX's."""
    name = operator_class(node)
    if name == "Gather" and node.metadata_props.get(BUILT_BY_KEY) == "embedding":  # a table that lives in a scope
        name = "Gather[embedding]"
    paddle_name = _CURRENT_NAMES.get(name) or _first_names().get(name)
    return paddle_name or _first_names().get(operator_name(node)) or operator_name(node)


@functools.cache
def _first_names() -> Mapping[str, str]:
    """Return operator -> the first of Paddle's names for it."""
    names: dict[str, str] = {}
    for name, operators in paddle_names().items():
        for operator in operators:
            names.setdefault(operator, name)
    return names


def working_type(node: ir.Node) -> ir.DataType | None:
    """Return the type of the first floating-point input or, without one, of the first output."""
    for value in node.inputs:
        if value is not None and value.dtype is not None and value.dtype.is_floating_point():
            return value.dtype
    return node.outputs[0].dtype if node.outputs else None
