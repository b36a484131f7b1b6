"""Optimizers under the names of `paddle.incubate.optimizer`."""

from amp_transpiler.paddle.incubate.wrappers import GradientMergeOptimizer, LookAhead, RecomputeOptimizer
from amp_transpiler.paddle.optimizer.lars import LarsMomentum
from amp_transpiler.paddle.static.averages import ModelAverage

__all__ = ["GradientMergeOptimizer", "LarsMomentumOptimizer", "LookAhead", "ModelAverage", "RecomputeOptimizer"]

LarsMomentumOptimizer = LarsMomentum
