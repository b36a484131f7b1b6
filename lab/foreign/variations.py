"""More ways to write a training step: other products, other paths of a weight, other updates, one or two oddities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from foreign.writer import Batch, Feed, ForeignStep, Writer

__all__ = ["VARIATIONS", "variation"]

ROWS, WIDE, DEEP = 8, 12, 5

Made = tuple[Batch, str]


def _random(seed: int, *shape: int, scale: float = 0.3) -> np.ndarray:
    return np.random.default_rng([3, seed]).normal(0, scale, shape).astype(np.float32)


_TRUTH = _random(99, WIDE, DEEP, scale=0.6)


def _regression(generator: np.random.Generator) -> Feed:
    x = generator.normal(0, 1, (ROWS, WIDE)).astype(np.float32)
    return {"x": x, "t": (x @ _TRUTH + 0.5).astype(np.float32)}


def _inputs(w: Writer, rows: int | str = ROWS) -> tuple[str, str]:
    return w.input("x", (rows, WIDE)), w.input("t", (rows, DEEP))


def _t(w: Writer, value: str) -> str:
    return w("Transpose", value, perm=[1, 0])


def _squared(w: Writer, residual: str, rows: int = ROWS) -> tuple[str, str]:
    """Return the loss, and the gradient of the residual."""
    loss = w("ReduceMean", w("Mul", residual, residual), keepdims=0)
    return loss, w("Mul", residual, w.constant(2 / (rows * DEEP)))


def _descend(w: Writer, name: str, gradient: str, start: np.ndarray, rate: float) -> None:
    w.replace(name, w("Sub", name, w("Mul", w.constant(rate), gradient)), start, "parameter")


def _linear(w: Writer) -> tuple[str, str, str, np.ndarray]:
    """Return x, the loss, the gradient of the result, and the start of `a`."""
    x, t = _inputs(w)
    start = _random(1, WIDE, DEEP)
    loss, d = _squared(w, w("Sub", w("MatMul", x, w.state("a", start)), t))
    return x, loss, d, start


# ---- other products ----


def einsum(w: Writer, rate: float) -> Made:
    """Forward and gradient by Einsum."""
    x, t = _inputs(w)
    start = _random(1, WIDE, DEEP)
    y = w("Einsum", x, w.state("a", start), equation="bi,ij->bj")
    loss, d = _squared(w, w("Sub", y, t))
    _descend(w, "a", w("Einsum", x, d, equation="bi,bj->ij"), start, rate)
    return _regression, loss


def left_weight(w: Writer, rate: float) -> Made:
    """The weight is the left factor: data are columns."""
    start = _random(1, DEEP, WIDE)
    x, t = w.input("x", (WIDE, ROWS)), w.input("t", (DEEP, ROWS))
    loss, d = _squared(w, w("Sub", w("MatMul", w.state("a", start), x), t))
    _descend(w, "a", w("MatMul", d, _t(w, x)), start, rate)
    return lambda generator: {name: value.T.copy() for name, value in _regression(generator).items()}, loss


def transposed_gradient(w: Writer, rate: float) -> Made:
    """The gradient is made transposed, and turned back."""
    x, loss, d, start = _linear(w)
    _descend(w, "a", _t(w, w("MatMul", _t(w, d), x)), start, rate)
    return _regression, loss


def general_dot(w: Writer, rate: float) -> Made:
    """As a compiler of JAX programs writes it: operands reshaped to three dimensions, and batched by one."""
    x, t = _inputs(w)
    start = _random(1, WIDE, DEEP)
    a = w.state("a", start)
    wide = w("Unsqueeze", x, w.axes(0)), w("Unsqueeze", a, w.axes(0))
    y = w("Reshape", w("MatMul", *wide), w.axes(ROWS, DEEP))
    loss, d = _squared(w, w("Sub", y, t))
    product = w("MatMul", w("Transpose", wide[0], perm=[0, 2, 1]), w("Unsqueeze", d, w.axes(0)))
    _descend(w, "a", w("Reshape", product, w.axes(WIDE, DEEP)), start, rate)
    return _regression, loss


def product_and_sum(w: Writer, rate: float) -> Made:
    """No matrix product at all: products by Mul, sums by ReduceSum."""
    x, t = _inputs(w)
    start = _random(1, WIDE, DEEP)
    a = w.state("a", start)
    tall = w("Unsqueeze", x, w.axes(2))
    y = w("ReduceSum", w("Mul", tall, w("Unsqueeze", a, w.axes(0))), w.axes(1), keepdims=0)
    loss, d = _squared(w, w("Sub", y, t))
    gradient = w("ReduceSum", w("Mul", tall, w("Unsqueeze", d, w.axes(1))), w.axes(0), keepdims=0)
    _descend(w, "a", gradient, start, rate)
    return _regression, loss


def gemm_both(w: Writer, rate: float) -> Made:
    """Gemm with a scaled gradient: `alpha` holds the factor of the loss."""
    x, t = _inputs(w, "N")
    start = _random(1, WIDE, DEEP)
    residual = w("Sub", w("Gemm", x, w.state("a", start)), t)
    loss = w("ReduceMean", w("Mul", residual, residual), keepdims=0)
    _descend(w, "a", w("Gemm", x, residual, transA=1, alpha=2 / (ROWS * DEEP)), start, rate)
    return _regression, loss


def gemm_update(w: Writer, rate: float) -> Made:
    """The whole update is one Gemm: `a - rate * x^T d`."""
    x, loss, d, start = _linear(w)
    w.replace("a", w("Gemm", x, d, "a", transA=1, alpha=-rate, beta=1.0), start, "parameter")
    return _regression, loss


def rate_inside(w: Writer, rate: float) -> Made:
    """The rate goes into the product: `a + x^T (-rate d)`."""
    x, loss, d, start = _linear(w)
    w.replace("a", w("Add", "a", w("MatMul", _t(w, x), w("Mul", d, w.constant(-rate)))), start, "parameter")
    return _regression, loss


def vector(w: Writer, rate: float) -> Made:
    """A weight without a second dimension, read by a product of matrix and vector."""
    start = _random(1, WIDE)
    x, t = w.input("x", (ROWS, WIDE)), w.input("t", (ROWS,))
    residual = w("Sub", w("MatMul", x, w.state("a", start)), t)
    loss = w("ReduceMean", w("Mul", residual, residual), keepdims=0)
    d = w("Mul", residual, w.constant(2 / ROWS))
    _descend(w, "a", w("MatMul", d, x), start, rate)
    return lambda generator: {k: v[:, 0].copy() if k == "t" else v for k, v in _regression(generator).items()}, loss


def vector_alone(w: Writer, rate: float) -> Made:
    """One sample, one weight vector: `a - rate * 2 (a x - t) x`."""
    start = _random(1, WIDE)
    x, t = w.input("x", (WIDE,)), w.input("t", ())
    y = w("ReduceSum", w("Mul", x, w.state("a", start)), keepdims=0)
    residual = w("Sub", y, t)
    _descend(w, "a", w("Mul", w("Mul", residual, w.constant(2.0)), x), start, rate)

    def batch(generator: np.random.Generator) -> Feed:
        drawn = _regression(generator)
        return {"x": drawn["x"][0], "t": np.asarray(drawn["t"][0, 0])}

    return batch, w("Mul", residual, residual)


def scalar(w: Writer, rate: float) -> Made:
    """A temperature: one number that scales all results."""
    x, t = _inputs(w)
    start = np.asarray(0.5, np.float32)
    raw = w("MatMul", x, w.constant(_TRUTH))
    loss, d = _squared(w, w("Sub", w("Mul", raw, w.state("s", start)), t))
    _descend(w, "s", w("ReduceSum", w("Mul", d, raw), keepdims=0), start, rate)
    return _regression, loss


def depthwise(w: Writer, rate: float) -> Made:
    """A depthwise convolution; the gradient of its weight is a product of shifted images and a sum."""
    start, size = _random(1, 3, 1, 3), 10
    x, t = w.input("x", (ROWS, 3, size)), w.input("t", (ROWS, 3, size - 2))
    residual = w("Sub", w("Conv", x, w.state("a", start), group=3), t)
    loss = w("ReduceMean", w("Mul", residual, residual), keepdims=0)
    d = w("Mul", residual, w.constant(2 / (ROWS * 3 * (size - 2))))
    taps = []
    for tap in range(3):
        shifted = w("Slice", x, w.axes(tap), w.axes(tap + size - 2), w.axes(2))
        taps.append(w("ReduceSum", w("Mul", shifted, d), w.axes(0, 2), keepdims=0))
    stacked = w("Concat", *(w("Unsqueeze", value, w.axes(1, 2)) for value in taps), axis=2)
    _descend(w, "a", stacked, start, rate)

    def batch(generator: np.random.Generator) -> Feed:
        x = generator.normal(0, 1, (ROWS, 3, size)).astype(np.float32)
        return {"x": x, "t": (0.5 * x[:, :, :-2] - x[:, :, 1:-1] + 0.2 * x[:, :, 2:]).astype(np.float32)}

    return batch, loss


def unfolded(w: Writer, rate: float) -> Made:
    """A convolution whose gradient is a product with unfolded columns."""
    start, size = _random(1, 4, 3, 3), 10
    x, t = w.input("x", (ROWS, 3, size)), w.input("t", (ROWS, 4, size - 2))
    residual = w("Sub", w("Conv", x, w.state("a", start)), t)
    loss = w("ReduceMean", w("Mul", residual, residual), keepdims=0)
    d = w("Mul", residual, w.constant(2 / (ROWS * 4 * (size - 2))))
    shifted = [w("Slice", x, w.axes(i), w.axes(i + size - 2), w.axes(2)) for i in range(3)]
    columns = w("Concat", *(w("Unsqueeze", value, w.axes(2)) for value in shifted), axis=2)
    columns = w("Reshape", columns, w.axes(ROWS, 9, size - 2))
    each = w("MatMul", d, w("Transpose", columns, perm=[0, 2, 1]))
    _descend(w, "a", w("Reshape", w("ReduceSum", each, w.axes(0), keepdims=0), w.axes(4, 3, 3)), start, rate)
    truth = _random(2, 4, 3, 3)

    def batch(generator: np.random.Generator) -> Feed:
        x = generator.normal(0, 1, (ROWS, 3, size)).astype(np.float32)
        parts = np.stack([x[:, :, i : i + size - 2] for i in range(3)], -1)
        return {"x": x, "t": np.einsum("bcnk,ock->bon", parts, truth).astype(np.float32)}

    return batch, loss


# ---- other paths of a weight ----


def tied(w: Writer, rate: float) -> Made:
    """One table embeds the words and scores them: its gradient is a scatter and a product."""
    words, deep = 20, 8
    start = _random(1, words, deep)
    ids, labels = w.input("ids", (ROWS,), TensorProto.INT64), w.input("labels", (ROWS,), TensorProto.INT64)
    table = w.state("table", start)
    h = w("Tanh", w("Gather", table, ids))
    logits = w("MatMul", h, _t(w, table))
    wanted = w("OneHot", labels, w.constant(words, np.int64), w.constant([0.0, 1.0]), axis=-1)
    log = w("Mul", w("LogSoftmax", logits, axis=-1), wanted)
    loss = w("Neg", w("ReduceMean", w("ReduceSum", log, w.axes(-1), keepdims=0), keepdims=0))
    d = w("Div", w("Sub", w("Softmax", logits, axis=-1), wanted), w.constant(float(ROWS)))
    dh = w("Mul", w("MatMul", d, table), w("Sub", w.constant(1.0), w("Mul", h, h)))
    zeros = w("ConstantOfShape", w.axes(words, deep))
    scattered = w("ScatterND", zeros, w("Unsqueeze", ids, w.axes(-1)), dh, reduction="add")
    _descend(w, "table", w("Add", scattered, w("MatMul", _t(w, d), h)), start, rate)

    def batch(generator: np.random.Generator) -> Feed:
        ids = generator.integers(0, words, ROWS)
        return {"ids": ids, "labels": (ids * 3 + 1) % words}

    return batch, loss


def sparse_table(w: Writer, rate: float) -> Made:
    """Only the rows that were looked up are written: the update is a scatter into the table itself."""
    words = 20
    start = _random(1, words, DEEP)
    ids, t = w.input("ids", (ROWS,), TensorProto.INT64), w.input("t", (ROWS, DEEP))
    loss, d = _squared(w, w("Sub", w("Gather", w.state("table", start), ids), t))
    change = w("Mul", w.constant(-rate), d)
    new = w("ScatterND", "table", w("Unsqueeze", ids, w.axes(-1)), change, reduction="add")
    w.replace("table", new, start, "parameter")

    def batch(generator: np.random.Generator) -> Feed:
        ids = generator.integers(0, words, ROWS)
        return {"ids": ids, "t": np.sin(np.outer(ids, np.arange(1, DEEP + 1))).astype(np.float32)}

    return batch, loss


def one_hot_table(w: Writer, rate: float) -> Made:
    """A table read by a product with one-hot rows."""
    words = 20
    start = _random(1, words, DEEP)
    ids, t = w.input("ids", (ROWS,), TensorProto.INT64), w.input("t", (ROWS, DEEP))
    rows = w("OneHot", ids, w.constant(words, np.int64), w.constant([0.0, 1.0]), axis=-1)
    loss, d = _squared(w, w("Sub", w("MatMul", rows, w.state("table", start)), t))
    _descend(w, "table", w("MatMul", _t(w, rows), d), start, rate)

    def batch(generator: np.random.Generator) -> Feed:
        ids = generator.integers(0, words, ROWS)
        return {"ids": ids, "t": np.cos(np.outer(ids, np.arange(1, DEEP + 1))).astype(np.float32)}

    return batch, loss


def own_mixed_precision(w: Writer, rate: float) -> Made:
    """Mixed precision by hand: the weight is cast to float16, its gradient back, and the loss is scaled by 64."""
    x, t = _inputs(w)
    start = _random(1, WIDE, DEEP)
    half = w("Cast", x, to=TensorProto.FLOAT16)
    y = w("MatMul", half, w("Cast", w.state("a", start), to=TensorProto.FLOAT16))
    loss, d = _squared(w, w("Sub", w("Cast", y, to=TensorProto.FLOAT), t))
    scaled = w("Cast", w("Mul", d, w.constant(64.0)), to=TensorProto.FLOAT16)
    gradient = w("Cast", w("MatMul", _t(w, half), scaled), to=TensorProto.FLOAT)
    _descend(w, "a", w("Div", gradient, w.constant(64.0)), start, rate)
    return _regression, loss


def micro_batches(w: Writer, rate: float) -> Made:
    """Two halves of a batch, their gradients averaged."""
    x, t = _inputs(w)
    start = _random(1, WIDE, DEEP)
    a = w.state("a", start)
    gradients, losses = [], []
    for part in range(2):
        ends = w.axes(part * ROWS // 2), w.axes((part + 1) * ROWS // 2), w.axes(0)
        half = w("Slice", x, *ends)
        loss, d = _squared(w, w("Sub", w("MatMul", half, a), w("Slice", t, *ends)), ROWS // 2)
        gradients.append(w("MatMul", _t(w, half), d))
        losses.append(loss)
    _descend(w, "a", w("Mul", w("Add", *gradients), w.constant(0.5)), start, rate)
    return _regression, w("Mul", w("Add", *losses), w.constant(0.5))


def two_steps(w: Writer, rate: float) -> Made:
    """Two steps in one graph."""
    x, t = _inputs(w)
    start = _random(1, WIDE, DEEP)
    a, losses = w.state("a", start), []
    for _ in range(2):
        loss, d = _squared(w, w("Sub", w("MatMul", x, a), t))
        a = w("Sub", a, w("Mul", w.constant(rate), w("MatMul", _t(w, x), d)))
        losses.append(loss)
    w.replace("a", a, start, "parameter")
    return _regression, losses[0]


def layer_norm(w: Writer, rate: float) -> Made:
    """ONNX's LayerNormalization, whose further outputs the gradient reads."""
    x, t = _inputs(w)
    a, scale, shift = _random(1, WIDE, DEEP), np.ones(DEEP, np.float32), np.zeros(DEEP, np.float32)
    z = w("MatMul", x, w.state("a", a))
    names = w.state("scale", scale), w.state("shift", shift)
    y, mean, inverse = w.several("LayerNormalization", 3, z, *names, axis=-1)
    loss, d = _squared(w, w("Sub", y, t))
    normal = w("Mul", w("Sub", z, mean), inverse)
    dn = w("Mul", d, names[0])
    along = w("Mul", normal, w("ReduceMean", w("Mul", dn, normal), w.axes(-1), keepdims=1))
    dz = w("Mul", w("Sub", w("Sub", dn, w("ReduceMean", dn, w.axes(-1), keepdims=1)), along), inverse)
    _descend(w, "a", w("MatMul", _t(w, x), dz), a, rate)
    _descend(w, "scale", w("ReduceSum", w("Mul", d, normal), w.axes(0), keepdims=0), scale, rate)
    _descend(w, "shift", w("ReduceSum", d, w.axes(0), keepdims=0), shift, rate)
    return _regression, loss


