"""Offers activation functions as layers."""

from __future__ import annotations

from typing import Any

from amp_transpiler.errors import InputError
from amp_transpiler.paddle.initial_values import Constant
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.nn.layer.base import Layer
from amp_transpiler.paddle.nn.layer.function_layer import FunctionLayer
from amp_transpiler.paddle.param_attr import Attr
from amp_transpiler.program.program import Variable

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Maxout",
    "Mish",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Silu",
    "Softmax",
    "Softmax2D",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Swish",
    "Tanh",
    "Tanhshrink",
    "ThresholdedReLU",
]


class CELU(FunctionLayer):
    """The exponential linear unit whose slope is continuous: `functional.celu`."""

    function = "celu"


class ELU(FunctionLayer):
    """The exponential linear unit: `functional.elu`."""

    function = "elu"


class GELU(FunctionLayer):
    """The Gaussian error linear unit: `functional.gelu`."""

    function = "gelu"


class GLU(FunctionLayer):
    """One half along an axis times the sigmoid of the other: `functional.glu`."""

    function = "glu"


class Hardshrink(FunctionLayer):
    """The input where its size is above a threshold, else 0: `functional.hardshrink`."""

    function = "hardshrink"


class Hardsigmoid(FunctionLayer):
    """A sigmoid of three straight pieces: `functional.hardsigmoid`."""

    function = "hardsigmoid"


class Hardswish(FunctionLayer):
    """A swish of straight pieces: `functional.hardswish`."""

    function = "hardswish"


class Hardtanh(FunctionLayer):
    """The input moved into [min, max]: `functional.hardtanh`."""

    function = "hardtanh"


class LeakyReLU(FunctionLayer):
    """The input, times a slope where it is negative: `functional.leaky_relu`."""

    function = "leaky_relu"


class LogSigmoid(FunctionLayer):
    """The logarithm of the sigmoid: `functional.log_sigmoid`."""

    function = "log_sigmoid"


class LogSoftmax(FunctionLayer):
    """The logarithm of the softmax: `functional.log_softmax`."""

    function = "log_softmax"


class Maxout(FunctionLayer):
    """The largest of each group of channels: `functional.maxout`."""

    function = "maxout"


class Mish(FunctionLayer):
    """The input times the tanh of its softplus: `functional.mish`."""

    function = "mish"


class ReLU(FunctionLayer):
    """The input where it is positive, else 0: `functional.relu`."""

    function = "relu"


class ReLU6(FunctionLayer):
    """The input moved into [0, 6]: `functional.relu6`."""

    function = "relu6"


class RReLU(FunctionLayer):
    """A leaky ReLU whose slope is drawn at random in training: `functional.rrelu`."""

    function = "rrelu"


class SELU(FunctionLayer):
    """The scaled exponential linear unit: `functional.selu`."""

    function = "selu"


class Sigmoid(FunctionLayer):
    """The sigmoid: `functional.sigmoid`."""

    function = "sigmoid"


class Silu(FunctionLayer):
    """The input times its sigmoid: `functional.silu`."""

    function = "silu"


class Softmax(FunctionLayer):
    """Shares that add up to 1 along an axis: `functional.softmax`."""

    function = "softmax"


class Softplus(FunctionLayer):
    """A smooth ReLU: `functional.softplus`."""

    function = "softplus"


class Softshrink(FunctionLayer):
    """The input moved towards 0 by a threshold: `functional.softshrink`."""

    function = "softshrink"


class Softsign(FunctionLayer):
    """`x / (1 + |x|)`: `functional.softsign`."""

    function = "softsign"


class Swish(FunctionLayer):
    """The input times its sigmoid: `functional.swish`."""

    function = "swish"


class Tanh(FunctionLayer):
    """The hyperbolic tangent: `functional.tanh`."""

    function = "tanh"


class Tanhshrink(FunctionLayer):
    """The input minus its tanh: `functional.tanhshrink`."""

    function = "tanhshrink"


class ThresholdedReLU(FunctionLayer):
    """The input where it is above a threshold: `functional.thresholded_relu`."""

    function = "thresholded_relu"


SiLU = Silu


class Softmax2D(FunctionLayer):
    """Shares that add up to 1 over the channels of each pixel: `functional.softmax`."""

    function = "softmax"
    fixed = {"axis": -3}  # noqa: RUF012  # never changed

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            InputError: the input is no image, [batch, channels, height, width] or [channels, height, width].
        """
        if inputs[0].ndim not in (3, 4):
            raise InputError(f"Softmax2D takes three or four dimensions, got {inputs[0]!r}")
        return super().forward(*inputs, **kwargs)


class PReLU(Layer):
    """The input, times a slope that is trained where it is negative.

    Args:
        num_parameters: 1 for one slope, or the number of channels for one each.
        init: where the slope starts.
        weight_attr: of the slope.
        data_format: where the channels are.
        name: Paddle's, no effect.
    """

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        weight_attr: Attr = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        del name
        super().__init__()
        self._data_format = data_format
        self.weight = self._weight([num_parameters], weight_attr, Constant(init))

    def forward(self, x: Variable) -> Variable:
        """Return the activation of `x`."""
        return functional.prelu(x, self.weight, self._data_format)
