"""Sets the sizes that `from_onnx(input_shapes=)` gives to the inputs of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.name_matching import did_you_mean

__all__ = ["settle_input_shapes"]


def settle_input_shapes(model: ir.Model, given: Mapping[str, Sequence[int | None]], what: str) -> None:
    """Give inputs their sizes, and every other value the sizes that have the same name.

    Args:
        model: the model, changed in place.
        given: input name -> its sizes; -1 or None leaves one as it is.
        what: the model, as messages name it.

    Raises:
        InputError: an input is unknown, or its shape has another rank or other sizes.
    """
    by_name = {str(value.name): value for value in model.graph.inputs}
    named: dict[str, int] = {}
    for name, sizes in given.items():
        if name not in by_name:
            meant = did_you_mean(name, by_name)
            raise InputError(f"{what}: input_shapes names '{name}'; the inputs are {', '.join(by_name)}{meant}")
        _settle(by_name[name], list(sizes), named, what)
    for value in (*model.graph.inputs, *model.graph.outputs, *(out for node in model.graph for out in node.outputs)):
        if value.shape is not None and any(_name(size) in named for size in value.shape):
            value.shape = ir.Shape([_settled_size(size, named) for size in value.shape])


def _settle(value: ir.Value, sizes: Sequence[object], named: dict[str, int], what: str) -> None:
    old: list[object] = [None] * len(sizes) if value.shape is None else list(value.shape)
    declared = f"{what}: input_shapes gives '{value.name}' {sizes}, and the model declares {old}"
    if len(old) != len(sizes):
        raise InputError(f"{declared}: give {len(old)} sizes, -1 for those that stay free")
    for index, (size, before) in enumerate(zip(sizes, old, strict=True)):
        if size in (None, -1):
            continue
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InputError(f"{declared}: size {index} must be a number from 1, or -1 to stay free; it is {size!r}")
        name = _name(before)
        if isinstance(before, int):
            fixed_size: int | None = before
        else:
            fixed_size = named.get(name) if name else None
        if fixed_size is not None and fixed_size != size:
            reason = f"'{name}' is {fixed_size} already" if name else f"size {index} is fixed to {fixed_size}"
            raise InputError(f"{declared}: {reason}; give {fixed_size}, or export the model with that size free")
        if name:
            named[name] = size
        old[index] = size
    value.shape = ir.Shape(old)  # type: ignore[arg-type]  # sizes of a shape, and numbers in their place


def _settled_size(size: int | ir.SymbolicDim, named: Mapping[str, int]) -> int | ir.SymbolicDim:
    return size if isinstance(size, int) else named.get(size.value or "", size)


def _name(size: object) -> str | None:
    return size.value if isinstance(size, ir.SymbolicDim) else None