def weight_norm(w: Writer, rate: float) -> Made:
    """The weight is read through its own norm: `g v / |v|`."""
    x, t = _inputs(w)
    v, g = _random(1, WIDE, DEEP), np.ones(DEEP, np.float32)
    names = w.state("v", v), w.state("g", g)
    square = w("ReduceSum", w("Mul", names[0], names[0]), w.axes(0), keepdims=0)
    inverse = w("Reciprocal", w("Sqrt", square))
    unit = w("Mul", names[0], inverse)
    loss, d = _squared(w, w("Sub", w("MatMul", x, w("Mul", unit, names[1])), t))
    dw = w("MatMul", _t(w, x), d)
    dg = w("ReduceSum", w("Mul", dw, unit), w.axes(0), keepdims=0)
    dv = w("Mul", w("Mul", names[1], inverse), w("Sub", dw, w("Mul", unit, dg)))
    _descend(w, "v", dv, v, rate)
    _descend(w, "g", dg, g, rate)
    return _regression, loss


def recurrent(w: Writer, rate: float) -> Made:
    """Three steps of a recurrent network, backpropagated through time; the hidden state goes on, too."""
    hidden, length = 6, 3
    x, t = w.input("x", (ROWS, length, WIDE)), w.input("t", (ROWS, hidden))
    a, u = _random(1, WIDE, hidden), _random(2, hidden, hidden)
    names = w.state("a", a), w.state("u", u)
    h = w.input("h", (ROWS, hidden))
    seen = []
    for step in range(length):
        now = w("Gather", x, w.constant(step, np.int64), axis=1)
        before, h = h, w("Tanh", w("Add", w("MatMul", now, names[0]), w("MatMul", h, names[1])))
        seen.append((now, before, h))
    residual = w("Sub", h, t)
    loss = w("ReduceMean", w("Mul", residual, residual), keepdims=0)
    dh = w("Mul", residual, w.constant(2 / (ROWS * hidden)))
    of_a, of_u = [], []
    for now, before, after in reversed(seen):
        dz = w("Mul", dh, w("Sub", w.constant(1.0), w("Mul", after, after)))
        of_a.append(w("MatMul", _t(w, now), dz))
        of_u.append(w("MatMul", _t(w, before), dz))
        dh = w("MatMul", dz, _t(w, names[1]))
    _descend(w, "a", w("Sum", *of_a), a, rate)
    _descend(w, "u", w("Sum", *of_u), u, rate)
    w.output("h_last", w("Identity", h), (ROWS, hidden))
    truth = _random(4, WIDE, hidden)

    def batch(generator: np.random.Generator) -> Feed:
        x = generator.normal(0, 1, (ROWS, length, WIDE)).astype(np.float32)
        return {"x": x, "t": np.tanh(x[:, -1] @ truth).astype(np.float32), "h": np.zeros((ROWS, hidden), np.float32)}

    return batch, loss


