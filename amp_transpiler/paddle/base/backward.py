"""Paddle's older place for differentiation: `paddle.base.backward`."""

from amp_transpiler.paddle.framework.backward import append_backward, gradients

__all__ = ["append_backward", "gradients"]
