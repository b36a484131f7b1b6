"""Passes over training programs: operators that ONNX Runtime cannot train with, written with those that it can."""

from amp_transpiler.passes.training.legalize import Legalize
from amp_transpiler.passes.training.lower_batch_norm import LowerBatchNorm
from amp_transpiler.passes.training.lower_dropout import LowerDropout

__all__ = ["Legalize", "LowerBatchNorm", "LowerDropout"]
