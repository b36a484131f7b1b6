"""Nodes evaluated with numpy, outside ONNX Runtime: sizes, indices, labels and what moves them.

Whoever follows such values asks here, by element: integers in numbers, symbols for open sizes (arrays of objects),
or the places that numbers came from. Arithmetic is exact for integers; floats round as numpy's do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.ops.names import is_standard

__all__ = ["MOST_ELEMENTS", "MOVES", "Array", "evaluate"]

Array: TypeAlias = "np.ndarray[Any, Any]"
Rule: TypeAlias = Callable[..., Any]

MOST_ELEMENTS = 1 << 12  # of a tensor that counts sizes
MOST_AXES = 64  # numpy has no more


def evaluate(
    node: ir.Node, inputs: Sequence[Array | None], *, output: int = 0, most: float = MOST_ELEMENTS
) -> Array | None:
    """Return an output of a node whose inputs are known; None where no rule knows its operator.

    Args:
        node: the node.
        inputs: its inputs, None for those that are left out.
        output: the index of the output. Only Split has more than one that is known.
        most: elements that an input or the result may have; infinite for values that a run computed.

    Returns:
        The output, or None: of an operator without a rule, beyond `most`, or where the inputs do not fit the node.
    """
    rule = _RULES.get(node.op_type) if is_standard(node) else None
    if rule is None or any(array is not None and array.size > most for array in inputs):
        return None
    try:
        with np.errstate(all="ignore"):
            result = rule(node, *inputs)
    except (ArithmeticError, IndexError, TypeError, ValueError):
        return None  # the model is wrong, or the guessed sizes do not fit: no more is known of this value
    if isinstance(result, list):
        result = result[output] if output < len(result) else None
    array = None if result is None else np.asarray(result)
    return None if array is None or array.size > most or array.ndim > MOST_AXES else array


def _plain(operate: Callable[..., Any]) -> Rule:
    return lambda _, *inputs: operate(*inputs)


def _typed(operate: Callable[..., Any]) -> Rule:
    """An operator whose result has the type of its first input."""
    return lambda _, first, *others: np.asarray(operate(first, *others)).astype(first.dtype)


def _divided(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    return np.asarray(np.where(b == 0, 0, np.sign(a) * np.sign(b) * (np.abs(a) // np.maximum(np.abs(b), 1))))


def _cast(node: ir.Node, x: Array) -> Array:
    return x.astype(ir.DataType(node.attributes.get_int("to", 0)).numpy())


def _axes(node: ir.Node, axes: Array | None) -> tuple[int, ...] | None:
    listed = node.attributes.get_ints("axes", None) if axes is None else axes.reshape(-1).tolist()
    return None if listed is None else tuple(int(axis) for axis in listed)


def _squeeze(node: ir.Node, x: Array, axes: Array | None = None) -> Array:
    return np.squeeze(x, _axes(node, axes))


def _unsqueeze(node: ir.Node, x: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(x, _axes(node, axes) or ())


def _slice(node: ir.Node, x: Array, *bounds: Array | None) -> Array:
    """Bounds are inputs, or, before opset 10, attributes."""
    listed = [None if part is None else part.tolist() for part in bounds]
    if not listed:
        listed = [node.attributes.get_ints(name, None) for name in ("starts", "ends", "axes")]
    starts, ends, axes, steps = (*listed, None, None, None, None)[:4]
    parts = [slice(None)] * x.ndim
    for index, (start, end) in enumerate(zip(starts or (), ends or (), strict=True)):
        axis, step = (axes[index] if axes else index), (steps[index] if steps else 1)
        parts[axis] = slice(start, None if step < 0 and end < -x.shape[axis] else end, step)
    return x[tuple(parts)]


def _split(node: ir.Node, x: Array, lengths: Array | None = None) -> list[Array]:
    """Parts of equal length, the last may be shorter; or of given ones: an input, before opset 13 an attribute."""
    axis, count = node.attributes.get_int("axis", 0), len(node.outputs)
    listed = node.attributes.get_ints("split", None) if lengths is None else lengths.tolist()
    each = -(-x.shape[axis] // count)
    ends = np.cumsum([each] * count if listed is None else listed)
    return np.split(x, ends[:-1], axis)


def _flatten(node: ir.Node, x: Array) -> Array:
    axis = node.attributes.get_int("axis", 1)
    rows = math.prod(x.shape[:axis])
    return x.reshape(rows, math.prod(x.shape[axis:]))


def _gather(node: ir.Node, x: Array, indices: Array) -> Array:
    return np.take(x, indices, axis=node.attributes.get_int("axis", 0))


def _reshape(node: ir.Node, x: Array, shape: Array) -> Array:
    copies = not node.attributes.get_int("allowzero", 0)
    wanted = [
        x.shape[i] if copies and not size and i < x.ndim else int(size) for i, size in enumerate(shape.reshape(-1))
    ]
    return x.reshape(wanted)


def _concat(node: ir.Node, *parts: Array) -> Array:
    return np.concatenate(parts, axis=node.attributes.get_int("axis", 0))


def _filled(node: ir.Node, shape: Array) -> Array | None:
    sizes = tuple(int(size) for size in shape.reshape(-1))
    if np.prod(sizes, dtype=np.float64) > MOST_ELEMENTS:
        return None
    attribute = node.attributes.get("value")
    value = np.zeros(1, np.float32) if attribute is None else attribute.as_tensor().numpy()
    return np.full(sizes, value.reshape(-1)[0], value.dtype)


def _range(_: ir.Node, start: Array, limit: Array, delta: Array) -> Array | None:
    count = (float(limit.item()) - float(start.item())) / (float(delta.item()) or 1.0)
    if count > MOST_ELEMENTS:
        return None
    return np.asarray(start + delta * np.arange(max(0, math.ceil(count))).astype(start.dtype))


def _expand(_: ir.Node, x: Array, shape: Array) -> Array | None:
    sizes = np.broadcast_shapes(x.shape, tuple(int(size) for size in shape.reshape(-1)))
    return None if np.prod(sizes, dtype=np.float64) > MOST_ELEMENTS else np.broadcast_to(x, sizes)


def _tile(_: ir.Node, x: Array, repeats: Array) -> Array | None:
    return None if x.size * np.prod(repeats, dtype=np.float64) > MOST_ELEMENTS else np.tile(x, repeats.tolist())


def _reduced(operate: Callable[..., Any]) -> Rule:
    def rule(node: ir.Node, x: Array, axes: Array | None = None) -> Array:
        keeps = bool(node.attributes.get_int("keepdims", 1))
        return np.asarray(operate(x, axis=_axes(node, axes), keepdims=keeps)).astype(x.dtype)

    return rule


def _clip(node: ir.Node, x: Array, *bounds: Array | None) -> Array:
    """Bounds are inputs, or, before opset 11, attributes."""
    listed = [*bounds, None, None] if bounds else [node.attributes.get_float(name, None) for name in ("min", "max")]
    least, most = listed[:2]
    return np.asarray(np.clip(x, least, most)).astype(x.dtype)


def _transpose(node: ir.Node, x: Array) -> Array:
    return np.transpose(x, node.attributes.get_ints("perm", None))


def _scatter(_: ir.Node, x: Array, indices: Array, updates: Array) -> Array:
    copy = x.copy()
    copy[tuple(np.moveaxis(indices, -1, 0))] = updates
    return copy


_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "Identity": _plain(lambda x: x),
        "Cast": _cast,
        "Squeeze": _squeeze,
        "Unsqueeze": _unsqueeze,
        "Slice": _slice,
        "Gather": _gather,
        "Reshape": _reshape,
        "Flatten": _flatten,
        "Split": _split,
        "Concat": _concat,
        "ConstantOfShape": _filled,
        "Range": _range,
        "Expand": _expand,
        "Tile": _tile,
        "Transpose": _transpose,
        "ScatterND": _scatter,
        "Where": _plain(np.where),
        "Add": _typed(np.add),
        "Sub": _typed(np.subtract),
        "Mul": _typed(np.multiply),
        "Div": _typed(_divided),
        "Mod": _typed(np.mod),
        "Pow": _typed(np.power),
        "Neg": _typed(np.negative),
        "Abs": _typed(np.abs),
        "Sign": _typed(np.sign),
        "Sqrt": _typed(np.sqrt),
        "Sin": _typed(np.sin),
        "Cos": _typed(np.cos),
        "Clip": _clip,
        "Reciprocal": _typed(np.reciprocal),
        "Floor": _typed(np.floor),
        "Ceil": _typed(np.ceil),
        "Round": _typed(np.round),
        "Min": _typed(lambda *values: np.minimum.reduce(np.broadcast_arrays(*values))),
        "Max": _typed(lambda *values: np.maximum.reduce(np.broadcast_arrays(*values))),
        "Equal": _plain(np.equal),
        "Less": _plain(np.less),
        "LessOrEqual": _plain(np.less_equal),
        "Greater": _plain(np.greater),
        "GreaterOrEqual": _plain(np.greater_equal),
        "And": _plain(np.logical_and),
        "Or": _plain(np.logical_or),
        "Not": _plain(np.logical_not),
        "ReduceProd": _reduced(np.prod),
        "ReduceSum": _reduced(np.sum),
        "ReduceMax": _reduced(np.max),
        "ReduceMin": _reduced(np.min),
    }
)

MOVES = frozenset(
    ("Concat", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
)
"""Operators whose results consist of elements of their data, as they are."""
