"""Computes element by element. Operands broadcast; integers become float32 where a function makes fractions."""
# ruff: noqa: A001, A002  # Paddle's names

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_float_tensor
from amp_transpiler.paddle.building import (
    Number,
    accept_name,
    as_dtype,
    binary,
    builder_of,
    choice,
    emit,
    floats,
    in_one_type,
    number_or_value,
    overwrite,
    wrap,
)
from amp_transpiler.paddle.tensor.families import of_one, of_two
from amp_transpiler.program.operands import operate
from amp_transpiler.program.program import Variable

__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "add_n",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cast",
    "ceil",
    "clamp",
    "clip",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "deg2rad",
    "div",
    "divide",
    "erf",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "floor_mod",
    "fmax",
    "fmin",
    "frac",
    "heaviside",
    "hypot",
    "increment",
    "ldexp",
    "lerp",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logit",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "multiplex",
    "multiply",
    "nan_to_num",
    "neg",
    "negative",
    "positive",
    "pow",
    "rad2deg",
    "reciprocal",
    "remainder",
    "round",
    "rsqrt",
    "scale",
    "sgn",
    "sigmoid",
    "sign",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "stanh",
    "sub",
    "subtract",
    "tan",
    "tanh",
    "true_divide",
    "trunc",
]

# ---- one operator each ----

abs = of_one("abs", "Abs", "The absolute value.", whole=True)
acos = of_one("acos", "Acos", "The angle in [0, pi] with this cosine.")
acosh = of_one("acosh", "Acosh", "The inverse of `cosh`, not negative.")
asin = of_one("asin", "Asin", "The angle in [-pi / 2, pi / 2] with this sine.")
asinh = of_one("asinh", "Asinh", "The inverse of `sinh`.")
atan = of_one("atan", "Atan", "The angle in [-pi / 2, pi / 2] with this tangent.")
atanh = of_one("atanh", "Atanh", "The inverse of `tanh`.")
ceil = of_one("ceil", "Ceil", "The least whole number that is not below `x`.")
cos = of_one("cos", "Cos", "The cosine.")
cosh = of_one("cosh", "Cosh", "The hyperbolic cosine.")
erf = of_one("erf", "Erf", "The error function.")
exp = of_one("exp", "Exp", "The exponential.")
floor = of_one("floor", "Floor", "The greatest whole number that is not above `x`.")
log = of_one("log", "Log", "The natural logarithm.")
neg = of_one("neg", "Neg", "`-x`.", whole=True)
negative = neg
reciprocal = of_one("reciprocal", "Reciprocal", "`1 / x`.")
sigmoid = of_one("sigmoid", "Sigmoid", "`1 / (1 + exp(-x))`.")
sign = of_one("sign", "Sign", "-1, 0 or 1, as the sign of `x` is.", whole=True)
sgn = sign
sin = of_one("sin", "Sin", "The sine.")
sinh = of_one("sinh", "Sinh", "The hyperbolic sine.")
sqrt = of_one("sqrt", "Sqrt", "The square root.")
tan = of_one("tan", "Tan", "The tangent.")
tanh = of_one("tanh", "Tanh", "The hyperbolic tangent.")

maximum = of_two("maximum", "Max", "The larger of the two; NaN where one of them is.")
minimum = of_two("minimum", "Min", "The smaller of the two; NaN where one of them is.")
multiply = of_two("multiply", "Mul", "`x * y`.")
mul = multiply
pow = of_two("pow", "Pow", "`x ** y`.")


# ---- arithmetic ----


def add(x: Number, y: Number, *, alpha: float = 1) -> Variable:
    """Return `x + alpha * y`."""
    return binary("Add", x, y if alpha == 1 else binary("Mul", y, alpha))


def subtract(x: Number, y: Number, *, alpha: float = 1) -> Variable:
    """Return `x - alpha * y`."""
    return binary("Sub", x, y if alpha == 1 else binary("Mul", y, alpha))


def divide(x: Number, y: Number, *, rounding_mode: str | None = None) -> Variable:
    """Return `x / y`, a fraction for integers too; rounded down with `rounding_mode="floor"`, towards 0 with `"trunc"`.

    Raises:
        OptionError: there is no such rounding mode.
    """
    if rounding_mode is None:
        return binary("Div", x, y)
    choice("divide: rounding_mode", rounding_mode, ("floor", "trunc"))
    if rounding_mode == "floor":
        return floor_divide(x, y)
    quotient = binary("Div", x, y)
    rounded = trunc(quotient)
    return rounded if _has_floats(x, y) else as_dtype(rounded, _whole_type(x, y))


