"""Marks tests that need TensorRT-RTX's builder, which is not everywhere: the extra `tensorrt`, Linux and Windows."""

from __future__ import annotations

import pytest

from amp_transpiler.runtime.engines import has_builder

__all__ = ["needs_builder"]

needs_builder = pytest.mark.skipif(
    not has_builder(), reason="TensorRT-RTX's builder is not installed: the extra [tensorrt]"
)
