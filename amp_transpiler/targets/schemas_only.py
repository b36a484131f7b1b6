"""Backends of which no kernel list exists, and whose arithmetic nobody has measured: ONNX's schemas decide alone."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from amp_transpiler.targets.tensorrt import TensorRT

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SCHEMAS_ONLY", "SchemasOnly"]

_NO_BFLOAT16 = frozenset({"bfloat16"})


class SchemasOnly(TensorRT):
    """A backend that takes ONNX's own operators. How it adds up is unknown: a verdict is the worse of both ways.

    Args:
        name: as users write it.
        runtime: what it is called.
        lacks: the 16-bit formats that it does not have.
    """

    def __init__(self, name: str, runtime: str, lacks: frozenset[str] = frozenset()) -> None:
        self.name, self.lacks = name, lacks
        self.description = f"{runtime} (schemas only, arithmetic unknown)"


SCHEMAS_ONLY: Mapping[str, SchemasOnly] = MappingProxyType(
    {
        target.name: target
        for target in (
            SchemasOnly("coreml", "Core ML", _NO_BFLOAT16),
            SchemasOnly("directml", "DirectML", _NO_BFLOAT16),
            SchemasOnly("openvino", "OpenVINO"),
            SchemasOnly("qnn", "Qualcomm's QNN"),
        )
    }
)
"""Name -> target. `docs/howto/other_runtimes.md` has a section for each."""
