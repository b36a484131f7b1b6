"""Offers convolutions as layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import choice, numbers
from amp_transpiler.paddle.initial_values import Normal
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.nn.functional import conv
from amp_transpiler.paddle.nn.functional.layout import Padding
from amp_transpiler.paddle.nn.layer.base import Layer
from amp_transpiler.paddle.param_attr import Attr
from amp_transpiler.program.program import Variable

__all__ = [
    "Conv1D",
    "Conv1DTranspose",
    "Conv1d",
    "Conv2D",
    "Conv2DTranspose",
    "Conv2d",
    "Conv3D",
    "Conv3DTranspose",
    "Conv3d",
]

Size = int | Sequence[int]
_LAYOUTS = {1: "NCL", 2: "NCHW", 3: "NCDHW"}
_FUNCTIONS: Mapping[int, Callable[..., Variable]] = {1: conv.conv1d, 2: conv.conv2d, 3: conv.conv3d}
_TRANSPOSED: Mapping[int, Callable[..., Variable]] = {
    1: conv.conv1d_transpose,
    2: conv.conv2d_transpose,
    3: conv.conv3d_transpose,
}


class _Conv(Layer):
    """A convolution that has its filters.

    Attributes:
        spatial: the number of spatial axes.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the result.
        kernel_size: the size of the filters.
        stride: step of the window.
        padding: what is added around the input.
        dilation: distance between the elements of the window.
        groups: channels and filters are split into this many groups.
        padding_mode: `zeros`, or what is added instead: `reflect`, `replicate` or `circular`.
        weight_attr: of the filters, [out, in / groups, ...]; normal initial values of variance 2 / (window * in).
        bias_attr: of the bias, [out]; starts at 0; False for none.
        data_format: where the channels are.

    Raises:
        OptionError: groups do not divide the channels, or there is no such padding mode.
    """

    spatial: ClassVar[int] = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Padding = 0,
        dilation: Size = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        data_format: str | None = None,
    ) -> None:
        super().__init__()
        label = type(self).__name__
        window = numbers(kernel_size, self.spatial, f"{label}: kernel_size")
        _check_groups(label, in_channels, out_channels, groups)
        choice(f"{label}: padding_mode", padding_mode, ("zeros", "reflect", "replicate", "circular"))
        self._function = _FUNCTIONS[self.spatial]
        self._settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        self._format = data_format or _LAYOUTS[self.spatial]
        self._padded: tuple[list[int], str] | None = None
        if padding_mode != "zeros":
            if isinstance(padding, str):
                raise OptionError(f"{label}: padding_mode {padding_mode!r} needs padding as numbers, got {padding!r}")
            sizes = numbers(padding, self.spatial, f"{label}: padding")  # type: ignore[arg-type]  # it checks
            self._padded = [size for size in reversed(sizes) for _ in range(2)], padding_mode
            self._settings["padding"] = 0
        initial = Normal(0.0, math.sqrt(2.0 / (math.prod(window) * in_channels)))
        self.weight = self._weight([out_channels, in_channels // groups, *window], weight_attr, initial)
        self.bias = self.create_parameter([out_channels], bias_attr, is_bias=True)

    def forward(self, x: Variable) -> Variable:
        """Return the convolution of `x`."""
        if self._padded is not None:
            pads, mode = self._padded
            x = functional.pad(x, pads, mode=mode, data_format=self._format)
        result: Variable = self._function(x, self.weight, self.bias, data_format=self._format, **self._settings)
        return result

    def extra_repr(self) -> str:
        """Return the shape of the filters and the settings."""
        return f"{list(self.weight.shape)}, {', '.join(f'{name}={value}' for name, value in self._settings.items())}"


class Conv1D(_Conv):
    """A convolution of sequences; `conv1d_0.w_0` and `.b_0`. The arguments are described at `Conv2D`'s base."""

    spatial = 1


class Conv2D(_Conv):
    """A convolution of images; `conv2d_0.w_0` and `.b_0`. The arguments are described at its base."""

    spatial = 2


class Conv3D(_Conv):
    """A convolution of volumes; `conv3d_0.w_0` and `.b_0`. The arguments are described at `Conv2D`'s base."""

    spatial = 3


class _ConvTranspose(Layer):
    """A transposed convolution that has its filters.

    Attributes:
        spatial: the number of spatial axes.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the result.
        kernel_size: the size of the filters.
        stride: step of the window in the result.
        padding: how much is cut off around the result.
        output_padding: how much is added at the end of each axis.
        dilation: distance between the elements of the window.
        groups: channels and filters are split into this many groups.
        weight_attr: of the filters, [in, out / groups, ...]; starts with Xavier's uniform values.
        bias_attr: of the bias, [out]; starts at 0; False for none.
        data_format: where the channels are.

    Raises:
        OptionError: groups do not divide the channels.
    """

    spatial: ClassVar[int] = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Padding = 0,
        output_padding: Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        data_format: str | None = None,
    ) -> None:
        super().__init__()
        label = type(self).__name__
        window = numbers(kernel_size, self.spatial, f"{label}: kernel_size")
        _check_groups(label, in_channels, out_channels, groups)
        self._function = _TRANSPOSED[self.spatial]
        self._output_padding = output_padding
        self._settings: dict[str, Any] = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "data_format": data_format or _LAYOUTS[self.spatial],
        }
        self.weight = self._weight([in_channels, out_channels // groups, *window], weight_attr)
        self.bias = self.create_parameter([out_channels], bias_attr, is_bias=True)

    def forward(self, x: Variable, output_size: Size | None = None) -> Variable:
        """Return the transposed convolution of `x`, of `output_size` if that is given."""
        extra = {"output_padding": self._output_padding} if output_size is None else {"output_size": output_size}
        result: Variable = self._function(x, self.weight, self.bias, **self._settings, **extra)
        return result


class Conv1DTranspose(_ConvTranspose):
    """A transposed convolution of sequences; `groups` comes before `dilation`. See the base of `Conv2DTranspose`."""

    spatial = 1

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Padding = 0,
        output_padding: Size = 0,
        groups: int = 1,
        dilation: Size = 1,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        data_format: str = "NCL",
    ) -> None:
        sizes = (in_channels, out_channels, kernel_size)
        attributes = (weight_attr, bias_attr, data_format)
        super().__init__(*sizes, stride, padding, output_padding, dilation, groups, *attributes)


class Conv2DTranspose(_ConvTranspose):
    """A transposed convolution of images. The arguments are described at its base."""

    spatial = 2


class Conv3DTranspose(_ConvTranspose):
    """A transposed convolution of volumes. The arguments are described at the base of `Conv2DTranspose`."""

    spatial = 3


Conv1d, Conv2d, Conv3d = Conv1D, Conv2D, Conv3D


def _check_groups(label: str, channels: int, filters: int, groups: int) -> None:
    if groups < 1 or channels % groups or filters % groups:
        raise OptionError(f"{label}: {channels} channels and {filters} filters cannot be split into {groups} groups")


check_arguments(globals(), __all__)
