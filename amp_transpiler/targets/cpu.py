"""ONNX Runtime's CPU provider. It computes float16 in float32 where it has no float16 kernel; bfloat16 it does not."""

from __future__ import annotations

from amp_transpiler.targets.provider import Provider

__all__ = ["CPU"]

CPU = Provider(
    name="cpu",
    description="ONNX Runtime's CPU provider",
    provider="CPUExecutionProvider",
    inserts_casts=True,
)
