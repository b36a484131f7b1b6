"""Offers padding as layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import numbers
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.nn.layer.base import Layer
from amp_transpiler.program.program import Variable

__all__ = [
    "CircularPad1D",
    "CircularPad1d",
    "CircularPad2D",
    "CircularPad2d",
    "CircularPad3D",
    "CircularPad3d",
    "ConstantPad1D",
    "ConstantPad1d",
    "ConstantPad2D",
    "ConstantPad2d",
    "ConstantPad3D",
    "ConstantPad3d",
    "Pad1D",
    "Pad2D",
    "Pad3D",
    "ReflectionPad1D",
    "ReflectionPad1d",
    "ReflectionPad2D",
    "ReflectionPad2d",
    "ReflectionPad3D",
    "ReflectionPad3d",
    "ReplicationPad1D",
    "ReplicationPad1d",
    "ReplicationPad2D",
    "ReplicationPad2d",
    "ReplicationPad3D",
    "ReplicationPad3d",
    "ZeroPad1D",
    "ZeroPad2D",
    "ZeroPad3D",
]


class _Pad(Layer):
    """Calls `functional.pad` on the spatial axes.

    Attributes:
        spatial: how many there are.
        layout: the layout unless another is given.
        mode: what is added unless another way is given.
        takes: the settings besides the padding, in Paddle's order.

    Args:
        padding: how much: one number, or two for each spatial axis, the last axis first.
        settings: the settings by position.
        data_format: the layout.
        name: Paddle's, no effect.
        named: the settings by name.

    Raises:
        OptionError: a setting that the layer does not have.
    """

    spatial: ClassVar[int] = 0
    layout: ClassVar[str] = ""
    mode: ClassVar[str] = "constant"
    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        padding: int | Sequence[int],
        *settings: Any,
        data_format: str | None = None,
        name: str | None = None,
        **named: Any,
    ) -> None:
        del name
        super().__init__()
        accepted = (*self.takes, "data_format")
        chosen = {"data_format": data_format or self.layout, **dict(zip(accepted, settings, strict=False)), **named}
        if len(settings) > len(accepted) or set(chosen) - set(accepted):
            raise OptionError(f"{type(self).__name__} takes padding, {', '.join(accepted)}; got {[*settings, *named]}")
        self._pad = numbers(padding, 2 * self.spatial, f"{type(self).__name__}: padding")
        self._settings = {"mode": self.mode, **chosen}

    def forward(self, x: Variable) -> Variable:
        """Return `x`, padded."""
        return functional.pad(x, self._pad, **self._settings)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"padding={self._pad}, {', '.join(f'{name}={value!r}' for name, value in self._settings.items())}"


class Pad1D(_Pad):
    """Adds values around sequences."""

    spatial, layout = 1, "NCL"
    takes = ("mode", "value")


class Pad2D(_Pad):
    """Adds values around images."""

    spatial, layout = 2, "NCHW"
    takes = ("mode", "value")


class Pad3D(_Pad):
    """Adds values around volumes."""

    spatial, layout = 3, "NCDHW"
    takes = ("mode", "value")


class ConstantPad1D(_Pad):
    """Adds one number around sequences."""

    spatial, layout = 1, "NCL"
    mode = "constant"
    takes = ("value",)


class ConstantPad2D(_Pad):
    """Adds one number around images."""

    spatial, layout = 2, "NCHW"
    mode = "constant"
    takes = ("value",)


class ConstantPad3D(_Pad):
    """Adds one number around volumes."""

    spatial, layout = 3, "NCDHW"
    mode = "constant"
    takes = ("value",)


class ReplicationPad1D(_Pad):
    """Repeats the nearest value around sequences."""

    spatial, layout = 1, "NCL"
    mode = "replicate"


class ReplicationPad2D(_Pad):
    """Repeats the nearest value around images."""

    spatial, layout = 2, "NCHW"
    mode = "replicate"


class ReplicationPad3D(_Pad):
    """Repeats the nearest value around volumes."""

    spatial, layout = 3, "NCDHW"
    mode = "replicate"


class ReflectionPad1D(_Pad):
    """Mirrors values around sequences."""

    spatial, layout = 1, "NCL"
    mode = "reflect"


class ReflectionPad2D(_Pad):
    """Mirrors values around images."""

    spatial, layout = 2, "NCHW"
    mode = "reflect"


class ReflectionPad3D(_Pad):
    """Mirrors values around volumes."""

    spatial, layout = 3, "NCDHW"
    mode = "reflect"


class CircularPad1D(_Pad):
    """Adds values of the other end around sequences."""

    spatial, layout = 1, "NCL"
    mode = "circular"


class CircularPad2D(_Pad):
    """Adds values of the other end around images."""

    spatial, layout = 2, "NCHW"
    mode = "circular"


class CircularPad3D(_Pad):
    """Adds values of the other end around volumes."""

    spatial, layout = 3, "NCDHW"
    mode = "circular"


class ZeroPad1D(_Pad):
    """Adds zeros around sequences."""

    spatial, layout = 1, "NCL"
    mode = "constant"


class ZeroPad2D(_Pad):
    """Adds zeros around images."""

    spatial, layout = 2, "NCHW"
    mode = "constant"


class ZeroPad3D(_Pad):
    """Adds zeros around volumes."""

    spatial, layout = 3, "NCDHW"
    mode = "constant"


ConstantPad1d = ConstantPad1D
ConstantPad2d = ConstantPad2D
ConstantPad3d = ConstantPad3D
ReplicationPad1d = ReplicationPad1D
ReplicationPad2d = ReplicationPad2D
ReplicationPad3d = ReplicationPad3D
ReflectionPad1d = ReflectionPad1D
ReflectionPad2d = ReflectionPad2D
ReflectionPad3d = ReflectionPad3D
CircularPad1d = CircularPad1D
CircularPad2d = CircularPad2D
CircularPad3d = CircularPad3D


check_arguments(globals(), __all__)
