"""Builds further layers that create their parameters: bilinear products, spectral norms, convolutions of rows."""
# ruff: noqa: A002  # Paddle's argument names

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import builder_of, program_of, size_at, wrap
from amp_transpiler.paddle.framework.parameters import ParameterMaker
from amp_transpiler.paddle.initial_values import Initializer, XavierUniform
from amp_transpiler.paddle.nn.functional.activation import activate
from amp_transpiler.paddle.nn.layer.norm import SpectralNorm
from amp_transpiler.paddle.param_attr import Attr
from amp_transpiler.program.program import Variable

__all__ = ["bilinear_tensor_product", "row_conv", "spectral_norm"]


def bilinear_tensor_product(
    x: Variable,
    y: Variable,
    size: int,
    act: str | None = None,
    name: str | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
) -> Variable:
    """Return `x @ weight[i] @ y + bias[i]` for each of `size` features.

    Args:
        x: [batch, features].
        y: [batch, features].
        size: features of the result.
        act: an activation.
        name: the layer's name instead of `bilinear_tensor_product_0`.
        param_attr: of the weight `.w_0`, [size, features of x, features of y].
        bias_attr: of the bias `.b_0`, [1, size]; False for none.
    """
    what = "bilinear_tensor_product"
    maker = ParameterMaker(what, name, program_of(x, y))
    shape = [size, size_at(x, 1, what), size_at(y, 1, what)]
    weight = _weight(maker, what, param_attr, shape, x, XavierUniform())
    bias = maker.bias(bias_attr, [1, size], x.value.dtype)
    b = builder_of(x, y)
    value = b.op("Einsum", [x.value, weight.value, y.value], {"equation": "bi,oij,bj->bo"})
    return activate(wrap(x, value if bias is None else b.add(value, bias.value)), act)


def spectral_norm(
    weight: Variable, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, name: str | None = None
) -> Variable:
    """Return a weight over its largest singular value; see `nn.SpectralNorm`."""
    del name
    result: Variable = SpectralNorm(weight.shape, dim, power_iters, eps)(weight)
    return result


def row_conv(input: Variable, future_context_size: int, param_attr: Attr = None, act: str | None = None) -> Variable:
    """Weigh each step of a sequence with those that follow it, feature by feature.

    Args:
        input: [batch, length, features].
        future_context_size: how many following steps count.
        param_attr: of the weight `row_conv_0.w_0`, [future_context_size + 1, features].
        act: an activation.

    Raises:
        InputError: `input` does not have three dimensions.
    """
    if input.ndim != 3:
        raise InputError(f"row_conv takes [batch, length, features], got {input!r}")
    size, count = size_at(input, 2, "row_conv"), future_context_size + 1
    maker = ParameterMaker("row_conv", None, program_of(input))
    weight = _weight(maker, "row_conv", param_attr, [count, size], input, XavierUniform())
    b = builder_of(input)
    pads = b.constant([0, 0, 0, 0, future_context_size, 0])
    padded = b.transpose(b.op("Pad", [input.value, pads]), [0, 2, 1])
    filters = b.unsqueeze(b.transpose(weight.value, [1, 0]), [1])
    convolved: ir.Value = b.op("Conv", [padded, filters], {"group": size})
    return activate(wrap(input, b.transpose(convolved, [0, 2, 1])), act)


def _weight(
    maker: ParameterMaker, what: str, attr: Attr, shape: Sequence[int], like: Variable, initial: Initializer
) -> Variable:
    weight = maker.weight(attr, shape, like.value.dtype, initial)
    if weight is None:
        raise OptionError(f"{what}: the layer needs its weight: give None or a ParamAttr, not False")
    return weight


check_arguments(globals(), __all__)