# ---- other updates ----


def _with_update(update: Callable[[Writer, str, np.ndarray, float], str]) -> Callable[[Writer, float], Made]:
    def build(w: Writer, rate: float) -> Made:
        x, loss, d, start = _linear(w)
        w.replace("a", update(w, w("MatMul", _t(w, x), d), start, rate), start, "parameter")
        return _regression, loss

    return build


def _moment(w: Writer, name: str, start: np.ndarray, decay: float, new: str) -> str:
    zero = np.zeros_like(start)
    decayed = w("Mul", w.state(name, zero), w.constant(decay))
    moment = w("Add", decayed, new)
    w.replace(name, moment, zero, "moment")
    return moment


def _rmsprop(w: Writer, g: str, start: np.ndarray, rate: float) -> str:
    square = _moment(w, "v", start, 0.99, w("Mul", w("Mul", g, g), w.constant(0.01)))
    return w("Sub", "a", w("Div", w("Mul", g, w.constant(rate)), w("Sqrt", w("Add", square, w.constant(1e-8)))))


def _adagrad(w: Writer, g: str, start: np.ndarray, rate: float) -> str:
    zero = np.full_like(start, 0.1)
    total = w("Add", w.state("v", zero), w("Pow", g, w.constant(2.0)))
    w.replace("v", total, zero, "moment")
    return w("Add", "a", w("Mul", w.constant(-rate), w("Div", g, w("Sqrt", total))))


