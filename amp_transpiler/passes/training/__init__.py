"""Passes over training programs: operators that ONNX Runtime cannot train with, written with those that it can."""

from amp_transpiler.passes.training.batch_norm import lower_batch_norm
from amp_transpiler.passes.training.dropout import lower_dropout
from amp_transpiler.passes.training.legalize import legalize

__all__ = ["legalize", "lower_batch_norm", "lower_dropout"]
