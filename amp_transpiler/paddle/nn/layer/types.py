"""Changes the element types of layers that are already made, for `Layer.float16`, `astype` and the like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.paddle.framework.persistables import retype
from amp_transpiler.program.program import Variable

__all__ = ["give_type"]


def give_type(layer: Any, asked: str, dtype: Any, excluded: type[Any] | Sequence[type[Any]] | None) -> None:
    """Give float parameters and buffers of a layer and those in it another type.

    Running statistics stay float32.

    Args:
        layer: the layer.
        asked: the method that asks for it.
        dtype: the type.
        excluded: classes of layers that keep theirs; None for those that are to stay float32 (`Layer.stays_wide`).

    Raises:
        OptionError: the program reads a parameter already.
        TypeError: something else than classes is excluded.
    """
    if excluded is None:
        classes: tuple[Any, ...] = ()
    else:
        classes = tuple(excluded) if isinstance(excluded, (list, tuple)) else (excluded,)
    if not all(isinstance(item, type) for item in classes):
        raise TypeError(f"excluded_layers must be a class of layers or a list of them, got {excluded!r}")
    target = parse_dtype(dtype)
    for part in layer.sublayers(include_self=True):
        if isinstance(part, classes) or (excluded is None and part.stays_wide):
            continue
        for store in (part._parameters, part._buffers):  # noqa: SLF001  # a part of `Layer`
            store.update({name: _converted(layer, asked, variable, target) for name, variable in store.items()})
        part._dtype = target  # noqa: SLF001  # see above


def _converted(layer: Any, asked: str, variable: Variable | None, target: ir.DataType) -> Variable | None:
    if variable is None or not _is_of_another(variable, target):
        return variable
    persistable = variable.program.persistables.get(variable.name)
    if persistable is None:
        return variable.astype(target)
    if persistable.kind == "parameter" and not retype(variable, target):
        raise OptionError(
            f"{type(layer).__name__}.{asked}: a layer's type is given when it is made (dtype=), or before the program "
            "reads its parameters, or changed by static.amp.decorate(optimizer, level='O2')"
        )
    return variable


def _is_of_another(variable: Variable, target: ir.DataType) -> bool:
    current = variable.value.dtype
    return current is not None and current.is_floating_point() and current != target
