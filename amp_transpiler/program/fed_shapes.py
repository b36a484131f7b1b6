"""Writes the shapes that are fed into a model: checks them against its declarations and tells symbols apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.lines import line_of
from amp_transpiler.graph.misfit_messages import BROADCASTS
from amp_transpiler.graph.origins import scope_of
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.names import is_standard

__all__ = ["mark_unnamed", "specialise"]

_UNNAMED_KEY = "amp_transpiler.unnamed_batch"  # in `meta` of an input: its first dimension has a name by default only
_LOSSES = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})


class _Fed(NamedTuple):
    """A size of a dimension, as an input is fed with it."""

    size: int
    name: str
    by_default: bool


def mark_unnamed(value: ir.Value) -> None:
    """Note that the first dimension of an input is called `batch` by default, not by the user."""
    value.meta[_UNNAMED_KEY] = True


def specialise(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give the inputs of a model the shapes that are fed, in place.

    Inputs whose first dimension has no name of its own may be fed different sizes, as long as no operator combines them
    row by row.

    Raises:
        InputError: they do not fit the declared shapes, or inputs that share a dimension are fed different sizes.
    """
    sizes: dict[str, _Fed] = {}
    apart: dict[str, tuple[_Fed, _Fed]] = {}
    for value in model.graph.inputs:
        name = str(value.name)
        if name not in shapes or value.shape is None:
            continue
        for axis, (declared, size) in enumerate(zip(value.shape, shapes[name], strict=True)):
            if isinstance(declared, int):
                if declared != size:
                    raise InputError(_misfit(value, shapes[name]))
                continue
            if declared.value is None:
                continue
            fed = _Fed(size, name, axis == 0 and bool(value.meta.get(_UNNAMED_KEY)))
            known = sizes.setdefault(declared.value, fed)
            if known.size != size:
                if not (fed.by_default and known.by_default):
                    raise InputError(_unequal(declared.value, known, fed))
                apart.setdefault(declared.value, (known, fed))
        value.shape = ir.Shape([int(size) for size in shapes[name]])
    for symbol, pair in apart.items():
        _tell_apart(model, symbol, *pair)


def _misfit(value: ir.Value, shape: Sequence[int]) -> str:
    line = line_of(value)
    return f"input '{value.name}'{f' ({line})' if line else ''}: got shape {list(shape)}, expected {value.shape}"


def _unequal(symbol: str, known: _Fed, fed: _Fed, reader: str = "") -> str:
    return (
        f"'{fed.name}' is fed with {symbol} = {fed.size}, but '{known.name}' with {known.size}"
        f"{f', and {reader} combines them' if reader else ''}: feed the same size, or give the dimensions names of "
        f"their own, as in static.data('{fed.name}', ['n', ...])"
    )


def _tell_apart(model: ir.Model, symbol: str, known: _Fed, fed: _Fed) -> None:
    """Infer again the sizes that `symbol` stands for: it has a different one in different values.

    Raises:
        InputError: an operator reads two values of different sizes for it, and its gradient was made for equal ones.
    """
    before: dict[ir.Value, list[object]] = {}
    for scope in scopes(model):
        for value in (value for node in scope.graph for value in node.outputs):
            sizes: list[object] = [] if value.shape is None else list(value.shape)
            if symbol in sizes:
                before[value] = sizes
                value.shape = ir.Shape([None if dim == symbol else dim for dim in value.shape or ()])
    for value in model.graph.inputs:
        if value.meta.get(_UNNAMED_KEY) and value.shape:
            before[value] = [symbol, *list(value.shape)[1:]]
    infer_shapes(model)
    trains = any(role_of(node) != "forward" for node in model.graph)
    for node in model.graph:
        if role_of(node) != "forward":
            continue
        for values in _combined(node):
            sizes_seen = {_size(value, axis) for value, axis in values if _was(before, value, axis, symbol)}
            numbers = {size for size in sizes_seen if size is not None}
            if len(numbers) > 1 and (trains or len(numbers - {1}) > 1):
                origin = scope_of(node)
                raise InputError(
                    _unequal(symbol, known, fed, f"{node.op_type} '{node.name}'{f' ({origin})' if origin else ''}")
                )


def _combined(node: ir.Node) -> Iterator[list[tuple[ir.Value, int]]]:
    """Yield the dimensions of a node's values that the node takes together, axis by axis, counted from the last."""
    if not is_standard(node):
        return
    inputs = [value for value in node.inputs if value is not None and value.shape is not None]
    if node.op_type in _LOSSES and len(inputs) > 1:
        yield [(value, -len(value.shape or ())) for value in inputs[:2]]
        return
    if node.op_type == "Expand" and inputs:
        inputs = [inputs[0], *(value for value in node.outputs if value.shape is not None)]
    elif node.op_type not in BROADCASTS and node.op_type != "MatMul":
        return
    least = 3 if node.op_type == "MatMul" else 1
    ranks = {value: len(value.shape or ()) for value in inputs}
    for axis in range(least, max(ranks.values(), default=0) + 1):
        yield [(value, -axis) for value in inputs if ranks[value] >= axis]


def _was(before: Mapping[ir.Value, Sequence[object]], value: ir.Value, axis: int, symbol: str) -> bool:
    shape = before.get(value)
    return shape is not None and len(shape) >= -axis and shape[axis] == symbol


def _size(value: ir.Value, axis: int) -> int | None:
    size = None if value.shape is None else value.shape[axis]
    return size if isinstance(size, int) else None
