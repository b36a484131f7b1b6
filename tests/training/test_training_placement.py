"""The real CUDA provider, asked without a GPU: it takes every training program, and computes all floats itself."""

from __future__ import annotations

import pathlib
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.graph.assemble import assemble
from amp_transpiler.graph.proto import to_proto
from amp_transpiler.optimizer import AdamW
from amp_transpiler.runtime.compile import lower, specialise
from tests.corpus.test_placement import place
from tests.training.networks import NETWORKS, Network
from tests.training.trainer import build

pytestmark = pytest.mark.slow

FORMS: dict[str, dict[str, Any] | None] = {
    "float32": None,
    "float16": {"level": "O2", "dtype": "float16"},
    "bfloat16": {"level": "O2", "dtype": "bfloat16"},
}
_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
