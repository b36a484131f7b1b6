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
    kept = node.output(1).where(g, 0)
    if training.known is None or (ratio is not None and ratio.known is None):
        return _scaled_at_run_time(kept, training, ratio)
    dropped = _RATIO if ratio is None or ratio.known is None else float(ratio.known.item())
    if dropped >= 1:  # everything is dropped: nothing to scale
        return kept
    scale = 1 / (1 - dropped)
    # A scale that the element type rounds would bias every gradient that passes here in the same direction.
    exact = kept.dtype is not None and float(np.asarray(scale).astype(kept.dtype.numpy())) == scale
    return (kept if exact else kept.wide()) * scale


def _scaled_at_run_time(kept: Expr, training: Expr, ratio: Expr | None) -> Expr:
    """`kept / (1 - ratio)` in training, which only the run knows; otherwise the mask is all set, and `kept` is `g`."""
    kept = kept.wide()
    dropped = kept.constant(_RATIO, kept.dtype) if ratio is None else ratio.cast(kept.dtype)
    remain = 1 - training.where(dropped, 0)
    return kept / (remain > 0).where(remain, 1)
