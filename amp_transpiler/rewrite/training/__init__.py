"""Passes over training programs: operators that ONNX Runtime cannot train with, written with those that it can."""

from amp_transpiler.rewrite.training.batch_norm import lower_batch_norm
from amp_transpiler.rewrite.training.dropout import lower_dropout
from amp_transpiler.rewrite.training.legalize import legalize

__all__ = ["legalize", "lower_batch_norm", "lower_dropout"]
