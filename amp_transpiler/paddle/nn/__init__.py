"""Building blocks of networks: functions, initial values, gradient clipping."""

from amp_transpiler.paddle.nn import functional, initializer
from amp_transpiler.paddle.nn.clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue

__all__ = ["ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue", "functional", "initializer"]
