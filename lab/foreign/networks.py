"""Networks with their gradients, both written out by hand in plain ONNX operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from foreign.writer import Batch, Writer

__all__ = ["NETWORKS", "Gradients", "Network"]

CLASSES, ROWS = 5, 8


@dataclasses.dataclass(slots=True)
class Gradients:
    """The result of a network: its loss, and for each parameter its start and gradient.

    Attributes:
        loss: the value that falls.
        starts: parameter -> its value before the first step.
        of: parameter -> the value that holds its gradient.
        batch: draws inputs.
    """

    loss: str
    starts: dict[str, np.ndarray]
    of: dict[str, str]
    batch: Batch


Network = Callable[[Writer], Gradients]


def _start(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return small normally distributed parameters; ones and zeros for those whose names begin so."""
    generator = np.random.default_rng([7, seed])
    start_values = {}
    for name, shape in shapes.items():
        fan_in = shape[0] if len(shape) == 2 else int(np.prod(shape[1:])) or 1
        values = generator.normal(0, fan_in**-0.5, shape)
        if name.startswith("scale"):
            values = np.ones(shape)
        start_values[name] = values.astype(np.float32)
    return start_values


def _parameters(w: Writer, starts: dict[str, np.ndarray]) -> list[str]:
    return [w.state(name, value) for name, value in starts.items()]


def _rows(w: Writer, value: str) -> str:
    """Sum over the rows: a bias' gradient."""
    return w("ReduceSum", value, w.axes(0), keepdims=0)


def _t(w: Writer, value: str) -> str:
    return w("Transpose", value, perm=[1, 0])


def _cross_entropy(w: Writer, logits: str, labels: str, rows: int = ROWS) -> tuple[str, str]:
    """Return the mean loss, and the gradient of the logits."""
    wanted = w("OneHot", labels, w.constant(CLASSES, np.int64), w.constant([0.0, 1.0]), axis=-1)
    log = w("LogSoftmax", logits, axis=-1)
    each = w("ReduceSum", w("Mul", log, wanted), w.axes(-1), keepdims=0)
    loss = w("Neg", w("ReduceMean", each, keepdims=0))
    difference = w("Sub", w("Softmax", logits, axis=-1), wanted)
    return loss, w("Div", difference, w.constant(float(rows)))


def _classified(shape: tuple[int, ...]) -> Batch:
    """Return data whose classes can be learnt: a mean of its own for each."""
    means = np.random.default_rng(11).normal(0, 1, (CLASSES, *shape))

    def batch(generator: np.random.Generator) -> dict[str, np.ndarray]:
        labels = generator.integers(0, CLASSES, ROWS)
        x = means[labels] + 0.5 * generator.normal(0, 1, (ROWS, *shape))
        return {"x": x.astype(np.float32), "labels": labels.astype(np.int64)}

    return batch


def linear(w: Writer) -> Gradients:
    """Least squares: `loss = mean((x a + b - t)^2)`."""
    wide, deep = 16, 4
    starts = _start(0, a=(wide, deep), b=(deep,))
    x, t = w.input("x", (ROWS, wide)), w.input("t", (ROWS, deep))
    a, b = _parameters(w, starts)
    residual = w("Sub", w("Add", w("MatMul", x, a), b), t)
    loss = w("ReduceMean", w("Mul", residual, residual), keepdims=0)
    d = w("Mul", residual, w.constant(2 / (ROWS * deep)))
    truth = np.random.default_rng(5).normal(0, 0.6, (wide, deep))

    def batch(generator: np.random.Generator) -> dict[str, np.ndarray]:
        x = generator.normal(0, 1, (ROWS, wide)).astype(np.float32)
        return {"x": x, "t": (x @ truth + 1).astype(np.float32)}

    return Gradients(loss, starts, {"a": w("MatMul", _t(w, x), d), "b": _rows(w, d)}, batch)


def gemm(w: Writer) -> Gradients:
    """The same by Gemm, with a free number of rows, and the gradient by Gemm's `transA`."""
    wide, deep = 12, CLASSES
    starts = _start(1, a=(deep, wide), b=(deep,))
    x, labels = w.input("x", ("N", wide)), w.input("labels", ("N",), TensorProto.INT64)
    a, b = _parameters(w, starts)
    logits = w("Gemm", x, a, b, transB=1)
    loss, d = _cross_entropy(w, logits, labels)
    return Gradients(loss, starts, {"a": w("Gemm", d, x, transA=1), "b": _rows(w, d)}, _classified((wide,)))


