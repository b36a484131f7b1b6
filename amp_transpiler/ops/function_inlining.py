"""The body of an operator that its schema defines as a function, in the place of its node.

`onnx.inliner` does this since 1.19. Before, it inlines the functions of a model only: the schema's becomes one of them.
"""

from __future__ import annotations

import inspect
from typing import Any

import onnx
import onnx.inliner

__all__ = ["inline_schema_function", "inlined_as_a_function_of_the_model"]

_KNOWS_SCHEMAS = "inline_schema_functions" in inspect.signature(onnx.inliner.inline_selected_functions).parameters


def inline_schema_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of one node with the body of its operator in its place; the model as it is if there is none.

    The node has all attributes that its body refers to, defaults included.

    Raises:
        RuntimeError: the inliner refuses the body.
    """
    if not _KNOWS_SCHEMAS:
        return inlined_as_a_function_of_the_model(model)
    [node] = model.graph.node
    names = [(node.domain, node.op_type)]
    return onnx.inliner.inline_selected_functions(model, names, exclude=False, inline_schema_functions=True)


def inlined_as_a_function_of_the_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return what `inline_schema_function` does, with an `onnx` of any version.

    Raises:
        RuntimeError: the inliner refuses the body.
    """
    [node] = model.graph.node
    function = _function(model, node)
    if function is None:
        return model
    with_function = onnx.ModelProto()
    with_function.CopyFrom(model)
    with_function.functions.append(function)
    return onnx.inliner.inline_selected_functions(with_function, [(node.domain, node.op_type)], exclude=False)


def _function(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.FunctionProto | None:
    """Return the schema's function for a node, as one of the model."""
    imports = {entry.domain: entry.version for entry in model.opset_import}
    # onnx's type stubs lack some of the properties used here
    schema: Any = onnx.defs.get_schema(node.op_type, imports.get(node.domain, 1), node.domain)
    opset = imports.get("", 1)
    text = _body_of_any_node(schema, opset) or _body_of_this_node(schema, opset, model, node)
    if text is None:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    function.domain, function.name = node.domain, node.op_type
    del function.opset_import[:]
    function.opset_import.extend(model.opset_import)  # the inliner wants the same; callers look at what has changed
    return function


def _body_of_any_node(schema: Any, opset: int) -> bytes | None:
    version = max((known for known in schema.function_opset_versions if known <= opset), default=None)
    return None if version is None else bytes(schema.get_function_with_opset_version(version))


def _body_of_this_node(schema: Any, opset: int, model: onnx.ModelProto, node: onnx.NodeProto) -> bytes | None:
    """Return the body that the schema builds from a node and the types of its inputs."""
    versions = schema.context_dependent_function_opset_versions
    version = max((known for known in versions if known <= opset), default=None)
    if version is None:
        return None
    types = {value.name: value.type for value in model.graph.input}
    inputs = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
    body = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), inputs)
    return bytes(body) or None
