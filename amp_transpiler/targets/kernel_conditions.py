"""The conditions of `data/arithmetic.txt`: on which nodes a kernel computes otherwise than on others.

Each is a function of a node and of the shapes around it. Where a shape is not known a condition of shapes does not
hold, except those that say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array

__all__ = [
    "CONDITIONS",
    "COUNTING",
    "GROWING",
    "SEVERAL_BLOCKS",
    "Reduction",
    "ShapeOf",
    "blocks_of",
    "holds",
    "reduction_of",
    "summed_axes",
    "sums_last_axes",
]

ShapeOf: TypeAlias = Callable[[ir.Value | None], tuple[int, ...] | None]
"""Returns the shape of a value in a run, or None where it is not known."""

Condition: TypeAlias = Callable[[ir.Node, ShapeOf], bool]

SEVERAL_BLOCKS = "leading axes, several blocks"
"""The condition of a sum whose 16-bit partial sums are added in any order."""

_HEAD_UNIT = 4  # Attention copies the past four 16-bit numbers at a time
_FUSED_HEAD_UNIT = 8  # elements of a row that the kernels of fused attention load at a time
_CUMSUM_TERMS = 2048  # from which on float16 does not hold every whole number
_LARGEST_COUNT = 65520  # rounds to infinity in float16


class Reduction(NamedTuple):
    """How a reduction lies in memory; axes of size 1 count on either side.

    Attributes:
        place: `leading`, `trailing` or `middle` axes are reduced.
        terms: how many numbers become one.
        results: how many there are of those.
    """

    place: str
    terms: int
    results: int


def holds(name: str, node: ir.Node, shape_of: ShapeOf) -> bool:
    """Return whether a named condition holds for a node."""
    return CONDITIONS[name](node, shape_of)


def reduction_of(node: ir.Node, shape_of: ShapeOf) -> Reduction | None:
    """Return how a reduction lies in memory; None where its shape or axes are not known, or it reduces nothing."""
    shape = shape_of(node.inputs[0])
    axes = None if shape is None else summed_axes(node, len(shape))
    if shape is None or axes is None:
        return None
    reduced = [axis for axis, size in enumerate(shape) if axis in axes and size != 1]
    others = [axis for axis, size in enumerate(shape) if axis not in axes and size != 1]
    terms, results = (math.prod(shape[axis] for axis in side) for side in (reduced, others))
    if not reduced:
        return None
    if not others or min(reduced) > max(others):
        return Reduction("trailing", terms, results)
    return Reduction("leading" if max(reduced) < min(others) else "middle", terms, results)


def summed_axes(node: ir.Node, rank: int) -> set[int] | None:
    """Return the axes that a reduction, or a CumSum, sums over; None where they are not known.

    Args:
        node: the node.
        rank: of its first input.
    """
    listed = _listed_axes(node)
    if listed is None:
        return None
    if not listed:
        return set() if node.attributes.get_int("noop_with_empty_axes", 0) else set(range(rank))
    return {axis % max(1, rank) for axis in listed}


def sums_last_axes(node: ir.Node) -> bool:
    """Whether a reduction is over the last axes, whatever the rank of its input is: they are counted from the end."""
    listed = _listed_axes(node) or []
    return bool(listed) and sorted(listed) == list(range(-len(listed), 0))


def _listed_axes(node: ir.Node) -> list[int] | None:
    """Return the axes that a node lists; None where they are computed."""
    listed = node.attributes.get_ints("axes", None)
    source = node.inputs[1] if listed is None and len(node.inputs) > 1 else None
    if source is not None and (source.shape is None or list(source.shape) != [0]):
        array = constant_array(source)
        return None if array is None else [int(axis) for axis in array.reshape(-1)]
    return list(listed or ())


def blocks_of(terms: int, results: int) -> tuple[int, int]:
    """Return how many rows a block of ONNX Runtime's sum over leading axes takes at a time, and how many blocks add up.

    Source: `reduce_matrix_rows` of ONNX Runtime's `reduction_functions.cu`, as read from the kernel's machine code.

    Args:
        terms: rows that are summed.
        results: columns.
    """
    width = _power_of_two(min(max(1, results), 32))
    height = _power_of_two(min(max(1, 512 // width), max(1, terms // 4)))
    columns = max(1, min(results // width, 512))
    return height, max(1, min(512 // columns, terms // height // 4))


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << (max(1, number) - 1).bit_length()


def _several_blocks(node: ir.Node, shape_of: ShapeOf) -> bool:
    reduction = reduction_of(node, shape_of)
    return (
        reduction is not None and reduction.place == "leading" and blocks_of(reduction.terms, reduction.results)[1] > 1
    )


def _at_an_end(node: ir.Node, shape_of: ShapeOf) -> bool:
    reduction = reduction_of(node, shape_of)
    return reduction is not None and reduction.place != "middle"


def _many_at_an_end(node: ir.Node, shape_of: ShapeOf) -> bool:
    reduction = reduction_of(node, shape_of)
    return reduction is not None and reduction.place != "middle" and reduction.terms >= _LARGEST_COUNT


def _by_tanh(node: ir.Node, _: ShapeOf) -> bool:
    return node.attributes.get_string("approximate", "none") == "tanh"


def _by_tanh_of_any_count(node: ir.Node, shape_of: ShapeOf) -> bool:
    return _by_tanh(node, shape_of) and _of_any_count(node, shape_of)


def _of_any_count(node: ir.Node, shape_of: ShapeOf) -> bool:
    """Hold for an odd count, and where a dimension may be another in the next run."""
    declared = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    sizes = [] if declared is None else [size for size in declared if isinstance(size, int)]
    is_even = any(size % 2 == 0 for size in sizes)
    if declared is None:
        shape = shape_of(node.inputs[0])
        is_even = shape is not None and math.prod(shape) % 2 == 0
    return not is_even


def _has_bias(node: ir.Node, _: ShapeOf) -> bool:
    return len(node.inputs) > 2 and node.inputs[2] is not None


def _is_scaled(node: ir.Node, _: ShapeOf) -> bool:
    scale = node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0)
    return scale[0] != 1.0 or (scale[1] != 1.0 and _has_bias(node, _))


def _many_terms(node: ir.Node, shape_of: ShapeOf) -> bool:
    """Hold where the axis is not known, too."""
    shape, axis = shape_of(node.inputs[0]), constant_array(node.inputs[1])
    if shape is None or axis is None:
        return True
    return shape[int(axis.reshape(-1)[0])] > _CUMSUM_TERMS


def _head_sizes(node: ir.Node, shape_of: ShapeOf) -> tuple[int, int] | None:
    key, value = shape_of(node.inputs[1]), shape_of(node.inputs[2])
    if key is None or value is None:
        return None
    if len(key) > 3:
        return key[-1], value[-1]
    heads = node.attributes.get_int("kv_num_heads", 1)
    return key[-1] // heads, value[-1] // heads


def _has_past(node: ir.Node) -> bool:
    return len(node.inputs) > 4 and node.inputs[4] is not None


def _ragged_past(node: ir.Node, shape_of: ShapeOf) -> bool:
    sizes = _head_sizes(node, shape_of)
    return _has_past(node) and (sizes is None or any(size % _HEAD_UNIT for size in sizes))


def _unfused_attention(node: ir.Node, shape_of: ShapeOf) -> bool:
    """Hold for heads of two sizes or of one that is no multiple of 8, and for a mask over keys of no multiple of 4."""
    sizes, key = _head_sizes(node, shape_of), shape_of(node.inputs[1])
    if sizes is None or key is None:
        return False
    past = shape_of(node.inputs[4]) if _has_past(node) else None
    keys = key[-2] + (past[-2] if past is not None else 0)
    has_mask = len(node.inputs) > 3 and node.inputs[3] is not None
    has_odd_heads = sizes[0] != sizes[1] or sizes[0] % _FUSED_HEAD_UNIT != 0
    return has_odd_heads or (has_mask and keys % _HEAD_UNIT != 0)


def _several_rows(node: ir.Node, shape_of: ShapeOf) -> bool:
    """Hold for a product of more than one row, and where that is not known."""
    shape = shape_of(node.inputs[0])
    if shape is None or len(shape) < 2:
        return shape is None
    weight = shape_of(node.inputs[1])
    rows = shape[-1] if node.attributes.get_int("transA", 0) else shape[-2]
    if weight is not None and len(weight) == 2:
        rows = math.prod(shape) // max(1, shape[-2 if node.attributes.get_int("transA", 0) else -1])
    return rows > 1


def _several_results(node: ir.Node, shape_of: ShapeOf) -> bool:
    """Hold for a Gemm that computes more than one number, and where that is not known."""
    weight = shape_of(node.inputs[1])
    if weight is None or len(weight) != 2:
        return True
    columns = weight[0 if node.attributes.get_int("transB", 0) else 1]
    return columns > 1 or _several_rows(node, shape_of)


CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "a bias": _has_bias,
        "a bias, several results": lambda node, shape_of: (
            _has_bias(node, shape_of) and _several_results(node, shape_of)
        ),
        "a past, and a head size that is no multiple of 4": _ragged_past,
        "adds": lambda node, _: node.attributes.get_string("reduction", "none") == "add",
        "alpha or beta": _is_scaled,
        SEVERAL_BLOCKS: _several_blocks,
        "leading or trailing axes": _at_an_end,
        "leading or trailing axes, 65520 terms or more": _many_at_an_end,
        "linear": lambda node, _: node.attributes.get_string("mode", "nearest") == "linear",
        "more than 2048 terms": _many_terms,
        "more than two inputs": lambda node, _: len(node.inputs) > 2,
        "several rows": _several_rows,
        "tanh": _by_tanh,
        "count not known to be even": _of_any_count,
        "tanh, count not known to be even": _by_tanh_of_any_count,
        "unfused": _unfused_attention,
    }
)
"""Name -> the test."""

GROWING = frozenset({SEVERAL_BLOCKS, "more than 2048 terms"})
"""The conditions that hold for large sizes: where a dimension that is summed is open, they may hold in another run."""

COUNTING = frozenset({"count not known to be even", "tanh, count not known to be even"})
"""The conditions that ask for a factor of a count: a dimension that is open may be 1 in another run."""
