"""Gradients of the operators that move blocks of pixels to channels and back: each undoes the other."""

from __future__ import annotations

from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.autodiff.windows import sizes_of


@gradient("DepthToSpace")
def depth_to_space(g: Expr, x: Expr, *, blocksize: int, mode: str = "DCR") -> Expr:
    """Blocks back into channels; the axes of a block come before the channels (DCR) or after them (CRD)."""
    channels, height, width = sizes_of(x, 1)
    apart = g.reshape([0, channels // blocksize**2, height, blocksize, width, blocksize])
    turned = apart.transpose([0, 1, 3, 5, 2, 4] if mode == "CRD" else [0, 3, 5, 1, 2, 4])
    return turned.reshape([0, channels, height, width]).with_shape_of(x)


@gradient("SpaceToDepth")
def space_to_depth(g: Expr, x: Expr, *, blocksize: int, mode: str = "DCR") -> Expr:
    """Channels back into blocks."""
    channels, height, width = sizes_of(x, 1)
    rows, columns = height // blocksize, width // blocksize
    if mode == "CRD":
        turned = g.reshape([0, channels, blocksize, blocksize, rows, columns]).transpose([0, 1, 4, 2, 5, 3])
    else:
        turned = g.reshape([0, blocksize, blocksize, channels, rows, columns]).transpose([0, 3, 4, 1, 5, 2])
    return turned.reshape([0, channels, height, width]).with_shape_of(x)
