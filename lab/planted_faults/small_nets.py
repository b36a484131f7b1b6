"""Small graphs, written by hand: small enough to try all sets of nodes for the smallest cure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import numpy_helper, parser

from planted_faults.running import Arrays

__all__ = ["SMALL_NETS"]

_HEAD = '<ir_version: 10, opset_import: ["": 22]> '
Weights = Mapping[str, tuple[int, ...]]


def _written(text: str, weights: Weights, sample: Mapping[str, tuple[int, ...]]) -> tuple[onnx.ModelProto, Arrays]:
    """Return a model with weights from a normal distribution, and a sample for it."""
    draw = np.random.default_rng(36)
    model = parser.parse_model(_HEAD + text)
    for name, shape in weights.items():
        fan = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        scale = 1.0 / np.sqrt(fan) if len(shape) > 1 else 0.1
        array = draw.normal(1.0 if name.startswith("g") else 0.0, scale, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    fed = {name: draw.normal(size=shape).astype(np.float32) for name, shape in sample.items()}
    return model, fed


def mlp() -> tuple[onnx.ModelProto, Arrays]:
    """Four layers with a residual path."""
    text = """mlp (float[8, 32] x) => (float[8, 10] y) {
        h1 = MatMul(x, w1) a1 = Add(h1, b1) r1 = Relu(a1)
        h2 = MatMul(r1, w2) a2 = Add(h2, b2) r2 = Tanh(a2)
        s = Add(r1, r2)
        h3 = MatMul(s, w3) a3 = Add(h3, b3) r3 = Relu(a3)
        h4 = MatMul(r3, w4) y = Add(h4, b4) }"""
    weights = {"w1": (32, 48), "b1": (48,), "w2": (48, 48), "b2": (48,), "w3": (48, 32), "b3": (32,)}
    return _written(text, {**weights, "w4": (32, 10), "b4": (10,)}, {"x": (8, 32)})


def cnn() -> tuple[onnx.ModelProto, Arrays]:
    """Three convolutions with a residual path, pooled, and a classifier."""
    text = """cnn (float[2, 3, 16, 16] x) => (float[2, 10] y) {
        c1 = Conv<pads = [1, 1, 1, 1]>(x, w1, b1) r1 = Relu(c1)
        c2 = Conv<pads = [1, 1, 1, 1]>(r1, w2, b2) r2 = Relu(c2)
        s = Add(r1, r2) p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(s)
        c3 = Conv<pads = [1, 1, 1, 1]>(p, w3, b3) g3 = Sigmoid(c3) m3 = Mul(c3, g3)
        a = GlobalAveragePool(m3) f = Flatten(a)
        h = MatMul(f, w4) y = Add(h, b4) }"""
    weights = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "b2": (8,), "w3": (16, 8, 3, 3), "b3": (16,)}
    return _written(text, {**weights, "w4": (16, 10), "b4": (10,)}, {"x": (2, 3, 16, 16)})


def transformer() -> tuple[onnx.ModelProto, Arrays]:
    """A block of one attention head and a feed-forward part, with normalisations as operators."""
    text = """transformer (float[2, 12, 32] x) => (float[2, 12, 32] y) <float scale = {0.1767767}> {
        n1 = LayerNormalization(x, g1, b1)
        q = MatMul(n1, wq) k = MatMul(n1, wk) v = MatMul(n1, wv)
        kt = Transpose<perm = [0, 2, 1]>(k) qk = MatMul(q, kt) sc = Mul(qk, scale)
        p = Softmax<axis = -1>(sc) pv = MatMul(p, v) o = MatMul(pv, wo) s1 = Add(x, o)
        n2 = LayerNormalization(s1, g2, b2)
        f1 = MatMul(n2, w1) f1b = Add(f1, c1) f1r = Relu(f1b)
        f2 = MatMul(f1r, w2) f2b = Add(f2, c2) y = Add(s1, f2b) }"""
    square = dict.fromkeys(("wq", "wk", "wv", "wo"), (32, 32))
    norms = dict.fromkeys(("g1", "b1", "g2", "b2", "c2"), (32,))
    return _written(text, {**square, **norms, "w1": (32, 64), "c1": (64,), "w2": (64, 32)}, {"x": (2, 12, 32)})


SMALL_NETS: dict[str, Callable[[], tuple[onnx.ModelProto, Arrays]]] = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": transformer,
}
"""Name -> what builds it, with a sample."""
