"""Operators that are defined as functions of others, judged by their body.

ONNX Runtime writes such an operator out when no provider has a kernel for it; where the nodes of the body land is then
what counts.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx.inliner
import onnx.shape_inference
import onnx_ir as ir

from amp_transpiler.ops.schema import Signature, Slot, signature
from amp_transpiler.targets.kernel_table import kernel_type, schema_version

__all__ = ["HasKernel", "bind_types", "body_has_kernels"]

HasKernel = Callable[[str, str, int | None, Mapping[str, str]], bool]
"""Told domain, operator, schema version and types (as `KernelTable.has_kernel` is), whether there is a kernel."""

_Types = tuple[str | None, ...]
_Imports = tuple[tuple[str, int], ...]
_FLOATS = frozenset(("float32", "float16", "bfloat16", "float64"))
_NAMES = {ir.DataType.FLOAT: "float32", ir.DataType.DOUBLE: "float64"}
_NAMES |= {t: t.name.lower() for t in ir.DataType if t not in _NAMES and t != ir.DataType.UNDEFINED}
_ELEMENTS = {name: dtype for dtype, name in _NAMES.items()}

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """A node apart from its graph: what it is, and the types at its slots (None: the slot is absent).

    Attributes:
        proto: the serialized `NodeProto`, with the slots' canonical names, so that equal calls compare equal.
    """

    proto: bytes
    domain: str
    op_type: str
    inputs: _Types
    outputs: _Types


def body_has_kernels(
    node: ir.Node,
    opset_imports: Mapping[str, int],
    input_types: Sequence[str | None],
    output_types: Sequence[str | None],
    has: HasKernel,
    elsewhere: HasKernel | None = None,
) -> bool | None:
    """Whether every float node of the body of `node`'s operator has a kernel.

    Args:
        node: a node without a kernel of its own.
        opset_imports: the model's, domain -> version; the body is looked up at these versions, as ONNX Runtime does.
        input_types: one type a slot, as `float16` or `tensor(float16)`; None where the slot is absent.
        output_types: the same for the outputs.
        has: the look-up of the provider in question.
        elsewhere: the look-up of the provider that takes a node before it is written out (for CUDA, the CPU's): where
            that one has a kernel, the node goes there whole.

    Returns:
        None if the operator is not defined as a function, or the node has bodies of its own (SequenceMap).
    """
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
        return None
    imports = tuple(sorted(opset_imports.items()))
    formal = _signature(node.domain, node.op_type, imports)
    if formal is None or not formal.has_function:
        return None
    call = _call(ir.to_proto(node), _table_types(input_types), _table_types(output_types))
    return _runs(call, imports, has, elsewhere, whole=False)


def bind_types(
    formal: Signature, input_types: Sequence[str | None], output_types: Sequence[str | None]
) -> dict[str, str]:
    """Return what `KernelTable.has_kernel` takes as types: type parameter, or name of a slot of fixed type -> type."""
    bound: dict[str, str] = {}

    def bind(slot: Slot | None, type_: str | None) -> None:
        if slot is not None and type_ is not None:
            bound.setdefault(slot.type if slot.type in formal.allowed else slot.name, type_)

    for index, type_ in enumerate(input_types):
        bind(formal.input(index), type_)
    for index, type_ in enumerate(output_types):
        bind(formal.output(index), type_)
    return bound


def _runs(call: _Call, imports: _Imports, has: HasKernel, elsewhere: HasKernel | None, *, whole: bool) -> bool:
    """Whether `call` has a kernel itself (looked at if `whole`), or else all float nodes of its body have."""
    formal = _signature(call.domain, call.op_type, imports)
    if formal is None:
        return False
    version = schema_version(call.domain, call.op_type, _version(call.domain, imports))
    types = bind_types(formal, call.inputs, call.outputs)
    if whole and has(call.domain, call.op_type, version, types):
        return True
    if elsewhere is not None and elsewhere(call.domain, call.op_type, version, types):
        return False
    body = _body(call, imports) if formal.has_function else None
    return body is not None and all(_runs(inner, imports, has, elsewhere, whole=True) for inner in body)


@functools.lru_cache(maxsize=4096)
def _body(call: _Call, imports: _Imports) -> tuple[_Call, ...] | None:
    """Write `call` out once and return its float nodes, or None if it cannot be written out or typed."""
    model = _model_of(call, imports)
    name = (call.domain, call.op_type)
    try:
        model = onnx.inliner.inline_selected_functions(model, [name], exclude=False, inline_schema_functions=True)
        # Some bodies are well typed in float32 only: MeanVarianceNormalization-13 and -18 add a float32 constant.
        model = onnx.shape_inference.infer_shapes(model, check_type=True)
        if any((node.domain, node.op_type) == name for node in model.graph.node):
            return None  # the body depends on something that is not known here
        if _is_outdated(model.graph, _written_for(call, imports), imports):
            return None
        return tuple(_float_calls(model.graph, {}))
    except (RuntimeError, onnx.shape_inference.InferenceError, _UnknownType) as error:
        logger.debug("%s cannot be judged by its body: %s", "::".join(filter(None, name)), error)
        return None


def _written_for(call: _Call, imports: _Imports) -> int | None:
    """The opset that the body of `call` was written for; None if it is made anew for each node, and never outdated."""
    opset = _version(call.domain, imports)
    schema: Any = onnx.defs.get_schema(call.op_type, opset, call.domain)  # onnx's type stubs lack these properties
    if schema.has_context_dependent_function:
        return None
    return max((version for version in schema.function_opset_versions if version <= opset), default=None)


def _is_outdated(graph: onnx.GraphProto, opset: int | None, imports: _Imports) -> bool:
    """Whether an operator of a body written for `opset` has changed since; ONNX Runtime then ignores the body.

    ReduceL2-18, for one, has Casts in its body, and Cast is another operator since opset 19.
    """
    return opset is not None and any(
        (not node.domain and schema_version("", node.op_type, opset) != _newest(node.op_type, imports))
        or any(_is_outdated(a.g, opset, imports) for a in node.attribute if a.HasField("g"))
        for node in graph.node
    )


def _newest(op_type: str, imports: _Imports) -> int | None:
    return schema_version("", op_type, _version("", imports))


class _UnknownType(Exception):
    """A value of a body has no inferred type."""


def _float_calls(graph: onnx.GraphProto, outer: Mapping[str, str]) -> Iterator[_Call]:
    """Yield the nodes of `graph` and its bodies that read or write a float, constants aside."""
    types = dict(outer)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            types[value.name] = _NAMES[ir.DataType(value.type.tensor_type.elem_type)]
    types |= {tensor.name: _NAMES[ir.DataType(tensor.data_type)] for tensor in graph.initializer}
    for node in graph.node:
        inner = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
        for body in inner:
            yield from _float_calls(body, types)
        if inner or node.op_type == "Constant":
            continue
        missing = [name for name in (*node.input, *node.output) if name and name not in types]
        if missing:
            raise _UnknownType(f"{node.op_type}: no type for {missing[0]!r}")
        inputs = tuple(types[name] if name else None for name in node.input)
        outputs = tuple(types[name] if name else None for name in node.output)
        if not _FLOATS.isdisjoint((*inputs, *outputs)):
            yield _call(node, inputs, outputs)


def _call(node: onnx.NodeProto, inputs: _Types, outputs: _Types) -> _Call:
    bare = onnx.NodeProto(op_type=node.op_type, domain=node.domain, overload=node.overload)
    bare.input.extend("" if type_ is None else f"i{index}" for index, type_ in enumerate(inputs))
    bare.output.extend("" if type_ is None else f"o{index}" for index, type_ in enumerate(outputs))
    bare.attribute.extend(sorted(node.attribute, key=lambda attribute: attribute.name))
    domain = "" if node.domain == "ai.onnx" else node.domain
    return _Call(bare.SerializeToString(deterministic=True), domain, node.op_type, inputs, outputs)


def _model_of(call: _Call, imports: _Imports) -> onnx.ModelProto:
    node = onnx.NodeProto.FromString(call.proto)
    schema = onnx.defs.get_schema(call.op_type, _version(call.domain, imports), call.domain)
    given = {attribute.name for attribute in node.attribute}
    # A body refers to attributes; onnx's inliner knows those of the node only, not the schema's defaults.
    defaults = (formal.default_value for name, formal in schema.attributes.items() if name not in given)
    node.attribute.extend(default for default in defaults if default.name)
    graph = onnx.GraphProto(name="body", node=[node])
    for values, names, types in ((graph.input, node.input, call.inputs), (graph.output, node.output, call.outputs)):
        for name, type_ in zip(names, types, strict=True):
            if type_ is not None:
                element = _ELEMENTS.get(type_, ir.DataType.UNDEFINED)
                values.append(onnx.helper.make_tensor_value_info(name, int(element), None))
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in imports]
    return onnx.ModelProto(ir_version=10, graph=graph, opset_import=opsets)


def _table_types(types: Sequence[str | None]) -> _Types:
    return tuple(None if type_ is None else kernel_type(type_) for type_ in types)


def _version(domain: str, imports: _Imports) -> int:
    versions = dict(imports)
    return versions.get(domain, versions.get("ai.onnx", 1) if not domain else 1)


def _signature(domain: str, op_type: str, imports: _Imports) -> Signature | None:
    domain = "" if domain == "ai.onnx" else domain
    return signature(domain, op_type, _version(domain, imports))
