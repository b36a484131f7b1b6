"""The kind of a node: everything about it that a rule over types, schemas and kernels can depend on.

A model of thousands of nodes has few kinds. What depends only on the kind (type faults, output types, which kernels
fit) is worked out once a kind and looked up for every further node.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

import onnx_ir as ir

from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.ops.dtype_attributes import tensor_of
from amp_transpiler.ops.schema import signature, type_string

__all__ = ["UNTYPED", "Kind", "kind_at", "kind_of"]

UNTYPED = "?"  # the type string of a value that is there but has no type

_PLAIN = (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING)
_LISTS = (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS)


class Kind(NamedTuple):  # built for every node: a tuple is made and hashed several times faster than a frozen dataclass
    """The facts that two nodes share if they are treated alike.

    Two nodes of one kind may differ in names, shapes, metadata, the values of their constants and the contents of their
    tensor attributes. They may also differ in the contents of their bodies, so results about a node with `has_body`
    must not be kept.

    Attributes:
        domain: `""` for ONNX's own, whichever way the file spells it.
        op_type: the operator.
        version: the opset that introduced the schema in force; None for an unknown operator.
        inputs: type strings (`tensor(float)`); None for a missing input, `UNTYPED` for one without a type.
        outputs: the same for outputs; empty where the kind was asked for without them.
        attributes: name and value in the order of names; of a tensor its element type, of a type its type string.
        has_body: an attribute is a graph.
    """

    domain: str
    op_type: str
    version: int | None
    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    attributes: tuple[tuple[str, Hashable], ...]
    has_body: bool


def kind_of(node: ir.Node, opset: int, *, outputs: bool = True) -> Kind:
    """Return the kind of `node`.

    Args:
        node: the node.
        opset: the version of the node's domain that the model imports, or another one to judge it at.
        outputs: include the outputs' types. Without them the kind is what determines these types.
    """
    domain, op_type, attributes = node.domain, node.op_type, node.attributes.data
    if domain == "ai.onnx":
        domain = ""
    formal = signature(domain, op_type, opset)
    return Kind(
        domain,
        op_type,
        None if formal is None else formal.since_version,
        tuple([_type(value) for value in node.inputs]),
        tuple([_type(value) for value in node.outputs]) if outputs else (),
        _contents(attributes) if attributes else (),
        bool(attributes) and has_bodies(node),
    )


def kind_at(kind: Kind, opset: int) -> Kind:
    """Return the kind that a node has at another version of its domain."""
    formal = signature(kind.domain, kind.op_type, opset)
    version = None if formal is None else formal.since_version
    return kind if version == kind.version else kind._replace(version=version)


def _type(value: ir.Value | None) -> str | None:
    if value is None:
        return None
    type_ = value.type
    return UNTYPED if type_ is None else type_string(type_) or UNTYPED


def _contents(attributes: Mapping[str, ir.Attr]) -> tuple[tuple[str, Hashable], ...]:
    return tuple(sorted(((name, _content(attribute)) for name, attribute in attributes.items()), key=_name))


def _name(item: tuple[str, Hashable]) -> str:
    return item[0]


def _content(attribute: ir.Attr) -> Hashable:
    if attribute.is_ref():
        return ("ref", attribute.ref_attr_name)
    if attribute.type in _PLAIN:
        plain: Hashable = attribute.value
        return plain
    if attribute.type in _LISTS:
        return tuple(attribute.value)
    if attribute.type is ir.AttributeType.TENSOR:
        return tensor_of(attribute).dtype
    if attribute.type is ir.AttributeType.TYPE_PROTO:
        return type_string(attribute.value.type)
    return attribute.type
