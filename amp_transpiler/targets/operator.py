"""An operator with the types at its slots: the question that a target answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.graph.node_kind import UNTYPED, Kind, kind_of
from amp_transpiler.ops.schema import Signature, signature
from amp_transpiler.targets.kernel_table import kernel_type

__all__ = ["Operator", "bind_types", "imports_of", "operator_of"]

Types = tuple[str | None, ...]
Imports = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """An operator with the types at its slots.

    Attributes:
        domain: `""` for ONNX's own.
        op_type: the operator.
        imports: domain -> version, of every domain that the model imports, as sorted pairs: the body of a function is
            written for these versions.
        inputs: types as ONNX's schemas write them (`tensor(float16)`); None for a missing input, `UNTYPED` for one
            of unknown type.
        outputs: the same for outputs.
        attributes: names and values, as in `Kind`.
    """

    domain: str
    op_type: str
    imports: Imports
    inputs: Types
    outputs: Types
    attributes: tuple[tuple[str, Hashable], ...] = ()

    @property
    def opset(self) -> int:
        """The version of the operator's domain."""
        return dict(self.imports).get(self.domain, 1)

    @property
    def signature(self) -> Signature | None:
        """The signature in force; None for an unknown operator."""
        return signature(self.domain, self.op_type, self.opset)

    @property
    def bound_types(self) -> dict[str, str]:
        """Type parameter, or name of a slot of fixed type -> type as the kernel tables write it."""
        formal = self.signature
        return {} if formal is None else bind_types(formal, self.inputs, self.outputs)

    def attribute(self, name: str, default: Hashable = None) -> Hashable:
        """The value of an attribute, or `default` where the node does not have it."""
        return next((value for key, value in self.attributes if key == name), default)

    def in_float32(self) -> Operator:
        """The operator with float32 in the place of float16."""
        return dataclasses.replace(self, inputs=_widened(self.inputs), outputs=_widened(self.outputs))


def _widened(types: Types) -> Types:
    return tuple("tensor(float)" if type_ == "tensor(float16)" else type_ for type_ in types)


def operator_of(node: ir.Node | Kind, imports: Imports) -> Operator:
    """Return the operator of a node or kind, in a model with these imports (see `imports_of`)."""
    if isinstance(node, ir.Node):
        node = kind_of(node, 1)  # the version is that of the imports
    return Operator(node.domain, node.op_type, imports, node.inputs, node.outputs, node.attributes)


def imports_of(opset_imports: Mapping[str, int]) -> Imports:
    """Write the imports of a model as `Operator` wants them: sorted, ONNX's own domain as `""`."""
    versions = {domain: version for domain, version in opset_imports.items() if domain != "ai.onnx"}
    if "ai.onnx" in opset_imports:
        versions.setdefault("", opset_imports["ai.onnx"])
    return tuple(sorted(versions.items()))


def bind_types(formal: Signature, inputs: Sequence[str | None], outputs: Sequence[str | None]) -> dict[str, str]:
    """Return the types that actual slots give to type parameters, and to slots of fixed type by their names.

    A kernel's constraints are named after type parameters, and in a few cases (Reshape's `shape`) after inputs.
    """
    bound: dict[str, str] = {}
    for types, slot_of in ((inputs, formal.input), (outputs, formal.output)):
        for index, type_ in enumerate(types):
            slot = slot_of(index)
            if slot is not None and type_ is not None and type_ != UNTYPED:
                bound.setdefault(slot.type if slot.type in formal.allowed else slot.name, kernel_type(type_))
    return bound
