"""Reads `tensorrt_graphs.txt`: small graphs whose forms TensorRT may refuse in 16 bits."""

from __future__ import annotations

import pathlib
import re
import zlib
from collections.abc import Iterator

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx.shape_inference

__all__ = ["graphs"]

_TABLE = pathlib.Path(__file__).with_suffix(".txt")
_NUMBERS = re.compile(r"(\w+)\[([\dx]*)\] = (.*)")
_TYPES = {"float": "float32"}


def graphs() -> Iterator[tuple[str, onnx.ModelProto, dict[str, np.ndarray]]]:
    """Yield each graph in each of its opsets, with a sample of its input."""
    lines = [line for line in _TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    for line in lines[1:]:
        name, opsets, inputs, outputs, nodes, constants = line.split(" | ")
        for opset in opsets.split():
            random = np.random.default_rng(zlib.crc32(name.encode()))
            text = f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
            model = onnx.parser.parse_model(text)
            for entry in constants.split("; ") if constants != "-" else ():
                key, _, words = entry.partition(": ")
                model.graph.initializer.append(onnx.numpy_helper.from_array(_array(words, random), key))
            shape = [dimension.dim_value for dimension in model.graph.input[0].type.tensor_type.shape.dim]
            model = onnx.shape_inference.infer_shapes(model)  # the outputs' shapes
            yield f"{name}, opset {opset}", model, {"x": random.standard_normal(shape).astype(np.float32)}


def _array(words: str, random: np.random.Generator) -> np.ndarray:
    """Return the numbers of a constant."""
    numbers = _NUMBERS.fullmatch(words)
    if numbers is None:
        return (0.1 * np.abs(random.standard_normal([int(size) for size in words.split()]))).astype(np.float32)
    type_, sizes, values = numbers.groups()
    shape = [int(size) for size in sizes.split("x") if size]
    return np.array([float(value) for value in values.split()]).reshape(shape).astype(_TYPES.get(type_, type_))
