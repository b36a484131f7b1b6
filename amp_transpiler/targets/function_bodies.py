"""Operators that ONNX defines as functions of others, judged by their body.

ONNX Runtime writes such an operator out when no provider has a kernel for it. Then each node of the body needs one.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import onnx
import onnx.shape_inference
import onnx_ir as ir

from amp_transpiler.graph.dtypes import FLOAT_DTYPES
from amp_transpiler.graph.node_kind import UNTYPED, kind_of
from amp_transpiler.ops.schema import type_string
from amp_transpiler.targets.operator import Imports, Operator, Types
from amp_transpiler.targets.releases import Release

__all__ = ["body_of", "is_ill_typed"]

_DTYPES = {type_string(ir.TensorType(dtype)): dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED}
_FLOATS = frozenset(type_string(ir.TensorType(dtype)) for dtype in FLOAT_DTYPES)

logger = logging.getLogger(__name__)


def body_of(operator: Operator, release: Release) -> tuple[Operator, ...] | None:
    """Return the float operators of the body of an operator, at the versions that the model imports.

    Args:
        operator: the operator.
        release: the release of ONNX Runtime that is to write it out.

    Returns:
        None if the operator is not defined as a function, or its body cannot be written out, typed, or used by ONNX
        Runtime; also for an operator whose node has bodies of its own (SequenceMap).
    """
    formal = operator.signature
    if formal is None or not formal.has_function or _holds_graphs(operator):
        return None
    return _body(operator, release)


def is_ill_typed(operator: Operator) -> bool:
    """Whether ONNX refuses the operator with these types because its body does not type-check.

    ONNX looks into the body of a function only if the schema has no inference of its own. That is the case for
    MeanVarianceNormalization, whose body adds a float32 constant: ONNX's checker refuses it in float16.
    """
    formal = operator.signature
    if formal is None or not formal.has_function or _schema(operator).has_type_and_shape_inference_function:
        return False
    return isinstance(_written_out(operator), onnx.shape_inference.InferenceError)


def _schema(operator: Operator) -> Any:  # onnx's type stubs lack some of the properties used here
    return onnx.defs.get_schema(operator.op_type, operator.opset, operator.domain)


def _holds_graphs(operator: Operator) -> bool:
    graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return any(value in graphs for _, value in operator.attributes if isinstance(value, ir.AttributeType))


@functools.lru_cache(maxsize=4096)
def _body(operator: Operator, release: Release) -> tuple[Operator, ...] | None:
    model = _written_out(operator)
    if isinstance(model, Exception):
        logger.debug("the body of %s cannot be written out: %s", operator.op_type, model)
        return None
    if any((node.domain, node.op_type) == (operator.domain, operator.op_type) for node in model.graph.node):
        return None  # the body depends on something that is not known here
    if _is_outdated(model.graph, _written_for(operator), operator.imports, release):
        return None
    try:
        return tuple(_float_operators(model.graph, {}, operator.imports))
    except _UnknownType as error:
        logger.debug("the body of %s cannot be typed: %s", operator.op_type, error)
        return None


@functools.lru_cache(maxsize=256)
def _written_out(operator: Operator) -> onnx.ModelProto | Exception:
    """Return a typed model of the operator's body, or the error of the inliner or of type inference."""
    from amp_transpiler.ops.function_inlining import inline_schema_function  # few operators have no kernel

    try:
        model = inline_schema_function(_model_of(operator))
        return onnx.shape_inference.infer_shapes(model, check_type=True)
    except (RuntimeError, onnx.shape_inference.InferenceError) as error:
        return error


def _written_for(operator: Operator) -> int | None:
    """The opset that the body was written for; None if it is built for each node, so that it is never outdated."""
    schema = _schema(operator)
    if schema.has_context_dependent_function:
        return None
    return max((version for version in schema.function_opset_versions if version <= operator.opset), default=None)


def _is_outdated(graph: onnx.GraphProto, opset: int | None, imports: Imports, release: Release) -> bool:
    """Whether an operator of a body written for `opset` has changed since; ONNX Runtime then ignores the body.

    ReduceL2-18, for one, has Casts in its body, and Cast is another operator since opset 19.
    """
    newest, version = dict(imports).get("", 1), release.schema_version
    return opset is not None and any(
        (not node.domain and version("", node.op_type, opset) != version("", node.op_type, newest))
        or any(_is_outdated(a.g, opset, imports, release) for a in node.attribute if a.HasField("g"))
        for node in graph.node
    )


class _UnknownType(Exception):
    """A value of a body has no inferred type."""


def _float_operators(graph: onnx.GraphProto, outer: Mapping[str, str], imports: Imports) -> Iterator[Operator]:
    """Yield the nodes of `graph` and its bodies that read or write a float, constants aside."""
    types = dict(outer)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            types[value.name] = _text(value.type.tensor_type.elem_type)
    types |= {tensor.name: _text(tensor.data_type) for tensor in graph.initializer}
    for node in graph.node:
        inner = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
        for body in inner:
            yield from _float_operators(body, types, imports)
        if inner or node.op_type == "Constant":
            continue
        missing = [name for name in (*node.input, *node.output) if name and name not in types]
        if missing:
            raise _UnknownType(f"{node.op_type}: no type for {missing[0]!r}")
        inputs = tuple(types[name] if name else None for name in node.input)
        outputs = tuple(types[name] if name else None for name in node.output)
        if not _FLOATS.isdisjoint((*inputs, *outputs)):
            attributes = [ir.serde.deserialize_attribute(attribute) for attribute in node.attribute]
            kind = kind_of(ir.Node(node.domain, node.op_type, [], attributes), 1)
            yield Operator(kind.domain, kind.op_type, imports, inputs, outputs, kind.attributes)


def _text(element: int) -> str:
    return str(type_string(ir.TensorType(ir.DataType(element))))


def _model_of(operator: Operator) -> onnx.ModelProto:
    """A model of a single node, without shapes."""
    schema = _schema(operator)
    node = onnx.NodeProto(op_type=operator.op_type, domain=operator.domain)
    for name, value in operator.attributes:
        if isinstance(value, (int, float, str, tuple)) and name in schema.attributes:
            node.attribute.append(onnx.helper.make_attribute(name, value, attr_type=_attribute_type(schema, name)))
    present = {attribute.name for attribute in node.attribute}
    # A body refers to attributes; onnx's inliner knows those of the node only, not the schema's defaults.
    defaults = (formal.default_value for name, formal in schema.attributes.items() if name not in present)
    node.attribute.extend(default for default in defaults if default.name)
    graph = onnx.GraphProto(name="body")
    for letter, names, values, types in (
        ("i", node.input, graph.input, operator.inputs),
        ("o", node.output, graph.output, operator.outputs),
    ):
        _add_values(letter, names, values, types)
    graph.node.append(node)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in operator.imports]
    return onnx.ModelProto(ir_version=10, graph=graph, opset_import=opsets)


def _attribute_type(schema: Any, name: str) -> int:
    return int(schema.attributes[name].type.value)  # the two enumerations share their numbers


def _add_values(letter: str, names: Any, values: Any, types: Types) -> None:
    for index, type_ in enumerate(types):
        known = type_ is not None and type_ != UNTYPED
        names.append(f"{letter}{index}" if known else "")
        if known:
            element = _DTYPES.get(type_, ir.DataType.UNDEFINED)
            values.append(onnx.helper.make_tensor_value_info(names[-1], int(element), None))
