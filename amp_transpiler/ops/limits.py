"""The formats that known releases of ONNX Runtime read; `Target.newest_opset` is that of one release."""

from __future__ import annotations

__all__ = ["NEWEST_IR", "NEWEST_OPSET", "OLDEST_OPSET"]

NEWEST_IR = 13
NEWEST_OPSET = 26
OLDEST_OPSET = 7
