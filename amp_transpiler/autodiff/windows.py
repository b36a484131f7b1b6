"""Sliding windows of convolutions and pools: sizes and padding as numbers, and pools as matrices, one per axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable, SizesUnknown
from amp_transpiler.autodiff.expression import Expr

__all__ = ["Matrix", "Window", "apply_transposed", "check_axes", "sizes_of", "window_matrix", "window_of"]

Matrix: TypeAlias = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """The windows over the spatial axes of an input, one number per axis.

    Attributes:
        kernel, strides, dilations: as in the operator's attributes.
        begin, end: padding before and after, with `auto_pad` resolved.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.kernel)

    @property
    def extent(self) -> tuple[int, ...]:
        """The number of elements that a window spans."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def unit(self) -> bool:
        """Whether windows are single elements without padding."""
        return all(k == 1 for k in self.kernel) and not any((*self.begin, *self.end))

    def attributes(self, group: int) -> dict[str, Any]:
        """Return the attributes of a Conv or ConvTranspose with these windows."""
        return {
            "kernel_shape": list(self.kernel),
            "strides": list(self.strides),
            "dilations": list(self.dilations),
            "pads": [*self.begin, *self.end],
            "group": group,
        }

    def unused(self, inputs: Sequence[int], outputs: Sequence[int]) -> tuple[int, ...]:
        """Return the number of elements at the end of the padded input that no window reaches."""
        check_axes(self.rank, inputs=inputs, outputs=outputs)
        return tuple(
            size + begin + end - (stride * (out - 1) + extent)
            for size, out, stride, extent, begin, end in zip(
                inputs, outputs, self.strides, self.extent, self.begin, self.end, strict=True
            )
        )


def sizes_of(x: Expr, first: int = 2) -> tuple[int, ...]:
    """Return the sizes of the axes of `x` from `first` on.

    Raises:
        NotDifferentiable: they are not known.
    """
    sizes = tuple(x.shape)[first:] if x.shape is not None else None
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        raise SizesUnknown(
            f"the sizes of '{x.name}' from axis {first} on must be known numbers, got {x.shape}: "
            "give the program's inputs static channels and spatial dimensions, and run shape inference"
        )
    return tuple(int(size) for size in sizes)  # type: ignore[arg-type]  # ints, as just checked


def check_axes(rank: int, **numbers: Sequence[int]) -> None:
    """Check that there is one number for every spatial axis.

    Raises:
        SizesUnknown: there is not: declared shapes or attributes contradict each other.
    """
    for name, each in numbers.items():
        if len(each) != rank:
            raise SizesUnknown(
                f"{name} must have a number for each of {rank} spatial axes, got {list(each)}: the declared shapes or "
                "the attributes contradict each other; correct them"
            )


def window_of(node: NodeGradient, inputs: Sequence[int], kernel: Sequence[int]) -> Window:
    """Return the windows of a Conv or pool node over an input of these spatial sizes."""
    rank = len(inputs)
    strides = tuple(node.attribute("strides") or [1] * rank)
    dilations = tuple(node.attribute("dilations") or [1] * rank)
    check_axes(rank, kernel=kernel, strides=strides, dilations=dilations)
    auto_pad = node.attribute("auto_pad", "NOTSET")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        begin, end = [], []
        for size, k, stride, dilation in zip(inputs, kernel, strides, dilations, strict=True):
            total = max((-(-size // stride) - 1) * stride + dilation * (k - 1) + 1 - size, 0)
            small, large = total // 2, total - total // 2
            begin.append(small if auto_pad == "SAME_UPPER" else large)
            end.append(large if auto_pad == "SAME_UPPER" else small)
    else:
        pads = [0] * (2 * rank) if auto_pad == "VALID" else list(node.attribute("pads") or [0] * (2 * rank))
        begin, end = pads[:rank], pads[rank:]
        check_axes(rank, begin=begin, end=end)
    if min(*begin, *end) < 0:
        raise NotDifferentiable(f"paddings must not be negative, got {[*begin, *end]}; write a Slice in front instead")
    return Window(tuple(kernel), strides, dilations, tuple(begin), tuple(end))


def window_matrix(window: Window, axis: int, size: int, out: int, *, average: str = "") -> Matrix:
    """Return the matrix [out, size] that a pool multiplies one spatial axis by.

    Args:
        window: the windows.
        axis: the spatial axis, 0 for the first.
        size: of the input along it.
        out: size of the output along it.
        average: "" for the sum over the window, "valid" for the mean over its elements that are in the input,
            "padded" for the mean over those in the padded input.
    """
    taps = np.arange(window.kernel[axis]) * window.dilations[axis]
    matrix = np.zeros((out, size))
    for row in range(out):
        positions = row * window.strides[axis] - window.begin[axis] + taps
        inside = positions[(positions >= 0) & (positions < size)]
        padded = int(np.sum(positions < size + window.end[axis]))
        count = {"": 1, "valid": len(inside), "padded": padded}[average]
        matrix[row, inside] = 1.0 / max(count, 1)
    return matrix


def apply_transposed(g: Expr, axis: int, matrix: Matrix) -> Expr:
    """Return `g` with its axis `axis`, of size `len(matrix)`, multiplied by the transposed matrix.

    Sizes of the axes after it must be known; those before it may be symbolic.
    """
    assert g.shape is not None
    rank = g.rank
    if axis == rank - 1:
        return g @ g.constant(matrix, g.dtype)
    left = g.constant(np.ascontiguousarray(matrix.T), g.dtype)
    if axis == rank - 2:
        return left @ g
    lead, behind = [0] * axis, [int(size) for size in list(g.shape)[axis + 1 :]]  # type: ignore[arg-type]  # known
    flat = g.reshape([*lead, matrix.shape[0], int(np.prod(behind))])
    return (left @ flat).reshape([*lead, matrix.shape[1], *behind])
