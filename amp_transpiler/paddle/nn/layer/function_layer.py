"""Defines `FunctionLayer`: a layer without parameters that calls a function of `nn.functional` with its settings."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.nn.layer.base import Layer

__all__ = ["FunctionLayer", "find_function"]

_NOT_SETTINGS = ("training", "name")


class FunctionLayer(Layer):
    """A function of `nn.functional` as a layer: made with its settings, called with its tensors.

    The settings are the function's arguments behind the tensors, in the same order and with the same defaults. A
    function that takes `training` is told whether the layer is built for training.

    Attributes:
        function: the function's name.
        tensors: how many of its arguments are tensors.
        order: names of the settings in the order of Paddle's layer, where it differs from the function's.
        fixed: settings that the layer chooses itself.
        defaults: settings whose default differs from the function's.

    Args:
        settings: the settings by position.
        name: Paddle's, no effect.
        named: the settings by name.

    Raises:
        OptionError: the function has no such setting.
    """

    function: ClassVar[str] = ""
    tensors: ClassVar[int] = 1
    order: ClassVar[tuple[str, ...]] = ()
    fixed: ClassVar[dict[str, Any]] = {}
    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, *settings: Any, name: str | None = None, **named: Any) -> None:
        del name
        super().__init__()
        label = type(self).__name__
        parameters = list(_signature(self.function).parameters.values())[self.tensors :]
        names = [parameter.name for parameter in parameters if parameter.name not in (*_NOT_SETTINGS, *self.fixed)]
        accepted = list(self.order) or names
        if len(settings) > len(accepted):
            raise OptionError(f"{label} takes {', '.join(accepted) or 'no settings'}; got {len(settings)} by position")
        by_position = dict(zip(accepted, settings, strict=False))
        if wrong := sorted(key for key in named if key not in {*accepted, *names} or key in by_position):
            taken = ", ".join(accepted) or "none"
            raise OptionError(f"{label}: unknown or repeated {', '.join(wrong)}; it takes {taken}")
        self._settings = {**self.defaults, **by_position, **named, **self.fixed}
        missing = [
            parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty and parameter.name not in self._settings
        ]
        if missing:
            raise OptionError(f"{label} needs {', '.join(missing)}")
        self._takes_training = any(parameter.name == "training" for parameter in parameters)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the function."""
        settings = {**self._settings, **kwargs}
        if self._takes_training:
            settings["training"] = self.training
        return find_function(self.function)(*inputs, **settings)

    def extra_repr(self) -> str:
        """Return the settings that were given."""
        return ", ".join(f"{name}={value!r}" for name, value in self._settings.items())


def find_function(name: str) -> Any:
    """Return a function of `nn.functional`.

    Raises:
        OptionError: there is none of this name.
    """
    function = getattr(functional, name, None)
    if function is None:
        raise OptionError(f"this layer needs nn.functional.{name}, which this version does not have")
    return function


def _signature(name: str) -> inspect.Signature:
    return inspect.signature(find_function(name))
