"""Integers that a step only moves from its feeds to where they are read, worked out with numpy before the step runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.evaluate import MOVES, evaluate
from amp_transpiler.ops.names import is_standard

__all__ = ["FedIntegers", "fed_integers"]

Array = np.ndarray
Arrays = Mapping[str, Array]
# Computes a node's output from its inputs. It gets numbers, or the places that they came from.
Step = Callable[[Sequence[Array]], Array]


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
    moved = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    step = _step(node, value, len(moved))
    parts = [None if step is None or part is None else _fed(part, feeds) for part in moved]
    if step is None or any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    move = _first if node.op_type == "Cast" else step
    return FedIntegers(
        lambda arrays: step([part.numbers(arrays) for part in known]),
        lambda arrays: move([part.places(arrays) for part in known]),
        frozenset().union(*(part.feeds for part in known)),
    )


def _first(parts: Sequence[Array]) -> Array:
    return parts[0]


def _step(node: ir.Node, value: ir.Value, moved: int) -> Step | None:
    """Return what computes an output from the first `moved` inputs of its node; None if others are no constants."""
    if not is_standard(node) or node.op_type not in _OPERATORS:
        return None
    if node.op_type == "Cast" and (value.dtype is None or not value.dtype.is_integer()):
        return None
    others = [None if other is None else constant_array(other) for other in node.inputs[moved:]]
    if any(array is None and other is not None for array, other in zip(others, node.inputs[moved:], strict=True)):
        return None
    output = node.outputs.index(value)

    def step(parts: Sequence[Array]) -> Array:
        result = evaluate(node, [*parts, *others], output=output, most=math.inf)
        if result is None:
            shapes = ", ".join(str(list(part.shape)) for part in parts)
            raise InputError(
                f"{node.op_type} '{node.name}' cannot compute '{value.name}' from what is fed, of {shapes}"
            )
        return result

    return step


_OPERATORS = MOVES | {"Cast"}
