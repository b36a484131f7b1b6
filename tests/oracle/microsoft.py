"""Operators of ONNX Runtime's domain that appear in the models of the corpus, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from scipy.special import erf


class BiasGelu(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray]:
        total = x + bias
        return ((0.5 * total * (1.0 + erf(total / np.sqrt(np.float32(2.0))))).astype(np.float32),)


class SkipLayerNormalization(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self,
        x: np.ndarray,
        skip: np.ndarray,
        gamma: np.ndarray,
        beta: np.ndarray | None = None,
        bias: np.ndarray | None = None,
        epsilon: float = 1e-12,
    ) -> tuple[Any, ...]:
        total = x + skip + (0 if bias is None else bias)
        mean = total.mean(-1, keepdims=True)
        inverse = 1.0 / np.sqrt(np.square(total - mean).mean(-1, keepdims=True) + np.float32(epsilon))
        normal = (total - mean) * inverse * gamma + (0 if beta is None else beta)
        return tuple([normal, mean, inverse, total][: len(self.onnx_node.output)])


MICROSOFT = [BiasGelu, SkipLayerNormalization]
