"""ONNX Runtime's own converter: what ours is measured by."""

from __future__ import annotations

import contextlib
import io
import warnings

import onnx


def convert_by_onnx_runtime(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return what ONNX Runtime's converter makes of a model in float16, I/O types kept; it raises whatever it likes."""
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # it warns of every weight that it truncates
        converted = OnnxModel(convert_float_to_float16(model, keep_io_types=True))
        converted.topological_sort()
    return converted.model
