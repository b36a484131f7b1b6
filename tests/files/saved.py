"""A small model whose weights are worth a file of their own, and what is found of it on disk."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

from amp_transpiler.files.saving import save

SIZE = 600


def proto(first=0.0, dtype=np.float32):
    kind = {"float32": "float", "float16": "float16"}[np.dtype(dtype).name]
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g ({kind}[N,1] x) => ({kind}[N,{SIZE}] y) {{ y = Mul(x, w) }}'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights(first, dtype), "w"))
    return model


def weights(first=0.0, dtype=np.float32):
    return np.arange(SIZE).astype(dtype) + np.asarray(first, dtype)


def held(path):
    """Return the weights of a written model, read by onnx alone."""
    (tensor,) = onnx.load(path).graph.initializer
    return onnx.numpy_helper.to_array(tensor)


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def data_of(path):
    (data,) = path.parent.glob(f"{path.name}.*.data")
    return data


def ours(folder):
    save(proto(1), folder / "m.onnx", external=True)