def mlp(w: Writer) -> Gradients:
    """Two layers with softmax cross entropy."""
    wide, hidden = 16, 32
    starts = _start(2, a=(wide, hidden), b=(hidden,), c=(hidden, CLASSES), e=(CLASSES,))
    x, labels = w.input("x", (ROWS, wide)), w.input("labels", (ROWS,), TensorProto.INT64)
    a, b, c, e = _parameters(w, starts)
    z = w("Add", w("MatMul", x, a), b)
    h = w("Relu", z)
    loss, d = _cross_entropy(w, w("Add", w("MatMul", h, c), e), labels)
    dh = w("MatMul", d, _t(w, c))
    dz = w("Where", w("Greater", z, w.constant(0.0)), dh, w.constant(0.0))
    of = {"a": w("MatMul", _t(w, x), dz), "b": _rows(w, dz), "c": w("MatMul", _t(w, h), d), "e": _rows(w, d)}
    return Gradients(loss, starts, of, _classified((wide,)))


def unbatched(w: Writer) -> Gradients:
    """One sample, without a batch: the gradients are outer products by Mul, and the bias' is no sum."""
    wide, hidden = 10, 12
    starts = _start(3, a=(wide, hidden), b=(hidden,), c=(hidden, 1))
    x, t = w.input("x", (wide,)), w.input("t", (1,))
    a, b, c = _parameters(w, starts)
    h = w("Tanh", w("Add", w("MatMul", x, a), b))
    residual = w("Sub", w("MatMul", h, c), t)
    loss = w("ReduceSum", w("Mul", residual, residual), keepdims=0)
    d = w("Mul", residual, w.constant(2.0))
    dh = w("MatMul", d, _t(w, c))
    dz = w("Mul", dh, w("Sub", w.constant(1.0), w("Mul", h, h)))
    outer = w("Mul", w("Unsqueeze", x, w.axes(1)), w("Unsqueeze", dz, w.axes(0)))
    of = {"a": outer, "b": dz, "c": w("Mul", w("Unsqueeze", h, w.axes(1)), d)}
    truth = np.random.default_rng(6).normal(0, 0.5, wide)

    def batch(generator: np.random.Generator) -> dict[str, np.ndarray]:
        x = generator.normal(0, 1, wide).astype(np.float32)
        return {"x": x, "t": np.asarray([np.sin(x @ truth)], np.float32)}

    return Gradients(loss, starts, of, batch)


def conv(w: Writer) -> Gradients:
    """Two convolutions, average pooling and a linear layer; the gradient of a weight is a convolution."""
    deep, size = 6, 8
    starts = _start(4, a=(deep, 3, 3, 3), b=(deep,), c=(deep, deep, 3, 3), e=(deep, CLASSES))
    x, labels = w.input("x", (ROWS, 3, size, size)), w.input("labels", (ROWS,), TensorProto.INT64)
    a, b, c, e = _parameters(w, starts)
    pads = [1, 1, 1, 1]
    z1 = w("Conv", x, a, b, pads=pads)
    h1 = w("Relu", z1)
    z2 = w("Conv", h1, c, pads=pads)
    h2 = w("Relu", z2)
    pooled = w("Flatten", w("GlobalAveragePool", h2))
    loss, d = _cross_entropy(w, w("MatMul", pooled, e), labels)
    dp = w("Mul", w("MatMul", d, _t(w, e)), w.constant(1 / size**2))
    dh2 = w("Expand", w("Unsqueeze", dp, w.axes(2, 3)), w.axes(ROWS, deep, size, size))
    dz2 = w("Mul", dh2, w("Cast", w("Greater", z2, w.constant(0.0)), to=TensorProto.FLOAT))
    dh1 = w("ConvTranspose", dz2, c, pads=pads)
    dz1 = w("Mul", dh1, w("Cast", w("Greater", z1, w.constant(0.0)), to=TensorProto.FLOAT))

    def weight_gradient(data: str, d: str) -> str:
        swapped = w("Conv", w("Transpose", data, perm=[1, 0, 2, 3]), w("Transpose", d, perm=[1, 0, 2, 3]), pads=pads)
        return w("Transpose", swapped, perm=[1, 0, 2, 3])

    bias = w("ReduceSum", dz1, w.axes(0, 2, 3), keepdims=0)
    of = {"a": weight_gradient(x, dz1), "b": bias, "c": weight_gradient(h1, dz2)}
    of["e"] = w("MatMul", _t(w, pooled), d)
    return Gradients(loss, starts, of, _classified((3, size, size)))


