"""Optimizers that append their update to a training program, and learning-rate schedules (`lr`)."""

from amp_transpiler.paddle.optimizer import lr
from amp_transpiler.paddle.optimizer.adam import Adam
from amp_transpiler.paddle.optimizer.adamw import AdamW
from amp_transpiler.paddle.optimizer.base import Optimizer
from amp_transpiler.paddle.optimizer.lamb import Lamb
from amp_transpiler.paddle.optimizer.momentum import Momentum
from amp_transpiler.paddle.optimizer.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Lamb", "Momentum", "Optimizer", "lr"]
