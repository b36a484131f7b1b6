"""Backends of which no kernel list exists, and whose arithmetic nobody has measured: ONNX's schemas decide alone."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from amp_transpiler.targets.target import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_transpiler.targets.operator import Operator

__all__ = ["SCHEMAS_ONLY", "SchemasOnly"]

_NO_BFLOAT16 = frozenset({"bfloat16"})


class SchemasOnly(Target):
    """A backend that takes ONNX's own operators, in all types of their schemas; nothing falls back to another target.

    Opset and IR version are limited to those of ONNX Runtime, which checks the result.

    Args:
        name: as users write it.
        description: a few words for the table of options.
        lacks: the 16-bit formats that it does not have.
    """

    def __init__(self, name: str, description: str, lacks: frozenset[str] = frozenset()) -> None:
        self.name, self.description, self.lacks = name, description, lacks

    def has_kernel(self, operator: Operator) -> bool:
        """Whether the operator is ONNX's own."""
        formal = operator.signature
        return not operator.domain and formal is not None and formal.in_onnx

    def runs(self, operator: Operator) -> bool:
        """Whether it has a kernel; it does not write functions out."""
        from amp_transpiler.targets.function_bodies import is_ill_typed

        return self.has_kernel(operator) and not is_ill_typed(operator)


def _unmeasured(name: str, runtime: str, lacks: frozenset[str] = frozenset()) -> SchemasOnly:
    """Return a backend of which nobody knows how it adds up: a verdict is the worse of both ways."""
    return SchemasOnly(name, f"{runtime} (schemas only, arithmetic unknown)", lacks)


SCHEMAS_ONLY: Mapping[str, SchemasOnly] = MappingProxyType(
    {
        target.name: target
        for target in (
            _unmeasured("coreml", "Core ML", _NO_BFLOAT16),
            _unmeasured("directml", "DirectML", _NO_BFLOAT16),
            _unmeasured("openvino", "OpenVINO"),
            _unmeasured("qnn", "Qualcomm's QNN"),
        )
    }
)
"""Name -> target. `docs/howto/other_runtimes.md` has a section for each."""
