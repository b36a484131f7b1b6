"""Runs models on the CPU, 16-bit ones with every result rounded, and says how far outputs are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from amp_transpiler.graph.proto import to_proto
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.verification.output_error import PartErrors
from planted_faults.editing import copy_of

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["Arrays", "activations", "error_between", "low_outputs", "opened", "outputs_of"]

Arrays = dict[str, np.ndarray]
_FATAL = 4  # every error is raised, so that printing it too is noise


def opened(model: onnx.ModelProto, *, optimized: bool = True) -> ort.InferenceSession:
    """Open a model on the CPU, in one thread."""
    import onnxruntime as ort  # behind the package, which switches telemetry off

    options = ort.SessionOptions()
    options.log_severity_level = _FATAL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def outputs_of(model: onnx.ModelProto, sample: Mapping[str, np.ndarray], *, optimized: bool = True) -> Arrays:
    """Run a model once and return its outputs by name."""
    names = [value.name for value in model.graph.output]
    return dict(zip(names, opened(model, optimized=optimized).run(names, dict(sample)), strict=True))


def low_outputs(model: Any, sample: Mapping[str, np.ndarray], device: str | None = None) -> Arrays:
    """Run the emulation of a 16-bit model: every result rounded, or as the kernels of a device compute it."""
    return outputs_of(to_proto(emulate(model, device).model), sample)


def activations(model: onnx.ModelProto, sample: Mapping[str, np.ndarray]) -> Arrays:
    """Return the float values inside a model that depend on its inputs, with what they hold."""
    shown = onnx.shape_inference.infer_shapes(copy_of(model))
    types = {value.name: value for value in shown.graph.value_info}
    fed, names = {value.name for value in model.graph.input}, list[str]()
    fed -= {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if fed.intersection(node.input):
            fed.update(node.output)
            names += [name for name in node.output if name in types]
    names = [name for name in names if types[name].type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    known = {value.name for value in shown.graph.output}
    shown.graph.output.extend(types[name] for name in names if name not in known)
    arrays = outputs_of(shown, sample, optimized=False)
    return {name: arrays[name] for name in names if name not in known}


def error_between(reference: Mapping[str, np.ndarray], result: Mapping[str, np.ndarray]) -> float:
    """Return the error of the worst part of the worst output; infinite where a number became none.

    The package's definition of an error, since limits are stated in it.
    """
    return max((_error(x, result[name]) for name, x in reference.items() if x.dtype.kind == "f"), default=0.0)


def _error(reference: np.ndarray, result: np.ndarray) -> float:
    if reference.shape != result.shape:
        return math.inf
    low = result.astype(np.float32)
    if not np.isfinite(low[np.isfinite(reference)]).all():
        return math.inf
    parts = PartErrors()
    parts.add([(reference.astype(np.float32), low)])
    norm = float(np.linalg.norm(reference.astype(np.float64)))
    whole = float(np.linalg.norm(low.astype(np.float64) - reference)) / norm if norm else 0.0
    return max(parts.worst().error, whole)


def finite(arrays: Sequence[np.ndarray]) -> bool:
    """Whether all floats are finite numbers."""
    return all(bool(np.isfinite(array).all()) for array in arrays if array.dtype.kind == "f")
