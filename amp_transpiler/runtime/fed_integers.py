"""Integers that a step computes from its feeds by movement alone, worked out with numpy before the step runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.ops.names import is_standard

__all__ = ["FedIntegers", "fed_integers"]

Array = np.ndarray
Arrays = Mapping[str, Array]
# Computes a node's output from its inputs. It gets numbers, or the places that they came from.
Step = Callable[[Sequence[Array]], Array]
Maker = Callable[[ir.Node, ir.Value], "Step | None"]


@dataclasses.dataclass(frozen=True, slots=True)
class FedIntegers:
    """A value that consists of numbers that were fed.

    Attributes:
        numbers: the feeds -> the value.
        places: an array for each feed -> the same elements of these arrays.
        feeds: names of the feeds.
    """

    numbers: Callable[[Arrays], Array]
    places: Callable[[Arrays], Array]
    feeds: frozenset[str]

    def origin(self, arrays: Arrays, position: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """Return the feed, and the position in it, that one element of the value comes from."""
        numbered, start, starts = {}, 0, {}
        for name in sorted(self.feeds):
            size = arrays[name].size
            numbered[name] = np.arange(start, start + size).reshape(arrays[name].shape)
            starts[name], start = start, start + size
        place = int(self.places(numbered)[tuple(position)])
        name = max((name for name in starts if starts[name] <= place), key=starts.__getitem__)
        where = np.unravel_index(place - starts[name], arrays[name].shape)
        return name, tuple(int(index) for index in where)


def fed_integers(value: ir.Value, feeds: Collection[str]) -> FedIntegers | None:
    """Return how a value consists of fed numbers, or None if it is computed in another way.

    Args:
        value: integers of a graph.
        feeds: names of the graph's inputs that are fed.
    """
    return _fed(value, feeds) if value.dtype is not None and value.dtype.is_integer() else None


def _fed(value: ir.Value, feeds: Collection[str]) -> FedIntegers | None:
    name, node = str(value.name), value.producer()
    if node is None:
        if name not in feeds:
            return None
        return FedIntegers(lambda arrays: arrays[name], lambda arrays: arrays[name], frozenset([name]))
    make = _STEPS.get(node.op_type) if is_standard(node) else None
    step = None if make is None else make(node, value)
    if step is None:
        return None
    inputs = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    parts = [None if one is None else _fed(one, feeds) for one in inputs]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    moves = _same if node.op_type == "Cast" else step
    return FedIntegers(
        lambda arrays: step([part.numbers(arrays) for part in known]),
        lambda arrays: moves([part.places(arrays) for part in known]),
        frozenset().union(*(part.feeds for part in known)),
    )


def _same(parts: Sequence[Array]) -> Array:
    return parts[0]


def _keep(_node: ir.Node, _value: ir.Value) -> Step:
    return _same


def _cast(_node: ir.Node, value: ir.Value) -> Step | None:
    if value.dtype is None or not value.dtype.is_integer():
        return None
    dtype = value.dtype.numpy()

    def step(parts: Sequence[Array]) -> Array:
        with np.errstate(invalid="ignore"):  # NaN becomes a number that is far outside
            return parts[0].astype(dtype, copy=False)

    return step


def _known(node: ir.Node, index: int) -> list[int] | None:
    """Return the integers of a constant input."""
    array = constant_array(node.inputs[index]) if index < len(node.inputs) else None
    return None if array is None else [int(number) for number in array.reshape(-1)]


def _attribute(node: ir.Node, name: str, default: int) -> int:
    found = node.attributes.get(name)
    return default if found is None else found.as_int()


def _reshape(node: ir.Node, _value: ir.Value) -> Step | None:
    target = _known(node, 1)
    if target is None or _attribute(node, "allowzero", 0):
        return None

    def step(parts: Sequence[Array]) -> Array:
        have = parts[0].shape
        return parts[0].reshape([have[axis] if size == 0 else size for axis, size in enumerate(target)])

    return step


def _squeeze(node: ir.Node, _value: ir.Value) -> Step | None:
    axes = _known(node, 1)
    return None if axes is None else lambda parts: np.squeeze(parts[0], tuple(axes))


def _unsqueeze(node: ir.Node, _value: ir.Value) -> Step | None:
    axes = _known(node, 1)
    return None if axes is None else lambda parts: np.expand_dims(parts[0], tuple(axes))


def _flatten(node: ir.Node, _value: ir.Value) -> Step:
    axis = _attribute(node, "axis", 1)

    def step(parts: Sequence[Array]) -> Array:
        shape = parts[0].shape
        rows = int(np.prod(shape[:axis], dtype=int))
        return parts[0].reshape(rows, -1 if rows else 0)

    return step


def _transpose(node: ir.Node, _value: ir.Value) -> Step:
    found = node.attributes.get("perm")
    perm = None if found is None else list(found.as_ints())
    return lambda parts: np.transpose(parts[0], perm)


def _concat(node: ir.Node, _value: ir.Value) -> Step:
    axis = _attribute(node, "axis", 0)
    return lambda parts: np.concatenate(list(parts), axis)


def _slice(node: ir.Node, _value: ir.Value) -> Step | None:
    starts, ends = _known(node, 1), _known(node, 2)
    if starts is None or ends is None:
        return None
    axes = _known(node, 3) if len(node.inputs) > 3 and node.inputs[3] is not None else list(range(len(starts)))
    steps = _known(node, 4) if len(node.inputs) > 4 and node.inputs[4] is not None else [1] * len(starts)
    if axes is None or steps is None or any(by < 1 for by in steps):
        return None

    def step(parts: Sequence[Array]) -> Array:
        chosen = [slice(None)] * parts[0].ndim
        for axis, start, end, by in zip(axes, starts, ends, steps, strict=True):
            chosen[axis] = slice(start, end, by)
        return parts[0][tuple(chosen)]

    return step


def _split(node: ir.Node, value: ir.Value) -> Step | None:
    axis, part = _attribute(node, "axis", 0), node.outputs.index(value)
    lengths = _known(node, 1) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if lengths is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        return None
    count = len(node.outputs)

    def step(parts: Sequence[Array]) -> Array:
        size = parts[0].shape[axis]
        each = lengths if lengths is not None else [-(-size // count)] * count
        start = sum(each[:part])
        return np.take(parts[0], range(start, min(start + each[part], size)), axis)

    return step


def _gather(node: ir.Node, _value: ir.Value) -> Step | None:
    axis, chosen = _attribute(node, "axis", 0), constant_array(node.inputs[1])
    return None if chosen is None else lambda parts: np.take(parts[0], chosen, axis)


_STEPS: dict[str, Maker] = {
    "Cast": _cast,
    "Concat": _concat,
    "Flatten": _flatten,
    "Gather": _gather,
    "Identity": _keep,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
