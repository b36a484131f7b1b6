"""ONNX Runtime's CUDA provider. The CPU provider runs the nodes that it has no kernel for."""

from __future__ import annotations

from amp_transpiler.targets.cpu import CPU
from amp_transpiler.targets.provider import Provider

__all__ = ["CUDA"]

CUDA = Provider(
    name="cuda",
    description="ONNX Runtime's CUDA provider",
    provider="CUDAExecutionProvider",
    fallback=CPU,
)
