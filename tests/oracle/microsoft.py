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


class FastGelu(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x: np.ndarray, bias: np.ndarray | None = None) -> tuple[np.ndarray]:
        total = x if bias is None else x + bias
        inner = np.float32(np.sqrt(2.0 / np.pi)) * (total + np.float32(0.044715) * total**3)
        return ((0.5 * total * (1.0 + np.tanh(inner))).astype(np.float32),)


class FusedMatMul(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self,
        left: np.ndarray,
        right: np.ndarray,
        alpha: float = 1.0,
        transA: int = 0,  # noqa: N803  # the attributes' names
        transB: int = 0,  # noqa: N803
        transBatchA: int = 0,  # noqa: N803
        transBatchB: int = 0,  # noqa: N803
    ) -> tuple[np.ndarray]:
        left, right = _matrices(left, transBatchA, transA), _matrices(right, transBatchB, transB)
        return ((np.float32(alpha) * (left @ right)).astype(np.float32),)


def _matrices(stack: np.ndarray, rows_first: int, turned: int) -> np.ndarray:
    """Return a stack of matrices: rows before the stack come behind it, and each matrix is turned if that is asked."""
    stack = np.moveaxis(stack, 0, -2) if rows_first and stack.ndim > 2 else stack
    return np.swapaxes(stack, -1, -2) if turned and stack.ndim > 1 else stack


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


MICROSOFT = [BiasGelu, FastGelu, FusedMatMul, SkipLayerNormalization]
