"""Provides the names of `paddle.base.backward`, Paddle's older module for differentiation."""

from amp_transpiler.paddle.framework.backward import append_backward, gradients

__all__ = ["append_backward", "gradients"]
