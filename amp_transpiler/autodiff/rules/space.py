"""Gradients of the operators that move blocks of pixels to channels and back: the opposite moves."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.autodiff.windows import in_shape_of, sizes_of


@gradient("DepthToSpace")
def depth_to_space(n: NodeGradient) -> ir.Value:
    """Blocks back into channels: blocks first (DCR) or channels first (CRD)."""
    channels, height, width = sizes_of(n, n.x, 1)
    block = n.attribute("blocksize")
    apart = n.b.reshape(n.g, [0, channels // block**2, height, block, width, block])
    order = [0, 1, 3, 5, 2, 4] if n.attribute("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    return in_shape_of(n.b.reshape(n.b.transpose(apart, order), [0, channels, height, width]), n.x)


@gradient("SpaceToDepth")
def space_to_depth(n: NodeGradient) -> ir.Value:
    """Channels back into blocks."""
    channels, height, width = sizes_of(n, n.x, 1)
    block = n.attribute("blocksize")
    if n.attribute("mode", "DCR") == "CRD":
        apart = n.b.reshape(n.g, [0, channels, block, block, height // block, width // block])
        turned = n.b.transpose(apart, [0, 1, 4, 2, 5, 3])
    else:
        apart = n.b.reshape(n.g, [0, block, block, channels, height // block, width // block])
        turned = n.b.transpose(apart, [0, 3, 4, 1, 5, 2])
    return in_shape_of(n.b.reshape(turned, [0, channels, height, width]), n.x)
