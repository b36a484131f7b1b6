"""Sliding windows of convolutions and pools: sizes and paddings as numbers, and pools as matrices, one per axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.graph.builder import GraphBuilder

__all__ = ["Matrix", "Window", "apply_transposed", "in_shape_of", "sizes_of", "window_matrix", "window_of"]

Matrix: TypeAlias = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """How windows lie on the spatial axes of an input, one number an axis.

    Attributes:
        kernel, strides, dilations: as in the operator's attributes.
        begin, end: padding in front and behind, with `auto_pad` worked out.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def rank(self) -> int:
        """How many spatial axes there are."""
        return len(self.kernel)

    @property
    def extent(self) -> tuple[int, ...]:
        """How many elements a window spans."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def unit(self) -> bool:
        """Whether windows are single elements, without padding."""
        return all(k == 1 for k in self.kernel) and not any((*self.begin, *self.end))

    @property
    def pads(self) -> list[int]:
        """The padding as the attribute `pads` has it."""
        return [*self.begin, *self.end]

    def unused(self, inputs: Sequence[int], outputs: Sequence[int]) -> tuple[int, ...]:
        """How many elements at the end of the padded input no window reaches."""
        return tuple(
            size + begin + end - (stride * (out - 1) + extent)
            for size, out, stride, extent, begin, end in zip(
                inputs, outputs, self.strides, self.extent, self.begin, self.end, strict=True
            )
        )


def sizes_of(n: NodeGradient, value: ir.Value, first: int = 2) -> tuple[int, ...]:
    """Return the sizes of the axes of `value` from `first` on.

    Raises:
        ModelError: they are not known.
    """
    sizes = tuple(value.shape)[first:] if value.shape is not None else None
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        raise n.error(
            f"the sizes of '{value.name}' from axis {first} on must be known numbers, got {value.shape}: "
            "give the program's inputs static channels and spatial dimensions, and run shape inference"
        )
    return tuple(int(size) for size in sizes)  # type: ignore[arg-type]  # ints, as just checked


def window_of(n: NodeGradient, inputs: Sequence[int], kernel: Sequence[int]) -> Window:
    """Return the windows of a Conv or pool node over an input of these spatial sizes."""
    rank = len(inputs)
    strides = tuple(n.attribute("strides") or [1] * rank)
    dilations = tuple(n.attribute("dilations") or [1] * rank)
    auto_pad = n.attribute("auto_pad", "NOTSET")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        begin, end = [], []
        for size, k, stride, dilation in zip(inputs, kernel, strides, dilations, strict=True):
            total = max((-(-size // stride) - 1) * stride + dilation * (k - 1) + 1 - size, 0)
            small, large = total // 2, total - total // 2
            begin.append(small if auto_pad == "SAME_UPPER" else large)
            end.append(large if auto_pad == "SAME_UPPER" else small)
    else:
        pads = [0] * (2 * rank) if auto_pad == "VALID" else list(n.attribute("pads") or [0] * (2 * rank))
        begin, end = pads[:rank], pads[rank:]
    if min(*begin, *end) < 0:
        raise n.error(f"paddings must not be negative, got {[*begin, *end]}; write a Slice in front instead")
    return Window(tuple(kernel), strides, dilations, tuple(begin), tuple(end))


def window_matrix(window: Window, axis: int, size: int, out: int, *, average: str = "") -> Matrix:
    """Return what a pool does along one spatial axis, as a matrix [out, size].

    Args:
        window: the windows.
        axis: the spatial axis, 0 for the first.
        size: of the input there.
        out: size of the output there.
        average: "" for the sum over the window, "valid" for the mean over its elements that are in the input,
            "padded" for the mean over those in the padded input.
    """
    taps = np.arange(window.kernel[axis]) * window.dilations[axis]
    made = np.zeros((out, size))
    for row in range(out):
        positions = row * window.strides[axis] - window.begin[axis] + taps
        inside = positions[(positions >= 0) & (positions < size)]
        padded = int(np.sum(positions < size + window.end[axis]))
        count = {"": 1, "valid": len(inside), "padded": padded}[average]
        made[row, inside] = 1.0 / max(count, 1)
    return made


def apply_transposed(b: GraphBuilder, g: ir.Value, axis: int, matrix: Matrix) -> ir.Value:
    """Return `g` with its axis `axis`, of size `len(matrix)`, multiplied by the transposed matrix.

    Sizes of the axes behind it must be known; those in front may be symbolic.
    """
    assert g.shape is not None
    rank = len(g.shape)
    if axis == rank - 1:
        return b.matmul(g, b.constant(matrix, g.dtype))
    left = b.constant(np.ascontiguousarray(matrix.T), g.dtype)
    if axis == rank - 2:
        return b.matmul(left, g)
    lead, behind = [0] * axis, [int(size) for size in list(g.shape)[axis + 1 :]]  # type: ignore[arg-type]  # known
    flat = b.reshape(g, [*lead, matrix.shape[0], int(np.prod(behind))])
    return b.reshape(b.matmul(left, flat), [*lead, matrix.shape[1], *behind])


def in_shape_of(made: ir.Value, like: ir.Value) -> ir.Value:
    """Declare that `made` has the shape of `like`, which inference may have lost for symbolic dimensions."""
    if like.shape is not None:
        made.shape = ir.Shape(like.shape)
    return made