def _lion(w: Writer, g: str, start: np.ndarray, rate: float) -> str:
    zero = np.zeros_like(start)
    old = w.state("m", zero)
    ahead = w("Add", w("Mul", old, w.constant(0.9)), w("Mul", g, w.constant(0.1)))
    new = w("Add", w("Mul", old, w.constant(0.99)), w("Mul", g, w.constant(0.01)))
    w.replace("m", new, zero, "moment")
    return w("Sub", "a", w("Mul", w("Sign", ahead), w.constant(rate)))


def _clipped(w: Writer, g: str, _: np.ndarray, rate: float) -> str:
    bounded = w("Clip", g, w.constant(-0.1), w.constant(0.1))
    return w("Sub", "a", w("Mul", w("Add", bounded, w("Mul", "a", w.constant(0.01))), w.constant(rate)))


def _cosine(w: Writer, g: str, _: np.ndarray, rate: float) -> str:
    """The rate falls with the step number, as a cosine after a linear start."""
    zero = np.zeros((), np.int64)
    count = w.state("n", zero)
    w.replace("n", w("Add", count, w.constant(1, np.int64)), zero, "counter")
    number = w("Cast", count, to=TensorProto.FLOAT)
    warm = w("Min", w("Div", w("Add", number, w.constant(1.0)), w.constant(10.0)), w.constant(1.0))
    wave = w("Mul", w("Add", w("Cos", w("Mul", number, w.constant(0.003))), w.constant(1.0)), w.constant(0.5))
    return w("Sub", "a", w("Mul", g, w("Mul", w("Mul", warm, wave), w.constant(rate))))


