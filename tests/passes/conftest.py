"""A helper of tests of passes: a run of a model on ONNX Runtime's CPU provider, unoptimized."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

Feeds = dict[str, np.ndarray]


def run_on_cpu(model: ir.Model, feeds: Feeds) -> list[np.ndarray]:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.fixture
def run() -> Callable[[ir.Model, Feeds], list[np.ndarray]]:
    """Check a model in full, run it, and give its outputs."""
    return run_on_cpu