def floor_divide(x: Number, y: Number) -> Variable:
    """Return `x / y` rounded down, exactly for integers."""
    if _has_floats(x, y):
        return emit("Floor", [binary("Div", x, y)])
    remainder = mod(x, y)
    b = builder_of(remainder)
    multiple = binary("Sub", x, remainder)
    divisor = b.cast(y.value, multiple.value.dtype) if isinstance(y, Variable) else b.constant(y, multiple.value.dtype)
    return wrap(multiple, b.op("Div", [multiple.value, divisor]))  # exact: ONNX divides integers as integers


def mod(x: Number, y: Number) -> Variable:
    """Return the remainder of `x / y` rounded down: `x - floor(x / y) * y`, with the sign of `y`."""
    if not _has_floats(x, y):
        return binary("Mod", x, y)
    return binary("Sub", x, binary("Mul", emit("Floor", [binary("Div", x, y)]), y))


def _has_floats(x: Number, y: Number) -> bool:
    return any(
        is_float_tensor(side.value) if isinstance(side, Variable) else np.asarray(side).dtype.kind == "f"
        for side in (x, y)
    )


def _whole_type(x: Number, y: Number) -> ir.DataType | None:
    variables = [side for side in (x, y) if isinstance(side, Variable)]
    return in_one_type(*variables)[0].dtype


def add_n(inputs: Variable | Sequence[Variable]) -> Variable:
    """Return the sum of variables of one shape."""
    variables = [inputs] if isinstance(inputs, Variable) else list(inputs)
    values = in_one_type(*variables)
    b = builder_of(variables[0])
    if is_float_tensor(values[0]):
        return wrap(variables[0], b.op("Sum", values))
    total = values[0]
    for value in values[1:]:
        total = b.add(total, value)
    return wrap(variables[0], total)


def increment(x: Variable, value: float = 1.0) -> Variable:
    """Add `value` to `x`, which is the sum from then on; a persistable `x` of one element keeps it from run to run."""
    now = x.program.updates.get(x.name) if x.persistable else None
    after = as_dtype(binary("Add", x if now is None else Variable(x.program, now), value), x.value.dtype)
    overwrite(x, after)
    return after


def scale(
    x: Variable,
    scale: Variable | float = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
) -> Variable:
    """Return `scale * x + bias`, or `scale * (x + bias)`, with an activation applied if `act` names one.

    Raises:
        OptionError: there is no such activation.
    """
    b, value = builder_of(x), x.value
    if bias and not bias_after_scale:
        value = _scaled(b, "Add", value, bias)
    if isinstance(scale, Variable) or scale != 1:
        value = _scaled(b, "Mul", value, number_or_value(scale))
    if bias and bias_after_scale:
        value = _scaled(b, "Add", value, bias)
    if act is None:
        return wrap(x, value)
    choice("scale: act", act, tuple(_ACTIVATIONS))
    return emit(_ACTIVATIONS[act], [wrap(x, value)])


_ACTIVATIONS = {
    "elu": "Elu",
    "exp": "Exp",
    "gelu": "Gelu",
    "leaky_relu": "LeakyRelu",
    "mish": "Mish",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "softmax": "Softmax",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "tanh": "Tanh",
}


def _scaled(builder: GraphBuilder, op_type: str, value: ir.Value, other: ir.Value | float) -> ir.Value:
    """Append a step of `scale`. Numbers become integers where `x` holds integers, as in Paddle."""
    if is_float_tensor(value) or isinstance(other, ir.Value):
        return operate(builder, op_type, value, other)
    return builder.binary(op_type, value, other)


def cast(x: Variable, dtype: Any) -> Variable:
    """Return `x` cast to an element type, which mixed precision respects, even if `x` has that type now."""
    return x.astype(dtype)


def clip(x: Variable, min: Number | None = None, max: Number | None = None) -> Variable:
    """Return `x` with every element moved into [min, max]; either may be a variable."""
    b = builder_of(x)
    if isinstance(min, Variable) or isinstance(max, Variable):
        result = x if min is None else maximum(x, min)
        return result if max is None else minimum(result, max)
    bounds = [None if bound is None else b.constant(bound, x.value.dtype) for bound in (min, max)]
    return wrap(x, b.op("Clip", [x.value, *bounds]))


clamp = clip


def lerp(x: Variable, y: Variable, weight: Number) -> Variable:
    """Return `x + weight * (y - x)`."""
    return binary("Add", x, binary("Mul", binary("Sub", y, x), weight))