def batch_norm(w: Writer) -> Gradients:
    """A layer with batch normalisation, whose running mean and variance are state.

    The bias before it has no effect: its gradient is rounding alone, as in many a network.
    """
    wide, hidden = 12, 16
    starts = _start(5, a=(wide, hidden), bias=(hidden,), scale=(hidden,), shift=(hidden,), c=(hidden, CLASSES))
    x, labels = w.input("x", (ROWS, wide)), w.input("labels", (ROWS,), TensorProto.INT64)
    a, bias, scale, shift, c = _parameters(w, starts)
    running = {"mean": np.zeros(hidden, np.float32), "variance": np.ones(hidden, np.float32)}
    old = {name: w.state(name, value) for name, value in running.items()}
    z = w("Add", w("MatMul", x, a), bias)
    mean = w("ReduceMean", z, w.axes(0), keepdims=0)
    centred = w("Sub", z, mean)
    variance = w("ReduceMean", w("Mul", centred, centred), w.axes(0), keepdims=0)
    inverse = w("Reciprocal", w("Sqrt", w("Add", variance, w.constant(1e-5))))
    normal = w("Mul", centred, inverse)
    y = w("Add", w("Mul", normal, scale), shift)
    h = w("Relu", y)
    loss, d = _cross_entropy(w, w("MatMul", h, c), labels)
    dy = w("Where", w("Greater", y, w.constant(0.0)), w("MatMul", d, _t(w, c)), w.constant(0.0))
    dn = w("Mul", dy, scale)
    along = w("Mul", normal, w("ReduceMean", w("Mul", dn, normal), w.axes(0), keepdims=1))
    across = w("Sub", w("Sub", dn, w("ReduceMean", dn, w.axes(0), keepdims=1)), along)
    dz = w("Mul", across, inverse)
    for name, new in (("mean", mean), ("variance", variance)):
        share = w("Mul", old[name], w.constant(0.9))
        w.replace(name, w("Add", share, w("Mul", new, w.constant(0.1))), running[name], "statistic")
    of = {"a": w("MatMul", _t(w, x), dz), "bias": _rows(w, dz)}
    of |= {"scale": _rows(w, w("Mul", dy, normal)), "shift": _rows(w, dy)}
    of["c"] = w("MatMul", _t(w, h), d)
    return Gradients(loss, starts, of, _classified((wide,)))


def embedding(w: Writer) -> Gradients:
    """Rows of a table, averaged, then a linear layer; the gradient of the table is a scatter of sums."""
    words, deep, length = 30, 16, 6
    starts = _start(6, table=(words, deep), c=(deep, CLASSES))
    ids = w.input("ids", (ROWS, length), TensorProto.INT64)
    labels = w.input("labels", (ROWS,), TensorProto.INT64)
    table, c = _parameters(w, starts)
    h = w("ReduceMean", w("Gather", table, ids), w.axes(1), keepdims=0)
    loss, d = _cross_entropy(w, w("MatMul", h, c), labels)
    dh = w("Mul", w("MatMul", d, _t(w, c)), w.constant(1 / length))
    rows = w("Expand", w("Unsqueeze", dh, w.axes(1)), w.axes(ROWS, length, deep))
    zeros = w("ConstantOfShape", w.axes(words, deep))
    scattered = w("ScatterND", zeros, w("Unsqueeze", ids, w.axes(-1)), rows, reduction="add")

    def batch(generator: np.random.Generator) -> dict[str, np.ndarray]:
        labels = generator.integers(0, CLASSES, ROWS)
        ids = (labels[:, None] * 5 + generator.integers(0, 10, (ROWS, length))) % words
        return {"ids": ids.astype(np.int64), "labels": labels.astype(np.int64)}

    return Gradients(loss, starts, {"table": scattered, "c": w("MatMul", _t(w, h), d)}, batch)


@dataclasses.dataclass(frozen=True, slots=True)
class _Norm:
    """The values of a layer normalisation that its gradient needs."""

    normal: str
    inverse: str
    scale: str

    def gradient(self, w: Writer, dy: str) -> str:
        dn = w("Mul", dy, self.scale)
        mean = w("ReduceMean", dn, w.axes(-1), keepdims=1)
        along = w("ReduceMean", w("Mul", dn, self.normal), w.axes(-1), keepdims=1)
        return w("Mul", w("Sub", w("Sub", dn, mean), w("Mul", self.normal, along)), self.inverse)


def _layer_norm(w: Writer, x: str, scale: str, shift: str) -> tuple[str, _Norm]:
    centred = w("Sub", x, w("ReduceMean", x, w.axes(-1), keepdims=1))
    variance = w("ReduceMean", w("Mul", centred, centred), w.axes(-1), keepdims=1)
    inverse = w("Div", w.constant(1.0), w("Sqrt", w("Add", variance, w.constant(1e-5))))
    normal = w("Mul", centred, inverse)
    return w("Add", w("Mul", normal, scale), shift), _Norm(normal, inverse, scale)


