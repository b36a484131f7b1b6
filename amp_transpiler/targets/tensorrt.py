"""TensorRT, of which no kernel list exists: it builds a kernel for every operator of ONNX's own domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_transpiler.targets.target import Target

if TYPE_CHECKING:
    from amp_transpiler.targets.operator import Operator

__all__ = ["TENSORRT", "TENSORRT_RTX", "TensorRT"]


class TensorRT(Target):
    """TensorRT's parser. Only the schemas say which types an operator takes; nothing falls back to another target.

    Opset and IR version are limited to those of ONNX Runtime, which checks the result.

    Args:
        name: as users write it.
        description: a few words for the table of options.
    """

    builds_engines = True

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self.description = description

    def has_kernel(self, operator: Operator) -> bool:
        """Whether the operator is ONNX's own."""
        formal = operator.signature
        return not operator.domain and formal is not None and formal.in_onnx

    def runs(self, operator: Operator) -> bool:
        """Whether it has a kernel; it does not write functions out."""
        from amp_transpiler.targets.function_bodies import is_ill_typed

        return self.has_kernel(operator) and not is_ill_typed(operator)


TENSORRT = TensorRT("tensorrt", "TensorRT (ONNX's schemas decide, since there is no kernel table)")
TENSORRT_RTX = TensorRT("tensorrt-rtx", "TensorRT for RTX, likewise")
