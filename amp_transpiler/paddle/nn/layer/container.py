"""Holds layers or parameters: `Sequential`, `LayerList`, `LayerDict`, `ParameterList`, `ParameterDict`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from amp_transpiler.errors import InputError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.nn.layer.base import Layer
from amp_transpiler.program.program import Variable

__all__ = ["LayerDict", "LayerList", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


class Sequential(Layer):
    """Calls layers one after the other.

    Args:
        layers: layers, or (name, layer) pairs, or one list of them.
    """

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        items = layers[0] if len(layers) == 1 and _is_list(layers[0]) else layers
        for number, item in enumerate(items):
            name, layer = item if isinstance(item, (tuple, list)) else (str(number), item)
            self.add_sublayer(str(name), layer)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return what the last layer makes."""
        for layer in self.children():
            inputs = (layer(*inputs, **kwargs),)
            kwargs = {}
        return inputs[0]

    def __getitem__(self, index: int | slice | str) -> Any:
        if isinstance(index, str):
            return self._sub_layers[index]
        chosen = list(self.children())[index]
        return Sequential(*chosen) if isinstance(chosen, list) else chosen

    def __setitem__(self, index: int | str, layer: Layer) -> None:
        name = index if isinstance(index, str) else list(self._sub_layers)[index]
        self.add_sublayer(name, layer)

    def __delitem__(self, index: int | str) -> None:
        del self._sub_layers[index if isinstance(index, str) else list(self._sub_layers)[index]]

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[Layer]:
        return self.children()


def _is_list(item: Any) -> bool:
    """Whether it is a list of layers, and not a layer or one (name, layer) pair."""
    return isinstance(item, (list, tuple)) and not (len(item) == 2 and isinstance(item[0], str))


class LayerList(Layer):
    """Holds layers in a list.

    Args:
        sublayers: the first ones.
    """

    def __init__(self, sublayers: Iterable[Layer] | None = None) -> None:
        super().__init__()
        self.extend(sublayers or ())

    def __getitem__(self, index: int | slice) -> Any:
        chosen = list(self.children())[index]
        return LayerList(chosen) if isinstance(chosen, list) else chosen

    def __setitem__(self, index: int, layer: Layer) -> None:
        self.add_sublayer(str(range(len(self))[index]), layer)

    def __delitem__(self, index: int | slice) -> None:
        layers = list(self.children())
        del layers[index]
        self._sub_layers.clear()
        self.extend(layers)

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[Layer]:
        return self.children()

    def append(self, sublayer: Layer) -> Self:
        """Add a layer at the end."""
        self.add_sublayer(str(len(self)), sublayer)
        return self

    def insert(self, index: int, sublayer: Layer) -> None:
        """Add a layer before the one at `index`."""
        layers = list(self.children())
        layers.insert(index, sublayer)
        self._sub_layers.clear()
        self.extend(layers)

    def extend(self, sublayers: Iterable[Layer]) -> Self:
        """Add several layers at the end."""
        for layer in sublayers:
            self.append(layer)
        return self


class LayerDict(Layer):
    """Holds layers by name.

    Args:
        sublayers: a dictionary, or (name, layer) pairs.
    """

    def __init__(self, sublayers: Mapping[str, Layer] | Iterable[tuple[str, Layer]] | None = None) -> None:
        super().__init__()
        self.update(sublayers or ())

    def __getitem__(self, key: str) -> Layer:
        layer: Layer = self._sub_layers[key]
        return layer

    def __setitem__(self, key: str, layer: Layer) -> None:
        self.add_sublayer(key, layer)

    def __delitem__(self, key: str) -> None:
        del self._sub_layers[key]

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sub_layers)

    def __contains__(self, key: str) -> bool:
        return key in self._sub_layers

    def keys(self) -> Iterable[str]:
        """Return the names."""
        return self._sub_layers.keys()

    def values(self) -> Iterable[Layer]:
        """Return the layers."""
        return self._sub_layers.values()

    def items(self) -> Iterable[tuple[str, Layer]]:
        """Return (name, layer) pairs."""
        return self._sub_layers.items()

    def pop(self, key: str) -> Layer:
        """Take a layer out and return it."""
        layer: Layer = self._sub_layers.pop(key)
        return layer

    def clear(self) -> None:
        """Take all layers out."""
        self._sub_layers.clear()

    def update(self, sublayers: Mapping[str, Layer] | Iterable[tuple[str, Layer]]) -> None:
        """Add layers, in place of those of the same names."""
        for key, layer in sublayers.items() if isinstance(sublayers, Mapping) else sublayers:
            self.add_sublayer(key, layer)


class ParameterList(Layer):
    """Holds parameters in a list.

    Args:
        parameters: the first ones.
    """

    def __init__(self, parameters: Iterable[Variable] | None = None) -> None:
        super().__init__()
        for parameter in parameters or ():
            self.append(parameter)

    def __getitem__(self, index: int) -> Variable:
        return list(self)[index]

    def __setitem__(self, index: int, parameter: Variable) -> None:
        self.add_parameter(str(range(len(self))[index]), parameter)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Variable]:
        return (parameter for parameter in self._parameters.values() if parameter is not None)

    def append(self, parameter: Variable) -> Self:
        """Add a parameter at the end."""
        self.add_parameter(str(len(self)), parameter)
        return self


class ParameterDict(Layer):
    """Holds parameters by name.

    Args:
        parameters: a dictionary, or (name, parameter) pairs.
    """

    def __init__(self, parameters: Mapping[str, Variable] | Iterable[tuple[str, Variable]] | None = None) -> None:
        super().__init__()
        self.update(parameters or ())

    def __getitem__(self, key: str) -> Variable:
        parameter = self._parameters.get(key)
        if parameter is None:
            raise InputError(f"ParameterDict has no parameter '{key}': it has {', '.join(self._parameters) or 'none'}")
        return parameter

    def __setitem__(self, key: str, parameter: Variable) -> None:
        self.add_parameter(key, parameter)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def update(self, parameters: Mapping[str, Variable] | Iterable[tuple[str, Variable]]) -> None:
        """Add parameters, in place of those of the same names."""
        for key, parameter in parameters.items() if isinstance(parameters, Mapping) else parameters:
            self.add_parameter(key, parameter)


ModuleDict, ModuleList = LayerDict, LayerList


check_arguments(globals(), __all__)
