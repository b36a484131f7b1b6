"""The gradient of Dropout."""

from __future__ import annotations

import numpy as np

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import gradient

_RATIO = 0.5  # ONNX's default


@gradient("Dropout")
def dropout(g: Expr, _x: Expr, ratio: Expr | None = None, training: Expr | None = None, *, node: NodeGradient) -> Expr:
    """In training `g / (1 - ratio)` where the mask, output 1, is set, else 0; otherwise `g`."""
    if training is None or (training.known is not None and not bool(training.known.item())):
        return g
    masked = node.output(1).where(g, 0)
    if training.known is None or (ratio is not None and ratio.known is None):
        return _scaled_at_run_time(masked, training, ratio)
    dropped = _RATIO if ratio is None or ratio.known is None else float(ratio.known.item())
    if dropped >= 1:  # everything is dropped: nothing to scale
        return masked
    scale = 1 / (1 - dropped)
    # A scale that the element type rounds would bias every gradient that passes here in the same direction.
    exact = masked.dtype is not None and float(np.asarray(scale).astype(masked.dtype.numpy())) == scale
    return (masked if exact else masked.wide()) * scale


def _scaled_at_run_time(masked: Expr, training: Expr, ratio: Expr | None) -> Expr:
    """Return `masked / (1 - ratio)` in training, known when it runs. Else nothing is masked, and `masked` is `g`."""
    masked = masked.wide()
    dropped = masked.constant(_RATIO, masked.dtype) if ratio is None else ratio.cast(masked.dtype)
    remain = 1 - training.where(dropped, 0)
    return masked / (remain > 0).where(remain, 1)
