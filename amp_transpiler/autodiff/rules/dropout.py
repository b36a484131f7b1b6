"""The gradient of Dropout."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.graph.walk import constant_of

_RATIO = 0.5  # where the input is left out


@gradient("Dropout")
def dropout(n: NodeGradient) -> ir.Value:
    """In training `g / (1 - ratio)` where the mask, output 1, is set, else 0; otherwise `g`."""
    training, ratio = n.optional(2), n.optional(1)
    if training is None:
        return n.g
    mode, share = constant_of(training), constant_of(ratio)
    if mode is not None and not bool(mode.numpy().item()):
        return n.g
    kept = n.b.where(n.output(1), n.g, 0)
    if mode is None or (ratio is not None and share is None):
        return _scaled_at_run_time(n, kept, training, ratio)
    dropped = _RATIO if share is None else float(share.numpy().item())
    if dropped >= 1:  # all is dropped: nothing to scale
        return kept
    scale = 1 / (1 - dropped)
    # A scale that the low type rounds would bias every gradient that passes here the same way.
    exact = kept.dtype is not None and float(np.asarray(scale).astype(kept.dtype.numpy())) == scale
    return n.b.mul(kept if exact else n.b.high(kept), scale)


def _scaled_at_run_time(n: NodeGradient, kept: ir.Value, training: ir.Value, ratio: ir.Value | None) -> ir.Value:
    """`kept / (1 - ratio)` in training, which only the run knows; otherwise the mask is all set, and `kept` is `g`."""
    kept = n.b.high(kept)
    dropped = n.b.constant(_RATIO, kept.dtype) if ratio is None else n.b.cast(ratio, kept.dtype)
    remain = n.b.sub(1, n.b.where(training, dropped, 0))
    return n.b.div(kept, n.b.where(n.b.compare("Greater", remain, 0), remain, 1))
