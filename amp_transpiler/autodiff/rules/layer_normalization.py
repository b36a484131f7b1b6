"""Gradient of LayerNormalization, in the element type of the node, with sums in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient
from amp_transpiler.graph.dtypes import LOW_DTYPES

_LEAST_VARIANCE = 2.5e-10  # the inverse root of it is the largest that float16 holds


@gradient("LayerNormalization")
def layer_normalization(
    gs: Sequence[Expr | None],
    x: Expr,
    scale: Expr,
    _bias: Expr | None = None,
    *,
    node: NodeGradient,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> Gradients:
    """`(g s - mean(g s) - xhat mean(g s xhat)) / deviation`, `s` the scale and `xhat` the standardized input."""
    if any(grad is not None for grad in gs[1:]):
        raise NotDifferentiable(
            "its Mean and InvStdDev have no gradient, and one of them is used; compute it by ReduceMean"
        )
    g = node.g.with_shape_of(x, only_if_unknown=True)
    axes = list(range(axis % x.rank, x.rank))
    xhat, inverse = _standardized(x, scale, axes[0], epsilon)
    product = g * xhat

    def to_x() -> Expr:
        scaled = g * scale
        mean, slope = _means(g, product, scaled, xhat, scale, axes)
        return (scaled - mean - xhat * slope) * inverse

    return to_x, product, g


def _standardized(x: Expr, scale: Expr, axis: int, epsilon: float) -> tuple[Expr, Expr]:
    """Return `x` without mean and of deviation 1, and 1 over its deviation.

    They are computed again. Neither is kept in memory, and nothing but the result is asked of the node itself, which
    ONNX Runtime then fuses with the sum before it.
    """
    if x.dtype == ir.DataType.FLOAT16:
        epsilon = max(epsilon, _LEAST_VARIANCE)
    ones = scale.zeros_like() + 1 if not scale.is_static else scale.constant(np.ones(scale.sizes), scale.dtype)
    xhat, _, inverse = x.outputs("LayerNormalization", ones, count=3, axis=axis, epsilon=epsilon)
    return xhat.with_shape_of(x), inverse.cast(x.dtype)


def _means(g: Expr, product: Expr, scaled: Expr, xhat: Expr, scale: Expr, axes: Sequence[int]) -> tuple[Expr, Expr]:
    """Return the means over `axes` of `g s` and of `g s xhat`.

    Of 16-bit values they are products with the scale, which sum in float32 and need no casts.
    """
    size = g.size(-1)
    if g.dtype in LOW_DTYPES and len(axes) == 1 and size is not None and scale.size(-1) == size:
        share = scale.reshape([size, 1]) * (1 / size)
        return g @ share, product @ share
    return scaled.mean(axes).cast(g.dtype), (scaled * xhat).mean(axes).cast(g.dtype)
