"""The program of test_linted.py: inference models at fp32 and converted to each format; it runs on stand-ins.

It prints one line of JSON: the name of a model and its format -> its findings by lint.
"""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np
import onnx

import amp_transpiler as amp
import lints
from programs import linted
from tests.support import parse

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
FILES = {"bert_1layer": {}, "rocm_convnet": {"batch": 4, "height": 64, "width": 64}, "paddle_lenet": {"batch": 64}}
FORMATS = ("fp32", "float16", "bfloat16")


def language_head() -> onnx.ModelProto:
    """A normalization and the scores of a vocabulary with an odd size."""
    graph = """(float[8, 128, 256] x) => (float[8, 128, 5003] y) {
        h = LayerNormalization(x, scale)
        s = MatMul(h, w)
        y = Add(s, b)
    }"""
    weights = {"scale": np.ones(256), "w": np.full((256, 5003), 0.01), "b": np.zeros(5003)}
    return parse(graph, **{name: array.astype(np.float32) for name, array in weights.items()})


def waveform_encoder() -> onnx.ModelProto:
    """Frames of a sound by a kernel of 400 samples, then a layer."""
    graph = """(float[4, 1, 16000] x) => (float[4, 98, 64] y) {
        f = Conv<strides = [160]>(x, w, b)
        r = Relu(f)
        t = Transpose<perm = [0, 2, 1]>(r)
        y = MatMul(t, v)
    }"""
    weights = {"w": np.full((64, 1, 400), 0.01), "b": np.zeros(64), "v": np.full((64, 64), 0.01)}
    return parse(graph, **{name: array.astype(np.float32) for name, array in weights.items()})


def main() -> None:
    written = {"language head": language_head(), "waveform encoder": waveform_encoder()}
    read = {name: onnx.load(MODELS / f"{name}.onnx") for name in FILES}
    reports = {}
    for name, model in (written | read).items():
        arrays = None
        if name == "bert_1layer":  # its dimensions have names of an exporter
            arrays = dict(np.load(MODELS / f"{name}.inputs.npz"))
        for dtype in FORMATS:
            form = model if dtype == "fp32" else amp.transpile(model, dtype=dtype, verify=False, prefer="size").program
            reports[f"{name} {dtype}"] = lints.findings(linted.model(form, arrays, FILES.get(name)))
    sys.stdout.write(json.dumps(reports) + "\n")


if __name__ == "__main__":
    main()
