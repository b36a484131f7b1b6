"""Functions element by element, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")

X = np.array([[-2.6, -0.5, 0.3], [1.0, 2.5, 3.7]], np.float32)
Y = np.array([[1.5, -2.0, 0.7], [-1.0, 2.25, 0.4]], np.float32)
ROW = np.array([2.0, -1.5, 0.5], np.float32)
UNIT = np.array([[-0.9, -0.2, 0.0], [0.1, 0.5, 0.95]], np.float32)
ABOVE = np.array([[0.1, 0.5, 1.3], [2.0, 3.0, 1e-6]], np.float32)
TINY = np.array([-0.999, -0.3, -1e-4, -1e-7, 0.0, 1e-8, 1e-5, 0.4, 0.6, 50.0], np.float32)
NAN = np.array([np.nan, 1.0, -2.0, np.inf, -np.inf], np.float32)
I = np.array([[-7, 3, 8], [5, -4, 2]])  # noqa: E741  # beside X
J = np.array([[2, -2, 3], [-5, 3, 1]])

SAME = ["abs", "atan", "ceil", "cos", "cosh", "erf", "exp", "floor", "neg", "sigmoid", "sign", "sin", "sinh", "tan"]
SAME += ["tanh", "square", "round", "trunc", "frac", "sinc", "asinh", "deg2rad", "rad2deg"]
CASES = {name: case(getattr(paddle, name), getattr(torch, name), X) for name in SAME}
CASES |= {name: case(getattr(paddle, name), getattr(torch, name), UNIT) for name in ("acos", "asin", "atanh")}
CASES |= {name: case(getattr(paddle, name), getattr(torch, name), ABOVE) for name in ("log", "log2", "log10", "sqrt")}
CASES |= {name: case(getattr(paddle, name), getattr(torch, name), ABOVE[:, :2]) for name in ("rsqrt", "reciprocal")}
CASES |= {name: case(getattr(paddle, name), getattr(torch, name), TINY) for name in ("expm1", "log1p")}
BOTH = ["multiply", "maximum", "minimum", "subtract", "divide", "logaddexp", "atan2", "hypot", "fmax", "fmin"]
CASES |= {name: case(getattr(paddle, name), getattr(torch, name), X, Y) for name in BOTH}
CASES |= {f"{name} row": case(getattr(paddle, name), getattr(torch, name), X, ROW) for name in BOTH}
WHOLE = ["floor_divide", "mod", "add", "subtract", "multiply", "maximum", "minimum", "floor_mod", "remainder"]
TORCH = {"mod": "remainder", "floor_mod": "remainder"}
CASES |= {
    f"{name} of integers": case(getattr(paddle, name), getattr(torch, TORCH.get(name, name)), I, J) for name in WHOLE
}
CASES |= {
    f"{name} of floats": case(getattr(paddle, name), getattr(torch, TORCH.get(name, name)), X, Y)
    for name in ("mod", "floor_mod")
}
CASES |= {
    "acosh": case(paddle.acosh, torch.acosh, ABOVE + 1.1),
    "add alpha": case(lambda x, y: paddle.add(x, y, alpha=2), lambda x, y: torch.add(x, y, alpha=2), X, Y),
    "subtract alpha": case(lambda x, y: paddle.subtract(x, y, alpha=3), lambda x, y: torch.sub(x, y, alpha=3), X, Y),
    "floor_divide of floats": case(paddle.floor_divide, torch.floor_divide, X, Y, differentiable=False),
    "name": case(lambda x, y: paddle.add(x, y, name="sum"), torch.add, X, Y),
    "name by position": case(lambda x, y: paddle.hypot(x, y, None), torch.hypot, X, Y),
    "name of a row": case(lambda x: paddle.exp(x, name="e"), torch.exp, X),
    "integers become floats": case(paddle.exp, lambda x: torch.exp(x.float()), I),
    "abs of integers": case(paddle.abs, torch.abs, I),
    "float and integers": case(paddle.add, torch.add, X, I),
    "pow": case(paddle.pow, torch.pow, ABOVE, Y),
    "pow number": case(lambda x: paddle.pow(x, 3), lambda x: x**3, X),
    "number first": case(lambda x: paddle.maximum(0.5, x), lambda x: x.clamp(min=0.5), X),
    "divide of integers": case(paddle.divide, torch.divide, I, J),
    "divide floor": case(
        lambda x, y: paddle.divide(x, y, rounding_mode="floor"),
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        I,
        J,
    ),
    "divide trunc": case(
        lambda x, y: paddle.divide(x, y, rounding_mode="trunc"),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        I,
        J,
    ),
    "divide trunc of floats": case(
        lambda x, y: paddle.divide(x, y, rounding_mode="trunc"),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        X,
        Y,
    ),
    "true_divide": case(paddle.true_divide, torch.true_divide, X, Y),
    "floor_divide number": case(lambda x: paddle.floor_divide(x, 3), lambda x: x // 3, I),
    "mod number": case(lambda x: paddle.mod(x, 3), lambda x: x % 3, I),
    "add_n": case(lambda *xs: paddle.add_n(xs), lambda a, b, c: a + b + c, X, Y, UNIT),
    "add_n of integers": case(lambda *xs: paddle.add_n(xs), lambda a, b: a + b, I, J),
    "clip": case(lambda x: paddle.clip(x, -0.5, 2.0), lambda x: x.clamp(-0.5, 2.0), X - 0.01),
    "clip low": case(lambda x: paddle.clip(x, min=0.5), lambda x: x.clamp(min=0.5), X),
    "clip variable": case(
        lambda x, y: paddle.clip(x, y, 3.0), lambda x, y: torch.minimum(torch.maximum(x, y), torch.tensor(3.0)), X, ROW
    ),
    "clip of integers": case(lambda x: paddle.clip(x, -2, 5), lambda x: x.clamp(-2, 5), I),
    "lerp": case(paddle.lerp, torch.lerp, X, Y, UNIT),
    "lerp number": case(lambda x, y: paddle.lerp(x, y, 0.3), lambda x, y: torch.lerp(x, y, 0.3), X, Y),
    "ldexp": case(paddle.ldexp, lambda x, i: x * 2.0 ** i.float(), X, I),
    "logit": case(lambda x: paddle.logit(x, 1e-3), lambda x: torch.logit(x, 1e-3), np.abs(UNIT)),
    "stanh": case(paddle.stanh, lambda x: 1.7159 * torch.tanh(0.67 * x), X),
    "round decimals": case(lambda x: paddle.round(x, 1), lambda x: torch.round(x, decimals=1), X * 1.234),
    "copysign": case(paddle.copysign, torch.copysign, X, Y),
    "copysign number": case(lambda x: paddle.copysign(x, -2.0), lambda x: torch.copysign(x, -2.0), X),
    "heaviside": case(paddle.heaviside, torch.heaviside, UNIT, Y, differentiable=False),
    "fmax of NaN": case(paddle.fmax, torch.fmax, NAN, NAN[::-1].copy(), differentiable=False),
    "fmin of NaN": case(paddle.fmin, torch.fmin, NAN, NAN[::-1].copy(), differentiable=False),
    "nan_to_num": case(paddle.nan_to_num, torch.nan_to_num, NAN),
    "nan_to_num numbers": case(
        lambda x: paddle.nan_to_num(x, 1.0, 2.0, 3.0),
        lambda x: torch.nan_to_num(x, 1.0, 2.0, 3.0),
        NAN,
    ),
    "positive": case(paddle.positive, torch.positive, X),
    "conj": case(paddle.conj, torch.conj, X),
    "angle": case(paddle.angle, torch.angle, np.append(X, [0, np.nan]).astype(np.float32), differentiable=False),
    "multiplex": case(
        lambda x, y, i: paddle.multiplex([x, y], i),
        lambda x, y, i: torch.stack([x, y])[i[:, 0], torch.arange(2)],
        X,
        Y,
        np.array([[1], [0]]),
    ),
    "increment": case(lambda x: paddle.increment(x, 2.0), lambda x: x + 2, X[:1, :1]),
    "scale": case(lambda x: paddle.scale(x, 2.0, 1.0, False, "tanh"), lambda x: torch.tanh(2 * (x + 1)), X),
    "cast": case(lambda x: paddle.cast(x, "int32"), lambda x: x.int(), X),
}


test_value_and_gradient = family_test(CASES)
