"""Updates of parameters, written out by hand in plain ONNX operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from foreign.networks import Gradients
from foreign.writer import Writer

__all__ = ["OPTIMIZERS", "Update"]

Update = Callable[[Writer, Gradients, float], None]

_B1, _B2, _EPSILON, _DECAY = 0.9, 0.999, 1e-8, 0.01


def _zeros(gradients: Gradients, name: str) -> np.ndarray:
    return np.zeros_like(gradients.starts[name])


def _scaled(w: Writer, factor: float, value: str) -> str:
    return w("Mul", w.constant(factor), value)


def _lerp(w: Writer, decay: float, old: str, new: str) -> str:
    """`decay * old + (1 - decay) * new`."""
    return w("Add", _scaled(w, decay, old), _scaled(w, 1 - decay, new))


def _replace(w: Writer, gradients: Gradients, name: str, by: str) -> None:
    w.replace(name, by, gradients.starts[name], "parameter")


def sgd(w: Writer, gradients: Gradients, rate: float) -> None:
    """`p - rate * g`."""
    for name, g in gradients.of.items():
        _replace(w, gradients, name, w("Sub", name, _scaled(w, rate, g)))


def sgd_input_rate(w: Writer, gradients: Gradients, rate: float) -> None:
    """The same with the rate as an input, and weight decay: `p * (1 - rate * decay) - rate * g`."""
    lr = w.input("lr", ())
    draw = gradients.batch
    gradients.batch = lambda generator: {**draw(generator), "lr": np.asarray(rate, np.float32)}
    share = w("Sub", w.constant(1.0), _scaled(w, _DECAY, lr))
    for name, g in gradients.of.items():
        _replace(w, gradients, name, w("Sub", w("Mul", name, share), w("Mul", lr, g)))


def momentum(w: Writer, gradients: Gradients, rate: float) -> None:
    """`m = 0.9 m + g; p = p - rate * m`."""
    for name, g in gradients.of.items():
        start = _zeros(gradients, name)
        m = w("Add", _scaled(w, _B1, w.state(f"m_{name}", start)), g)
        w.replace(f"m_{name}", m, start, "moment")
        _replace(w, gradients, name, w("Sub", name, _scaled(w, rate, m)))


def nesterov(w: Writer, gradients: Gradients, rate: float) -> None:
    """`g = g + decay * p; m = 0.9 m + g; p = p - rate * (g + 0.9 m)`."""
    for name, g in gradients.of.items():
        start = _zeros(gradients, name)
        decayed = w("Add", g, _scaled(w, _DECAY, name))
        m = w("Add", _scaled(w, _B1, w.state(f"m_{name}", start)), decayed)
        w.replace(f"m_{name}", m, start, "moment")
        ahead = w("Add", decayed, _scaled(w, _B1, m))
        _replace(w, gradients, name, w("Sub", name, _scaled(w, rate, ahead)))


def _moments(w: Writer, gradients: Gradients, name: str, g: str) -> tuple[str, str]:
    start = _zeros(gradients, name)
    first = _lerp(w, _B1, w.state(f"m_{name}", start), g)
    second = _lerp(w, _B2, w.state(f"v_{name}", start), w("Mul", g, g))
    w.replace(f"m_{name}", first, start, "moment")
    w.replace(f"v_{name}", second, start, "moment")
    return first, second


def adam(w: Writer, gradients: Gradients, rate: float) -> None:
    """Adam with powers of both betas as state."""
    ones = np.ones((), np.float32)
    powers = {f"b{i}": beta for i, beta in ((1, _B1), (2, _B2))}
    corrections = []
    for name, beta in powers.items():
        new = _scaled(w, beta, w.state(name, ones))
        w.replace(name, new, ones, "counter")
        corrections.append(w("Sub", w.constant(1.0), new))
    for name, g in gradients.of.items():
        first, second = _moments(w, gradients, name, g)
        root = w("Add", w("Sqrt", w("Div", second, corrections[1])), w.constant(_EPSILON))
        step = w("Div", w("Div", first, corrections[0]), root)
        _replace(w, gradients, name, w("Sub", name, _scaled(w, rate, step)))


def adamw_clipped(w: Writer, gradients: Gradients, rate: float) -> None:
    """AdamW with a step counter, after clipping by the norm of all gradients."""
    squares = [w("ReduceSum", w("Mul", g, g), keepdims=0) for g in gradients.of.values()]
    norm = w("Sqrt", w("Sum", *squares))
    factor = w("Min", w.constant(1.0), w("Div", w.constant(1.0), w("Add", norm, w.constant(1e-6))))
    zero = np.zeros((), np.int64)
    count = w("Add", w.state("step", zero), w.constant(1, np.int64))
    w.replace("step", count, zero, "counter")
    power = w("Cast", count, to=1)
    unit = w.constant(1.0)
    corrections = [w("Sub", unit, w("Pow", w.constant(beta), power)) for beta in (_B1, _B2)]
    for name, g in gradients.of.items():
        first, second = _moments(w, gradients, name, w("Mul", g, factor))
        root = w("Add", w("Div", w("Sqrt", second), w("Sqrt", corrections[1])), w.constant(_EPSILON))
        step = w("Div", _scaled(w, rate, w("Div", first, corrections[0])), root)
        decayed = w("Mul", name, w.constant(1 - rate * _DECAY))
        _replace(w, gradients, name, w("Sub", decayed, step))


def flattened(w: Writer, gradients: Gradients, rate: float) -> None:
    """Momentum on one vector of all parameters, with a moving average of the parameters."""
    names = list(gradients.of)
    shapes = [gradients.starts[name].shape for name in names]
    sizes = [int(np.prod(shape)) for shape in shapes]

    def joined(values: list[str]) -> str:
        return w("Concat", *(w("Reshape", value, w.axes(-1)) for value in values), axis=0)

    start = np.zeros(sum(sizes), np.float32)
    m = w("Add", _scaled(w, _B1, w.state("m", start)), joined(list(gradients.of.values())))
    w.replace("m", m, start, "moment")
    new = w("Sub", joined(names), _scaled(w, rate, m))
    average = np.concatenate([gradients.starts[name].reshape(-1) for name in names])
    w.replace("average", _lerp(w, 0.99, w.state("average", average), new), average, "moment")
    parts = w.several("Split", len(names), new, w.constant(sizes, np.int64), axis=0)
    for name, part, shape in zip(names, parts, shapes, strict=True):
        _replace(w, gradients, name, w("Reshape", part, w.axes(*shape)))


def lamb(w: Writer, gradients: Gradients, rate: float) -> None:
    """Lamb: each step is as long as `rate` times the parameter's norm."""
    for name, g in gradients.of.items():
        first, second = _moments(w, gradients, name, g)
        root = w("Add", w("Sqrt", second), w.constant(1e-6))
        step = w("Add", w("Div", first, root), _scaled(w, _DECAY, name))
        norms = [w("Sqrt", w("ReduceSum", w("Mul", value, value), keepdims=0)) for value in (name, step)]
        known = w("Greater", norms[0], w.constant(0.0))
        trust = w("Where", known, w("Div", norms[0], norms[1]), w.constant(1.0))
        _replace(w, gradients, name, w("Sub", name, w("Mul", w("Mul", trust, w.constant(rate)), step)))


OPTIMIZERS: dict[str, Update] = {
    update.__name__: update
    for update in (sgd, sgd_input_rate, momentum, nesterov, adam, adamw_clipped, flattened, lamb)
}
