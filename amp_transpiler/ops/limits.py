"""The newest formats that any known release of ONNX Runtime reads; `Target.newest_opset` is that of one release."""

from __future__ import annotations

__all__ = ["NEWEST_IR", "NEWEST_OPSET"]

NEWEST_IR = 13
NEWEST_OPSET = 26
