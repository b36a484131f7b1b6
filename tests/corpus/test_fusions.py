"""Exported models are fused: each gets the expected number of operators, and computes the same in float32."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import plain_copy
from amp_transpiler.fusion.fuse import fuse
from amp_transpiler.precision.policy import Policy
from amp_transpiler.systems.choice import Request, choose_policy
from tests.corpus.files import inputs_of

SKIP, SIMPLE = "com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization"
ATTENTION, BIAS_GELU = "com.microsoft::Attention", "com.microsoft::BiasGelu"
RMS, HEADS = "SimplifiedLayerNormalization", "com.microsoft::MultiHeadAttention"

# model -> what fusions put in
COUNTS = {
    "small_encoder/dynamo.onnx": {ATTENTION: 2, BIAS_GELU: 2, SKIP: 5},
    "small_encoder/torchscript.onnx": {ATTENTION: 2, BIAS_GELU: 2, SKIP: 5},
    "small_decoder/dynamo.onnx": {RMS: 1, SIMPLE: 2, HEADS: 1},
    "bert_base_12l/dynamo.onnx": {ATTENTION: 12, BIAS_GELU: 12, SKIP: 25},
    "bert_base_12l/torchscript.onnx": {ATTENTION: 12, BIAS_GELU: 12, SKIP: 25},
    "gpt2_small/dynamo.onnx": {"Gelu": 12, ATTENTION: 12, SKIP: 25},
    "vit_base/dynamo.onnx": {ATTENTION: 12, BIAS_GELU: 12, SKIP: 25},
    "llama_2l/dynamo.onnx": {RMS: 1, SIMPLE: 4},
}


def policy() -> Policy:
    return choose_policy(Request())


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTS)
def test_an_export_is_fused(name: str, corpus: pathlib.Path) -> None:
    path = corpus / "exported" / name
    if not path.is_file():
        pytest.skip(f"the corpus lacks exported/{name}")
    source = amp.load(path)
    program = plain_copy(source)
    assert fuse(program, "contrib", policy()).operators == COUNTS[name]
    with np.load(inputs_of(path)) as data:
        feeds = dict(data)
    results = (amp.Session(each, amp.CPUPlace()).run(feeds) for each in (source, program))
    for expected, result in zip(*results, strict=True):
        if expected.dtype.kind == "f":
            assert np.linalg.norm(expected - result) <= 1e-5 * np.linalg.norm(expected)
        else:
            np.testing.assert_array_equal(expected, result)
