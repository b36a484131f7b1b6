"""The newest formats that ONNX Runtime 1.31 reads. A newer one needs new kernel tables: `targets/data/README.md`."""

from __future__ import annotations

__all__ = ["NEWEST_IR", "NEWEST_OPSET"]

NEWEST_IR = 13
NEWEST_OPSET = 26
