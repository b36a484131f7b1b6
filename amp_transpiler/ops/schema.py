"""Operator signatures: the types that a schema permits for each input and output, at a given opset.

ONNX's own operators come from the `onnx` package, all others from the schemas that ONNX Runtime bundles: those of its
domains (`com.microsoft`, ...), and those that it keeps in ONNX's domain (`SimplifiedLayerNormalization`,
`LayerNormalization` below opset 17, ...).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from amp_transpiler.wheels import require_runtime

__all__ = [
    "Signature",
    "Slot",
    "is_onnx_domain",
    "newest_opset",
    "only_in_runtime",
    "opset_of",
    "runtime_domains",
    "runtime_schema",
    "runtime_schemas",
    "signature",
    "type_string",
]

_ONNX_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """One formal input or output of a schema.

    Attributes:
        name: its name in the schema.
        type: a type parameter (`T`) or a concrete type (`tensor(float)`).
        variadic: it stands for any number of actual inputs or outputs.
        homogeneous: all actual inputs or outputs of a variadic slot have the same type.
    """

    name: str
    type: str
    variadic: bool
    homogeneous: bool


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """The types that one version of an operator's schema permits.

    Attributes:
        since_version: the opset that introduced this version of the schema.
        inputs, outputs: the formal slots. A variadic one comes last.
        allowed: type parameter -> the types it permits (`tensor(float16)`, `seq(tensor(float))`, ...).
        has_function: ONNX also defines the operator as a function of other operators.
        in_onnx: ONNX itself has the operator; otherwise only ONNX Runtime does.
    """

    domain: str
    op_type: str
    since_version: int
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    allowed: Mapping[str, frozenset[str]]
    has_function: bool
    in_onnx: bool = True

    def input(self, index: int) -> Slot | None:
        """Return the formal slot of input `index`, or None beyond the last."""
        return _slot(self.inputs, index)

    def output(self, index: int) -> Slot | None:
        """Return the formal slot of output `index`, or None beyond the last."""
        return _slot(self.outputs, index)

    def types(self, slot: Slot) -> frozenset[str]:
        """Return the types that `slot` permits."""
        return self.allowed.get(slot.type) or frozenset((slot.type,))


def _slot(slots: tuple[Slot, ...], index: int) -> Slot | None:
    if index < len(slots):
        return slots[index]
    return slots[-1] if slots and slots[-1].variadic else None


def is_onnx_domain(domain: str) -> bool:
    """Whether ONNX itself has operators in a domain."""
    return domain in _ONNX_DOMAINS or domain == "ai.onnx"


@functools.cache
def signature(domain: str, op_type: str, opset: int) -> Signature | None:
    """Return the operator's signature at `opset`, or None if no schema is known."""
    domain = "" if domain == "ai.onnx" else domain
    if domain in _ONNX_DOMAINS:
        with contextlib.suppress(onnx.defs.SchemaError):
            return _from_onnx(onnx.defs.get_schema(op_type, opset, domain))
    schema = runtime_schema(domain, op_type, opset)
    return None if schema is None or schema.deprecated else _from_runtime(schema)


def only_in_runtime(domain: str, op_type: str, opset: int) -> bool:
    """Whether ONNX Runtime keeps the operator in a domain of ONNX's although ONNX does not have it at `opset`."""
    known_signature = signature(domain, op_type, opset) if domain in _ONNX_DOMAINS or domain == "ai.onnx" else None
    return known_signature is not None and not known_signature.in_onnx


def newest_opset() -> int:
    """Return the newest opset of ONNX's own domain in the installed `onnx`."""
    return onnx.defs.onnx_opset_version()


def opset_of(model: ir.Model, domain: str) -> int:
    """Return the version of `domain` that the model imports; 1 for a custom domain that it does not import."""
    imports = model.graph.opset_imports
    if domain in ("", "ai.onnx"):
        return imports.get("", imports.get("ai.onnx", 1))
    return imports.get(domain, 1)


def own_opset(model: ir.Model) -> int:
    """Return the version of ONNX's own domain that the model imports; 0 if it imports only other domains."""
    imports = model.graph.opset_imports
    return imports.get("", imports.get("ai.onnx", 0))


@functools.cache
def runtime_schemas() -> Mapping[tuple[str, str], list[Any]]:
    """Return domain and operator -> the schemas of all versions that ONNX Runtime bundles.

    Raises:
        EnvironmentProblem: ONNX Runtime is not installed, or cannot be imported.
    """
    require_runtime()
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    schemas: dict[tuple[str, str], list[Any]] = collections.defaultdict(list)
    for schema in state.get_all_operator_schema():
        schemas[schema.domain, schema.name].append(schema)
    return dict(schemas)


@functools.cache
def runtime_domains() -> frozenset[str]:
    """Return the domains that ONNX Runtime has operators in."""
    return frozenset(domain for domain, _ in runtime_schemas())


def runtime_schema(domain: str, op_type: str, opset: int) -> Any:
    """Return ONNX Runtime's schema of an operator in force at `opset`; None if it has none."""
    versions = runtime_schemas().get((domain, op_type), [])
    return max((s for s in versions if s.since_version <= opset), key=lambda s: s.since_version, default=None)


def _from_onnx(schema: Any) -> Signature:  # onnx's type stubs lack some of the properties used here
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic

    def slots(formals: Any) -> tuple[Slot, ...]:
        return tuple(Slot(f.name, f.type_str, f.option == variadic, f.is_homogeneous) for f in formals)

    return _signature(schema, slots, schema.has_function or schema.has_context_dependent_function)


def _from_runtime(schema: Any) -> Signature:
    def slots(formals: Any) -> tuple[Slot, ...]:
        return tuple(Slot(f.name, f.typeStr, "Variadic" in str(f.option), bool(f.isHomogeneous)) for f in formals)

    return _signature(schema, slots, has_function=False, in_onnx=False)


def _signature(
    schema: Any, slots: Callable[[Any], tuple[Slot, ...]], has_function: bool, in_onnx: bool = True
) -> Signature:
    return Signature(
        schema.domain,
        schema.name,
        schema.since_version,
        slots(schema.inputs),
        slots(schema.outputs),
        {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints},
        has_function,
        in_onnx,
    )


_TENSOR_NAMES: dict[ir.DataType, str] = {
    **{dtype: dtype.name.lower() for dtype in ir.DataType},
    ir.DataType.FLOAT: "float",
    ir.DataType.DOUBLE: "double",
}
_TENSORS: dict[ir.DataType, str] = {
    dtype: f"tensor({name})" for dtype, name in _TENSOR_NAMES.items() if dtype != ir.DataType.UNDEFINED
}


def type_string(type_: ir.TypeProtocol | None) -> str | None:
    """Return a type as ONNX's schemas write it: `tensor(float)`, `seq(tensor(float16))`; None for an unknown type."""
    if type_ is None:
        return None
    if isinstance(type_, ir.TensorType):
        return _TENSORS.get(type_.dtype)
    inner = type_string(type_.elem_type) if isinstance(type_, (ir.SequenceType, ir.OptionalType)) else None
    if isinstance(type_, ir.SparseTensorType):
        return f"sparse_tensor({_TENSOR_NAMES[type_.dtype]})"
    if inner is None:
        return None
    return f"seq({inner})" if isinstance(type_, ir.SequenceType) else f"optional({inner})"
