"""`Stack`: values of one element type that persist in one matrix, one after the other."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

__all__ = ["Stack"]


@dataclasses.dataclass(frozen=True, slots=True)
class Stack:
    """Persistable values that a compiled step reads and replaces as one matrix, each in some rows of its own.

    Attributes:
        name: name of the matrix in the step.
        members: names of the values, in the order of the rows.
        shapes: the shape of each value.
        dtype: the element type.
    """

    name: str
    members: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: ir.DataType

    @property
    def sizes(self) -> tuple[int, ...]:
        """The elements of each value."""
        return tuple(map(math.prod, self.shapes))

    @property
    def width(self) -> int:
        """The elements of a row: as many as fit into every value without a rest."""
        return math.gcd(*self.sizes)

    @property
    def starts(self) -> tuple[int, ...]:
        """The place of each value's first element in the matrix."""
        return tuple(itertools.accumulate(self.sizes[:-1], initial=0))

    @property
    def stacked_shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        return sum(self.sizes) // self.width if self.width else len(self.members), self.width

    def joined(self, values: Iterable[np.ndarray]) -> np.ndarray:
        """Return the matrix of these values, which are read one at a time."""
        matrix = np.empty(self.stacked_shape, self.dtype.numpy())
        flat = matrix.reshape(-1)
        for start, size, value in zip(self.starts, self.sizes, values, strict=True):
            flat[start : start + size] = value.reshape(-1)
        return matrix

    def parted(self, matrix: np.ndarray) -> Mapping[str, np.ndarray]:
        """Return the values of a matrix, by name."""
        pieces = np.split(matrix.reshape(-1), self.starts[1:])
        return {n: piece.reshape(shape) for n, piece, shape in zip(self.members, pieces, self.shapes, strict=True)}
