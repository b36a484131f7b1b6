"""TensorRT, of which no kernel list exists: it builds a kernel for every operator of ONNX's own domain.

What its builder was seen to refuse in 16 bits are the rows of `data/tensorrt.txt`.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from amp_transpiler.targets.schemas_only import SchemasOnly

if TYPE_CHECKING:
    from amp_transpiler.targets.operator import Operator

__all__ = ["TENSORRT", "TENSORRT_RTX", "BuildWish", "EngineRefusal", "TensorRT", "refusals"]

BuildWish: TypeAlias = Literal["auto", "yes", "no"]
"""Whether TensorRT's builder tries the written file: where it is installed, always, or never."""

_FORMATS = {"both": ("float16", "bfloat16")}
_EMPTY = "-"


@dataclasses.dataclass(frozen=True, slots=True)
class EngineRefusal:
    """An operator that TensorRT's builder refuses in 16 bits.

    Attributes:
        operator: ONNX's name.
        formats: in which.
        condition: on which of its nodes, a name of `_CONDITIONS`; empty for all.
        builder: who was seen to refuse it.
        says: the reason.
    """

    operator: str
    formats: tuple[str, ...]
    condition: str
    builder: str
    says: str

    def is_about(self, operator: Operator) -> bool:
        """Whether it concerns an operator with these types."""
        if operator.op_type != self.operator or operator.domain:
            return False
        types = {f"tensor({name})" for name in self.formats}
        if types.isdisjoint(operator.inputs) and types.isdisjoint(operator.outputs):
            return False
        return not self.condition or _CONDITIONS[self.condition](operator)


def _has_input(index: int) -> Callable[[Operator], bool]:
    return lambda operator: len(operator.inputs) > index and operator.inputs[index] is not None


_CONDITIONS: Mapping[str, Callable[[Operator], bool]] = {
    "sequence lengths": _has_input(4),
}


@functools.cache
def refusals() -> tuple[EngineRefusal, ...]:
    """Return the rows of the table."""
    text = (pathlib.Path(__file__).parent / "data" / "tensorrt.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return tuple(map(_row, lines[1:]))


def _row(line: str) -> EngineRefusal:
    operator, formats, condition, builder, says = (cell.strip() for cell in line.split(" | "))
    condition = "" if condition == _EMPTY else condition
    return EngineRefusal(operator, _FORMATS.get(formats, (formats,)), condition, builder, says)


class TensorRT(SchemasOnly):
    """TensorRT's parser, and the builder that refuses some of what the schemas allow."""

    builds_engines = True

    def has_kernel(self, operator: Operator) -> bool:
        """Whether the operator is ONNX's own, and neither refused in these types nor computed in wider ones."""
        if not super().has_kernel(operator) or _is_widened(operator):
            return False
        return not any(refusal.is_about(operator) for refusal in refusals())


def _is_widened(operator: Operator) -> bool:
    """Whether the parser casts a 16-bit operand to float32, because the other one is: Pow takes two types."""
    low = {f"tensor({name})" for name in _FORMATS["both"]}
    return operator.op_type == "Pow" and "tensor(float)" in operator.inputs and not low.isdisjoint(operator.inputs)


TENSORRT = TensorRT("tensorrt", "TensorRT (ONNX's schemas decide, since there is no kernel table)")
TENSORRT_RTX = TensorRT("tensorrt-rtx", "TensorRT for RTX, likewise")