def hypot(x: Variable, y: Variable) -> Variable:
    """Return `sqrt(x^2 + y^2)`, without overflow in between."""
    a, b = emit("Abs", [floats(x)]), emit("Abs", [floats(y)])
    larger = maximum(a, b)
    builder = builder_of(larger)
    divisor = builder.where(builder.compare("Equal", larger.value, 0.0), 1.0, larger.value)
    ratio = wrap(larger, builder.div(minimum(a, b).value, divisor))
    return binary("Mul", larger, sqrt(binary("Add", square(ratio), 1.0)))


def ldexp(x: Variable, y: Variable) -> Variable:
    """Return `x * 2^y`."""
    return binary("Mul", floats(x), binary("Pow", 2.0, floats(y)))


# ---- exponentials and logarithms ----


def expm1(x: Variable) -> Variable:
    """Return `exp(x) - 1`, accurate for small `x` too: `tanh(x / 2) * (exp(x) + 1)`."""
    x = floats(x)
    return binary("Mul", tanh(binary("Mul", x, 0.5)), binary("Add", exp(x), 1.0))


def log1p(x: Variable) -> Variable:
    """Return `log(1 + x)`, accurate for small `x` too.

    There, what `1 + x` loses of `x` by rounding is added, over `1 + x`.
    """
    x = floats(x)
    b = builder_of(x)
    above = b.add(x.value, 1.0)
    lost = b.div(b.sub(x.value, b.sub(above, 1.0)), above)
    small = b.compare("Less", b.op("Abs", [x.value]), 0.5)
    return wrap(x, b.add(b.op("Log", [above]), b.where(small, lost, 0.0)))


def log2(x: Variable) -> Variable:
    """Return the logarithm to base 2."""
    return binary("Mul", log(x), 1 / math.log(2))


def log10(x: Variable) -> Variable:
    """Return the logarithm to base 10."""
    return binary("Mul", log(x), 1 / math.log(10))


def logaddexp(x: Variable, y: Variable) -> Variable:
    """Return `log(exp(x) + exp(y))`, without overflow."""
    return binary("Add", x, emit("Softplus", [binary("Sub", y, x)]))


def logit(x: Variable, eps: float | None = None) -> Variable:
    """Return `log(x / (1 - x))`; with `eps`, `x` is first moved into [eps, 1 - eps]."""
    inside = x if eps is None else clip(x, eps, 1 - eps)
    return log(binary("Div", inside, binary("Sub", 1.0, inside)))


def square(x: Variable) -> Variable:
    """Return `x * x`."""
    return emit("Mul", [x, x])


def rsqrt(x: Variable) -> Variable:
    """Return `1 / sqrt(x)`."""
    return reciprocal(sqrt(x))


def stanh(x: Variable, scale_a: float = 0.67, scale_b: float = 1.7159) -> Variable:
    """Return `scale_b * tanh(scale_a * x)`."""
    return binary("Mul", tanh(binary("Mul", x, scale_a)), scale_b)


# ---- angles ----


def atan2(x: Variable, y: Variable) -> Variable:
    """Return the angle in [-pi, pi] of the point with height `x` and width `y`: atan of `x / y` where `y` > 0."""
    x, y = floats(x), floats(y)
    height, width = in_one_type(x, y)
    b = builder_of(x)
    zero = b.add(b.mul(height, 0.0), b.mul(width, 0.0))  # in the shape of both
    height, width = b.add(height, zero), b.add(width, zero)
    steep = b.compare("Greater", b.op("Abs", [height]), b.op("Abs", [width]))
    divisor = b.where(steep, height, width)
    divisor = b.where(b.compare("Equal", divisor, 0.0), 1.0, divisor)
    angle = b.op("Atan", [b.div(b.where(steep, width, height), divisor)])
    side = b.where(b.compare("Less", height, 0.0), -1.0, b.add(zero, 1.0))
    turned = b.sub(b.mul(side, math.pi / 2), angle)
    behind = b.add(angle, b.where(b.compare("Less", width, 0.0), b.mul(side, math.pi), 0.0))
    return wrap(x, b.where(steep, turned, behind))


def deg2rad(x: Variable) -> Variable:
    """Convert degrees to radians."""
    return binary("Mul", floats(x), math.pi / 180)


def rad2deg(x: Variable) -> Variable:
    """Convert radians to degrees."""
    return binary("Mul", floats(x), 180 / math.pi)


def sinc(x: Variable) -> Variable:
    """Return `sin(pi x) / (pi x)`, 1 at 0."""
    b = builder_of(x)
    angle = b.mul(floats(x).value, math.pi)
    zero = b.compare("Equal", angle, 0.0)
    safe = b.where(zero, 1.0, angle)
    return wrap(x, b.where(zero, 1.0, b.div(b.op("Sin", [safe]), safe)))


# ---- rounding, signs and what is not a number ----


