"""`Stack`: values of equal shape and element type that persist as the rows of one matrix."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

__all__ = ["Stack"]


@dataclasses.dataclass(frozen=True, slots=True)
class Stack:
    """Persistable values that a compiled step reads and replaces as one matrix, a row each.

    Attributes:
        name: name of the matrix in the step.
        members: names of the values, in the order of the rows.
        shape: the shape of each value.
        dtype: the element type.
    """

    name: str
    members: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: ir.DataType

    @property
    def size(self) -> int:
        """The elements of a row."""
        return math.prod(self.shape)

    @property
    def stacked_shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        return len(self.members), self.size
