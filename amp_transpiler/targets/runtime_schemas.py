"""The versions of the schemas that ONNX Runtime bundles. They are not always those of the installed `onnx`."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from amp_transpiler.ops.schema import runtime_schemas

__all__ = ["schema_version", "schema_versions"]


@functools.cache
def schema_version(domain: str, op_type: str, opset: int) -> int | None:
    """Return the version of the schema that ONNX Runtime has in force for the operator when a model imports `opset`.

    The answer is None for an operator that it does not know, or that is deprecated at that opset.
    """
    versions = _schema_versions().get(("" if domain == "ai.onnx" else domain, op_type), {})
    newest = max((version for version in versions if version <= opset), default=None)
    return None if newest is None or versions[newest] else newest


def schema_versions(domain: str, op_type: str) -> tuple[int, ...]:
    """Return the opsets at which ONNX Runtime's schema of the operator changed, oldest first; empty if unknown."""
    return tuple(sorted(_schema_versions().get(("" if domain == "ai.onnx" else domain, op_type), {})))


@functools.cache
def _schema_versions() -> Mapping[tuple[str, str], Mapping[int, bool]]:
    """Domain and operator -> version -> whether it is deprecated, of all schemas that ONNX Runtime bundles."""
    return {
        operator: {schema.since_version: schema.deprecated for schema in schemas}
        for operator, schemas in runtime_schemas().items()
    }