def _averaged(w: Writer, g: str, start: np.ndarray, rate: float) -> str:
    """With a moving average of the weight beside it."""
    new = w("Sub", "a", w("Mul", g, w.constant(rate)))
    average = w.state("average", start)
    w.replace("average", w("Add", average, w("Mul", w("Sub", new, average), w.constant(0.01))), start, "moment")
    return new


def _projected(w: Writer, g: str, _: np.ndarray, rate: float) -> str:
    """Weights that may not become negative."""
    return w("Relu", w("Sub", "a", w("Mul", g, w.constant(rate))))


VARIATIONS: dict[str, Callable[[Writer, float], Made]] = {
    variant.__name__: variant
    for variant in (
        einsum, left_weight, transposed_gradient, general_dot, product_and_sum, gemm_both, gemm_update, rate_inside,
        vector, vector_alone, scalar, depthwise, unfolded, tied, sparse_table, one_hot_table, own_mixed_precision,
        micro_batches, two_steps, layer_norm, weight_norm, recurrent,
    )
} | {
    update.__name__.strip("_"): _with_update(update)
    for update in (_rmsprop, _adagrad, _lion, _clipped, _cosine, _averaged, _projected)
}  # fmt: skip


def variation(name: str, rate: float = 1e-3) -> ForeignStep:
    """Write a step of this file."""
    w = Writer()
    batch, loss = VARIATIONS[name](w, rate)
    return w.step(batch, loss)
