"""Changes of an operator's schema from one opset to the next."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import onnx

from amp_transpiler.ops.schema import only_in_runtime, runtime_schema

__all__ = [
    "SEMANTICS_CHANGED",
    "admits_types",
    "keeps_meaning",
    "only_widens",
    "schema_history",
    "schema_in_force",
    "since_version",
]

# Versions that give an unchanged node another meaning although their signature does not say so: what is new looks
# like an addition with a default, or nothing differs but the text. Read from the schemas' documentation.
SEMANTICS_CHANGED: dict[tuple[str, int], str] = {
    ("PRelu", 7): "a slope of one axis belongs to the channels before, to the last axis from then on",
    ("Resize", 13): "empty tensors no longer stand for a missing roi or scales",
    ("RoiAlign", 16): "coordinates are half a pixel off unless coordinate_transformation_mode says otherwise",
    ("Split", 18): "equal parts need num_outputs",
    ("GroupNormalization", 21): "scale and bias are one number a channel, no longer a group",
    ("Mod", 28): "fmod=0 admits floats, which are an error before",
}


@functools.cache
def _histories() -> dict[tuple[str, str], tuple[onnx.defs.OpSchema, ...]]:
    histories: dict[tuple[str, str], list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        histories.setdefault((schema.domain, schema.name), []).append(schema)
    return {key: tuple(sorted(versions, key=lambda s: s.since_version)) for key, versions in histories.items()}


def schema_history(domain: str, op_type: str) -> tuple[onnx.defs.OpSchema, ...]:
    """Return all versions of an operator, oldest first; empty where it is none of ONNX's."""
    return _histories().get(("" if domain == "ai.onnx" else domain, op_type), ())


def schema_in_force(domain: str, op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return the schema that an operator follows at `opset`, or None."""
    return next((s for s in reversed(schema_history(domain, op_type)) if s.since_version <= opset), None)


def since_version(domain: str, op_type: str, opset: int) -> int | None:
    """Return the opset that introduced the schema in force at `opset`, or None where there is none."""
    schema = schema_in_force(domain, op_type, opset)
    return None if schema is None else schema.since_version


@functools.cache
def only_widens(domain: str, op_type: str, old: int, new: int) -> bool:
    """Whether every node that is valid at opset `old` is valid at `new` and means the same there, unchanged.

    That is so where no version of the operator in between does more than admit further types, attributes, inputs and
    outputs, all of them optional. False for an operator that ONNX does not know or that is deprecated by then, unless
    it is one of ONNX Runtime's and the same at both opsets.
    """
    before = schema_in_force(domain, op_type, old)
    if before is None:
        return _same_in_runtime(domain, op_type, old, new)
    for after in schema_history(domain, op_type):
        if old < after.since_version <= new:
            if not (keeps_meaning(before, after) and admits_types(before, after)):
                return False
            before = after
    return True


def _same_in_runtime(domain: str, op_type: str, old: int, new: int) -> bool:
    return all(only_in_runtime(domain, op_type, opset) for opset in (old, new)) and (
        runtime_schema(domain, op_type, old).since_version == runtime_schema(domain, op_type, new).since_version
    )


def keeps_meaning(before: onnx.defs.OpSchema, after: onnx.defs.OpSchema) -> bool:
    """Whether `after`, the next version, only adds inputs, outputs and attributes that are optional (types aside)."""
    return (
        not after.deprecated
        and (after.name, after.since_version) not in SEMANTICS_CHANGED
        and _formals_extend(before.inputs, after.inputs)
        and _formals_extend(before.outputs, after.outputs)
        and _attributes_extend(before, after)
    )


def admits_types(before: onnx.defs.OpSchema, after: onnx.defs.OpSchema) -> bool:
    """Whether every type that `before` admits somewhere, `after` admits there too."""
    pairs = (*zip(before.inputs, after.inputs, strict=False), *zip(before.outputs, after.outputs, strict=False))
    return all(set(old.types) <= set(new.types) for old, new in pairs)


_Formals = Sequence[onnx.defs.OpSchema.FormalParameter]
_Option = onnx.defs.OpSchema.FormalParameterOption


def _formals_extend(before: _Formals, after: _Formals) -> bool:
    return (
        len(before) <= len(after)
        and all(formal.option != _Option.Single for formal in after[len(before) :])
        and all(_formal_extends(old, new) for old, new in zip(before, after, strict=False))
    )


def _formal_extends(old: onnx.defs.OpSchema.FormalParameter, new: onnx.defs.OpSchema.FormalParameter) -> bool:
    loosened = old.option == _Option.Single and new.option == _Option.Optional
    return (
        old.name == new.name
        and (old.option == new.option or loosened)
        and (old.is_homogeneous or not new.is_homogeneous)
        and new.min_arity <= old.min_arity
    )


def _attributes_extend(before: onnx.defs.OpSchema, after: onnx.defs.OpSchema) -> bool:
    for name, new in after.attributes.items():
        old = before.attributes.get(name)
        if new.required and (old is None or not old.required):
            return False
        if old is not None and (old.type != new.type or old.default_value != new.default_value):
            return False
    return before.attributes.keys() <= after.attributes.keys()
