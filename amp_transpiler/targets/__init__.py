"""ONNX Runtime's kernel tables as data, and the look-up that follows its matching rule."""

from amp_transpiler.targets.function_bodies import bind_types, body_has_kernels
from amp_transpiler.targets.kernel_table import (
    KernelTable,
    attribute_values,
    kernel_table,
    kernel_type,
    schema_version,
    schema_versions,
)

__all__ = [
    "KernelTable",
    "attribute_values",
    "bind_types",
    "body_has_kernels",
    "kernel_table",
    "kernel_type",
    "schema_version",
    "schema_versions",
]
