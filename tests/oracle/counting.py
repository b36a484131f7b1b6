"""Casts and low nodes of a model, from the types in its file: those that it states, and those that ONNX infers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import onnx

from tests.oracle.formats import LOW

# A weight is a Constant in one model and an initializer in another; Shape and Size read no element of what they are
# given, so whether that is low makes no difference to them.
_NO_WORK = ("Cast", "CastLike", "Constant", "Shape", "Size")
_INFERABLE_BYTES = (2 << 30) - (1 << 20)  # protobuf's limit for what inference is given as one message


def count_casts(model: onnx.ModelProto) -> int:
    """Return the number of Cast nodes in all scopes, functions included."""
    nodes = [*all_nodes(model.graph), *(n for function in model.functions for n in all_nodes(function))]
    return sum(node.op_type == "Cast" for node in nodes)


def low_nodes(model: onnx.ModelProto, counts: Callable[[onnx.NodeProto], bool] = lambda _: True) -> list[str]:
    """List the operators of the nodes, in all scopes, with a 16-bit input or output.

    Casts, constants, Shape and Size do no work and are left out, as are If, Loop and Scan, whose bodies are looked at.

    Args:
        model: the model; functions inside it are not looked at.
        counts: whether a node that is low counts.
    """
    typed = onnx.shape_inference.infer_shapes(model) if model.ByteSize() < _INFERABLE_BYTES else model
    return [node.op_type for node in _low_nodes(typed.graph, frozenset()) if counts(node)]


def has_bodies(node: onnx.NodeProto) -> bool:
    """Whether a node holds graphs, which may read other values than its inputs."""
    return any(attribute.graphs or attribute.HasField("g") for attribute in node.attribute)


def _low_nodes(graph: onnx.GraphProto, outer: frozenset[str]) -> Iterator[onnx.NodeProto]:
    low = outer | {value.name for value in _values(graph) if _is_low(value.type)}
    low |= {tensor.name for tensor in graph.initializer if tensor.data_type in LOW}
    for node in graph.node:
        bodies = [body for attribute in node.attribute for body in (attribute.g, *attribute.graphs) if body.node]
        for body in bodies:
            yield from _low_nodes(body, frozenset(low))
        if not bodies and node.op_type not in _NO_WORK and low.intersection((*node.input, *node.output)):
            yield node


def _values(graph: onnx.GraphProto) -> Iterable[onnx.ValueInfoProto]:
    return (*graph.input, *graph.value_info, *graph.output)


def _is_low(type_: onnx.TypeProto) -> bool:
    kind = type_.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _is_low(getattr(type_, kind).elem_type)
    return kind == "tensor_type" and type_.tensor_type.elem_type in LOW


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the bodies inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from all_nodes(body)


def folded_nodes(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the nodes, of the graph alone, that only read constants: they run when a model is opened."""
    inputs = {value.name for value in graph.input}
    constant = {tensor.name for tensor in graph.initializer if tensor.name not in inputs}
    folded = set()
    for node in graph.node:
        read = [name for name in node.input if name]
        if node.op_type == "Constant" or (read and constant.issuperset(read) and not has_bodies(node)):
            constant.update(node.output)
            folded.add(node.name)
    return folded
