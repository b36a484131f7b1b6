"""Offers pooling as layers."""

from __future__ import annotations

from amp_transpiler.paddle.nn.layer.function_layer import FunctionLayer

__all__ = [
    "AdaptiveAvgPool1D",
    "AdaptiveAvgPool2D",
    "AdaptiveAvgPool3D",
    "AdaptiveMaxPool1D",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2D",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3D",
    "AdaptiveMaxPool3d",
    "AvgPool1D",
    "AvgPool2D",
    "AvgPool3D",
    "FractionalMaxPool2D",
    "FractionalMaxPool3D",
    "LPPool1D",
    "LPPool1d",
    "LPPool2D",
    "LPPool2d",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "MaxUnPool1D",
    "MaxUnPool2D",
    "MaxUnPool3D",
]


class AdaptiveAvgPool1D(FunctionLayer):
    """Averages as many parts of a sequence as the result is long: `functional.adaptive_avg_pool1d`."""

    function = "adaptive_avg_pool1d"


class AdaptiveAvgPool2D(FunctionLayer):
    """Averages as many parts of an image as the result has pixels: `functional.adaptive_avg_pool2d`."""

    function = "adaptive_avg_pool2d"


class AdaptiveAvgPool3D(FunctionLayer):
    """Averages as many parts of a volume as the result has voxels: `functional.adaptive_avg_pool3d`."""

    function = "adaptive_avg_pool3d"


class AdaptiveMaxPool1D(FunctionLayer):
    """Takes the largest value of each of as many parts of a sequence as the result is long."""

    function = "adaptive_max_pool1d"


class AdaptiveMaxPool2D(FunctionLayer):
    """Takes the largest value of each of as many parts of an image as the result has pixels."""

    function = "adaptive_max_pool2d"


class AdaptiveMaxPool3D(FunctionLayer):
    """Takes the largest value of each of as many parts of a volume as the result has voxels."""

    function = "adaptive_max_pool3d"


class AvgPool1D(FunctionLayer):
    """Averages over windows of a sequence: `functional.avg_pool1d`."""

    function = "avg_pool1d"


class AvgPool2D(FunctionLayer):
    """Averages over windows of an image: `functional.avg_pool2d`."""

    function = "avg_pool2d"


class AvgPool3D(FunctionLayer):
    """Averages over windows of a volume: `functional.avg_pool3d`."""

    function = "avg_pool3d"


class LPPool1D(FunctionLayer):
    """Computes norms over windows of a sequence: `functional.lp_pool1d`."""

    function = "lp_pool1d"


class LPPool2D(FunctionLayer):
    """Computes norms over windows of an image: `functional.lp_pool2d`."""

    function = "lp_pool2d"


class MaxPool1D(FunctionLayer):
    """Takes the largest values of windows of a sequence: `functional.max_pool1d`."""

    function = "max_pool1d"


class MaxPool2D(FunctionLayer):
    """Takes the largest values of windows of an image: `functional.max_pool2d`."""

    function = "max_pool2d"


class MaxPool3D(FunctionLayer):
    """Takes the largest values of windows of a volume: `functional.max_pool3d`."""

    function = "max_pool3d"


class MaxUnPool1D(FunctionLayer):
    """Puts values back where `MaxPool1D` took them from; called with values and indices: `functional.max_unpool1d`."""

    function = "max_unpool1d"
    tensors = 2


class MaxUnPool2D(FunctionLayer):
    """Puts values back where `MaxPool2D` took them from; called with values and indices: `functional.max_unpool2d`."""

    function = "max_unpool2d"
    tensors = 2


class MaxUnPool3D(FunctionLayer):
    """Puts values back where `MaxPool3D` took them from; called with values and indices: `functional.max_unpool3d`."""

    function = "max_unpool3d"
    tensors = 2


class FractionalMaxPool2D(FunctionLayer):
    """Takes the largest values of windows of uneven sizes of an image: `functional.fractional_max_pool2d`."""

    function = "fractional_max_pool2d"


class FractionalMaxPool3D(FunctionLayer):
    """Takes the largest values of windows of uneven sizes of a volume: `functional.fractional_max_pool3d`."""

    function = "fractional_max_pool3d"


AdaptiveMaxPool1d = AdaptiveMaxPool1D
AdaptiveMaxPool2d = AdaptiveMaxPool2D
AdaptiveMaxPool3d = AdaptiveMaxPool3D
LPPool1d = LPPool1D
LPPool2d = LPPool2D