def transformer(w: Writer) -> Gradients:
    """A block of layer normalisation, attention, layer normalisation and two layers, with both residual sums."""
    length, deep, hidden = 6, 16, 24
    starts = _start(
        8, scale1=(deep,), shift1=(deep,), q=(deep, deep), k=(deep, deep), v=(deep, deep), o=(deep, deep),
        scale2=(deep,), shift2=(deep,), a=(deep, hidden), b=(hidden,), c=(hidden, deep), head=(deep, CLASSES),
    )  # fmt: skip
    x, labels = w.input("x", (ROWS, length, deep)), w.input("labels", (ROWS,), TensorProto.INT64)
    scale1, shift1, q, k, v, o, scale2, shift2, a, b, c, head = _parameters(w, starts)

    def weight_gradient(data: str, d: str, deep: int, wide: int) -> str:
        flat = w("Reshape", data, w.axes(-1, deep)), w("Reshape", d, w.axes(-1, wide))
        return w("MatMul", _t(w, flat[0]), flat[1])

    def swap(value: str) -> str:
        return w("Transpose", value, perm=[0, 2, 1])

    n1, norm1 = _layer_norm(w, x, scale1, shift1)
    queries, keys, values = w("MatMul", n1, q), w("MatMul", n1, k), w("MatMul", n1, v)
    root = w.constant(deep**-0.5)
    p = w("Softmax", w("Mul", w("MatMul", queries, swap(keys)), root), axis=-1)
    mixed = w("MatMul", p, values)
    x1 = w("Add", x, w("MatMul", mixed, o))
    n2, norm2 = _layer_norm(w, x1, scale2, shift2)
    z = w("Add", w("MatMul", n2, a), b)
    h = w("Mul", z, w("Sigmoid", z))
    x2 = w("Add", x1, w("MatMul", h, c))
    pooled = w("ReduceMean", x2, w.axes(1), keepdims=0)
    loss, d = _cross_entropy(w, w("MatMul", pooled, head), labels)

    dpooled = w("Mul", w("MatMul", d, _t(w, head)), w.constant(1 / length))
    dx2 = w("Expand", w("Unsqueeze", dpooled, w.axes(1)), w.axes(ROWS, length, deep))
    s = w("Sigmoid", z)
    slope = w("Mul", s, w("Add", w.constant(1.0), w("Mul", z, w("Sub", w.constant(1.0), s))))
    dz = w("Mul", w("MatMul", dx2, _t(w, c)), slope)
    dn2 = w("MatMul", dz, _t(w, a))
    dx1 = w("Add", dx2, norm2.gradient(w, dn2))
    dmixed = w("MatMul", dx1, _t(w, o))
    dp = w("MatMul", dmixed, swap(values))
    inner = w("Sub", dp, w("ReduceSum", w("Mul", dp, p), w.axes(-1), keepdims=1))
    ds = w("Mul", w("Mul", p, inner), root)
    dq, dk, dv = w("MatMul", ds, keys), w("MatMul", swap(ds), queries), w("MatMul", swap(p), dmixed)
    dn1 = w("Add", w("Add", w("MatMul", dq, _t(w, q)), w("MatMul", dk, _t(w, k))), w("MatMul", dv, _t(w, v)))
    flat = w.axes(0, 1)
    of = {
        "scale1": w("ReduceSum", w("Mul", dn1, norm1.normal), flat, keepdims=0),
        "shift1": w("ReduceSum", dn1, flat, keepdims=0),
        "q": weight_gradient(n1, dq, deep, deep),
        "k": weight_gradient(n1, dk, deep, deep),
        "v": weight_gradient(n1, dv, deep, deep),
        "o": weight_gradient(mixed, dx1, deep, deep),
        "scale2": w("ReduceSum", w("Mul", dn2, norm2.normal), flat, keepdims=0),
        "shift2": w("ReduceSum", dn2, flat, keepdims=0),
        "a": weight_gradient(n2, dz, deep, hidden),
        "b": w("ReduceSum", dz, flat, keepdims=0),
        "c": weight_gradient(h, dx2, hidden, deep),
        "head": w("MatMul", _t(w, pooled), d),
    }
    return Gradients(loss, starts, of, _classified((length, deep)))


NETWORKS: dict[str, Network] = {
    network.__name__: network for network in (linear, gemm, mlp, unbatched, conv, batch_norm, embedding, transformer)
}