_nearest = of_one("round", "Round", "The nearest whole number; halves go to the even one.")


def round(x: Variable, decimals: int = 0) -> Variable:
    """Round to the nearest whole number, or to so many decimals; halves go to the even one."""
    if not decimals:
        return _nearest(x)
    factor = 10.0**decimals
    return binary("Div", _nearest(binary("Mul", floats(x), factor)), factor)


def trunc(input: Variable) -> Variable:
    """Return `input` rounded towards 0."""
    if not is_float_tensor(input.value):
        return input
    return emit("Mul", [emit("Sign", [input]), emit("Floor", [emit("Abs", [input])])])


def frac(x: Variable) -> Variable:
    """Return `x - trunc(x)`, which has the sign of `x`."""
    return binary("Sub", x, trunc(x))


def positive(x: Variable) -> Variable:
    """Return `x`."""
    return x


def copysign(x: Variable, y: Number) -> Variable:
    """Return `|x|` with the sign of `y`, which counts as positive where it is 0."""
    b = builder_of(x)
    size = emit("Abs", [floats(x)])
    other = y.value if isinstance(y, Variable) else b.constant(y, size.value.dtype)
    sign_of = b.where(b.compare("Less", other, 0), b.constant(-1.0, size.value.dtype), 1.0)
    return wrap(x, b.mul(size.value, sign_of))


def heaviside(x: Variable, y: Variable) -> Variable:
    """Return 0 where `x` is negative, `y` where it is 0, 1 where it is positive."""
    a, b = in_one_type(x, y)
    builder = builder_of(x)
    step = builder.cast(builder.compare("Greater", a, 0), b.dtype)
    return wrap(x, builder.where(builder.compare("Equal", a, 0), b, step))


def fmax(x: Variable, y: Variable) -> Variable:
    """Return the larger of the two; where one of them is NaN, the other."""
    return _besides_nan("Max", x, y)


def fmin(x: Variable, y: Variable) -> Variable:
    """Return the smaller of the two; where one of them is NaN, the other."""
    return _besides_nan("Min", x, y)


def _besides_nan(op_type: str, x: Variable, y: Variable) -> Variable:
    a, b = in_one_type(x, y)
    builder = builder_of(x)
    if is_float_tensor(a):
        missing = [builder.op("IsNaN", [value]) for value in (a, b)]
        a, b = builder.where(missing[0], b, a), builder.where(missing[1], a, b)
    return wrap(x, builder.op(op_type, [a, b]))


def nan_to_num(x: Variable, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Variable:
    """Return `x` with numbers for NaN and infinities: those given, or the largest and the lowest of its type."""
    b, value = builder_of(x), x.value
    if not is_float_tensor(value) or value.dtype is None:
        return x
    limits = ir.DataType.numpy(value.dtype)
    largest = float(_finfo(limits).max)
    bounds = {(1, 0): largest if posinf is None else posinf, (0, 1): -largest if neginf is None else neginf}
    result = b.where(b.op("IsNaN", [value]), nan, value)
    for (up, down), number in bounds.items():
        infinite = b.op("IsInf", [value], {"detect_positive": up, "detect_negative": down})
        result = b.where(infinite, number, result)
    return wrap(x, result)


def _finfo(dtype: np.dtype) -> Any:
    import ml_dtypes  # beside numpy's own floats it knows bfloat16

    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # it has no types


def multiplex(inputs: Sequence[Variable], index: Variable) -> Variable:
    """Pick row i from `inputs[index[i]]`; `index` is a column of integers."""
    values = in_one_type(*inputs)
    b = builder_of(*inputs, index)
    rank = inputs[0].ndim
    chosen = b.reshape(index.value, [-1, *[1] * (rank - 1)])
    result = values[0]
    for number, value in enumerate(values[1:], 1):
        result = b.where(b.compare("Equal", chosen, number), value, result)
    return wrap(inputs[0], result)


def true_divide(input: Variable, other: Number) -> Variable:
    """Return `input / other`."""
    return binary("Div", input, other)


div = divide
sub = subtract
remainder = mod
floor_mod = mod


def conj(x: Variable) -> Variable:
    """Return `x`: numbers are real here."""
    return emit("Identity", [x])


def angle(x: Variable) -> Variable:
    """Return 0 where `x` is positive or 0, pi where it is negative: numbers are real here."""
    b, operand = builder_of(x), floats(x)
    turned = b.mul(b.cast(b.compare("Less", operand.value, 0.0), operand.value.dtype), math.pi)
    return wrap(x, b.where(b.op("IsNaN", [operand.value]), operand.value, turned))


accept_name(globals(), __all__)
