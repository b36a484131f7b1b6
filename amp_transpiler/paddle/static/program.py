"""Adds what Paddle's `static.Program` has beside an ONNX model: blocks of operators, and a program for tests.

`Program` asks for it through `program/hooks.py`. `paddle/static/io.py` reads and sets its state in a scope, and
`paddle/framework/build_record.py` is what layers note in it while they build it.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.graph.operator_class import operator_class
from amp_transpiler.graph.origins import BUILT_BY_KEY, OPERATOR_KEY
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.walk import all_nodes, bodies
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.vocabulary import paddle_names
from amp_transpiler.paddle.static.inference import switch_to_inference
from amp_transpiler.program.blocks import Block, Operator
from amp_transpiler.program.program import Program

__all__ = ["blocks_of", "keep_only_inference", "working_type"]

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


def blocks_of(program: Program) -> list[Block]:
    """Return the main graph and the bodies of its control flow, outer ones first."""
    graphs: list[ir.Graph] = [program.model.graph]
    for outer in graphs:  # grows while it is read
        graphs.extend(body for node in outer for _, body in bodies(node))
    return [Block(number, list(_operators(graph)), program.var) for number, graph in enumerate(graphs)]


def _operators(graph: Iterable[ir.Node]) -> Iterator[Operator]:
    """Yield the operators of a graph; nodes with one label, which follow each other, are one operator."""
    for label, nodes in itertools.groupby(graph, key=lambda node: node.metadata_props.get(OPERATOR_KEY, "")):
        if label:
            yield _labelled(label, list(nodes))
        else:
            for node in nodes:
                yield from _of_node(node)


def _labelled(label: str, nodes: Sequence[ir.Node]) -> Operator:
    """Return the one operator that several nodes stand for, such as the update of a parameter."""
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


def keep_only_inference(program: Program) -> None:
    """Remove from a program what `clone(for_test=True)` leaves out: backward pass, optimizer and what they need."""
    switch_to_inference(program.model)
    graph = program.model.graph
    program.updates.clear()
    read = {str(value.name) for node in all_nodes(program.model) for value in node.inputs if value is not None}
    for name, info in list(program.persistables.items()):
        if info.kind == "state" and name not in read:
            graph.inputs.remove(program.value(name))
            del program.persistables[name]
    program.touch()
    program.outputs = [name for name in program.outputs if program.find(name) is not None]
