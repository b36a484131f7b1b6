"""Kernels that add up in the 16-bit format itself, as WebGPU's shaders do: sums that overflow or lose digits inside.

A shader rounds each product and each partial sum, term by term. Written like that a sum of thousands of terms would
take as many steps, so terms are added in blocks, each of them exact. What a shader does inside a block is added to it:

- *rounding*: the total behind a block is rounded to fewer digits, so that its error has the variance of as many
  roundings as the block has terms;
- *overflow*: inside a block a sum reaches at most what it was, and all positive (or all negative) terms of the block
  more. Where that is beyond the format the total becomes infinite.

So what overflows on a device, in the order of its terms, overflows here. Sums of at most 32 terms are the shader's own,
and so are those of products that are computed in parts, where results are few: a part is there since its terms are
so alike that errors may add up, which variances do not show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.passes.device_arithmetic.steps import Steps, named
from amp_transpiler.passes.device_arithmetic.wide import computed_wide
from amp_transpiler.precision.split_sums import PART_KEY
from amp_transpiler.targets.kernel_conditions import summed_axes

__all__ = ["LOW_SUMS"]

_TERMS = 32  # of a sum that is written as it is, a term a block
_TERMS_OF_PART = 1024  # likewise, of a product in parts
_ELEMENTS_OF_PART = 1 << 16  # that such a product has at most: each term is a step of its own
_BLOCKS = 16  # of a longer one
_MANY = 1024  # terms, where their number is not known
_DIGITS = 24  # of float32
_BEYOND = 65520.0  # rounds to infinity in float16
_LARGEST = 2.0**60  # what is infinite is this large while it is split: the split itself must not overflow
_STEEP = 1e6  # makes 1 of whatever is beyond, but for the last digits
_MATRIX = 2  # axes
_SLACK = 0.15  # digits: what a block may be better than a device, whose whole sum is worse by as much on the average
_LANES = 4096  # terms of a reduction, added by 32 lanes and then in pairs, whose error is that of 32 roundings


# ---- products of matrices ----


def product_in_low(node: ir.Node, steps: Steps) -> ir.Value:
    """Write MatMul: each product and each partial sum is rounded."""
    return _matrix_product(node, _read(node, 0, steps), _read(node, 1, steps), steps)


def gemm_in_low(node: ir.Node, steps: Steps) -> ir.Value:
    """Write Gemm: a product like MatMul's; its multiple by alpha is rounded, then that of the bias, then the sum."""
    r, attributes = steps.rounded, node.attributes
    a, b = _read(node, 0, steps), _read(node, 1, steps)
    a = steps.transpose(a, [1, 0]) if attributes.get_int("transA", 0) else a
    b = steps.transpose(b, [1, 0]) if attributes.get_int("transB", 0) else b
    total = r(_summed_products(a, b, (_MATRIX, _MATRIX), steps))
    if (alpha := attributes.get_float("alpha", 1.0)) != 1.0:
        total = r(steps.mul(total, steps.held(alpha)))
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        return total
    wide = steps.high(bias)
    beta = attributes.get_float("beta", 1.0)
    return steps.add(total, wide if beta == 1.0 else r(steps.mul(wide, steps.held(beta))))


def _matrix_product(node: ir.Node, a: ir.Value, b: ir.Value, steps: Steps) -> ir.Value:
    ranks = steps.rank_in_run(node.inputs[0]), steps.rank_in_run(node.inputs[1])
    if min(ranks) < _MATRIX:
        return sum_of_bounded(node, steps)  # a vector, or a rank that is not known
    return _summed_products(a, b, ranks, steps, one_by_one=_one_by_one(node, steps))


def _one_by_one(node: ir.Node, steps: Steps) -> int:
    """Return how many terms are written one by one."""
    if PART_KEY not in node.metadata_props:
        return _TERMS
    shape = steps.shape_in_run(node.outputs[0])
    return _TERMS_OF_PART if shape is not None and math.prod(shape) <= _ELEMENTS_OF_PART else _TERMS


def _summed_products(
    a: ir.Value, b: ir.Value, ranks: tuple[int, int], steps: Steps, *, one_by_one: int = _TERMS
) -> ir.Value:
    """Return the product of two matrices, or of stacks of them, of these ranks."""
    rank = max(ranks)
    terms = next((size for size in (_size(a, -1), _size(b, -2)) if size is not None), None)
    blocks, length = _divided(terms, one_by_one)
    left = _blocks_first(a, ranks[0], rank, (blocks, length, terms), steps)
    columns = _blocks_first(_swapped(b, ranks[1], steps), ranks[1], rank, (blocks, length, terms), steps)
    right = _swapped(columns, rank + 1, steps)
    exact = steps.op("MatMul", [left, right])
    sizes = steps.op("MatMul", [steps.op("Abs", [left]), steps.op("Abs", [right])])
    return _accumulated(exact, sizes, rank, length, steps)


def _divided(terms: int | None, one_by_one: int = _TERMS) -> tuple[int, int]:
    """Return how many blocks a sum has, and how many terms a block."""
    if terms is None:
        return _BLOCKS, _MANY // _BLOCKS
    length = 1 if terms <= one_by_one else math.ceil(terms / _BLOCKS)
    return max(1, math.ceil(terms / length)), length


def _swapped(x: ir.Value, rank: int, steps: Steps) -> ir.Value:
    return steps.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def _blocks_first(x: ir.Value, before: int, rank: int, division: tuple[int, int, int | None], steps: Steps) -> ir.Value:
    """Return [..., n, terms] as [blocks, ..., n, length], with zeros behind the last terms.

    Args:
        x: the value.
        before: its rank.
        rank: the rank that the other operand has, if that is more: of the result, less the axis of the blocks.
        division: the blocks, the length of one, and all terms, or None where runs differ in them.
        steps: inserts operators.
    """
    blocks, length, terms = division
    if terms is None or blocks * length != terms:
        x = _padded(x, before, blocks, None if terms is None else blocks * length - terms, steps)
    x = steps.unsqueeze(x, range(rank - before))
    x = steps.reshape(x, [*(0,) * (rank - 1), blocks, -1])
    return steps.transpose(x, [rank - 1, *range(rank - 1), rank])


def _padded(x: ir.Value, rank: int, blocks: int, missing: int | None, steps: Steps) -> ir.Value:
    """Append zeros to the last axis: so many, or what is missing at run time to a multiple of the number of blocks."""
    none = np.zeros(2 * rank - 1, np.int64)
    if missing is not None:
        return steps.op("Pad", [x, steps.constant(np.append(none, missing))])
    count = steps.slice(steps.op("Shape", [x]), [rank - 1], [rank], [0])
    beyond = steps.op("Mod", [steps.neg(count), steps.constant(np.array([blocks], np.int64))])  # the divisor's sign
    return steps.op("Pad", [x, steps.concat([steps.constant(none), beyond], 0)])


# ---- convolutions ----


def convolution_in_low(node: ir.Node, steps: Steps) -> ir.Value:
    """Write Conv or ConvTranspose: blocks of channels add up, then comes the bias.

    A convolution of as many groups as there are blocks computes what each block adds.
    """
    weight = _read(node, 1, steps)
    sizes = [] if weight.shape is None else [size for size in weight.shape if isinstance(size, int)]
    if weight.shape is None or len(sizes) != len(weight.shape):
        return sum_of_bounded(node, steps)
    groups, is_transposed = node.attributes.get_int("group", 1), node.op_type == "ConvTranspose"
    channels = sizes[0] // groups if is_transposed else sizes[1]
    results = sizes[1] if is_transposed else sizes[0] // groups
    most = _TERMS if channels * math.prod(sizes[2:]) <= _TERMS else _BLOCKS
    blocks = max(count for count in range(1, most + 1) if channels % count == 0)
    if not is_transposed:
        weight = _of_blocks(weight, groups, blocks, results, channels, steps)
    exact, sizes_of = (
        _grouped(node, convert(_read(node, 0, steps)), convert(weight), groups * blocks, steps)
        for convert in (lambda value: value, lambda value: steps.op("Abs", [value]))
    )
    rank = len(sizes)
    stacked = [_stacked(value, groups, blocks, results, rank, steps) for value in (exact, sizes_of)]
    total = _accumulated(stacked[0], stacked[1], rank, channels // blocks * math.prod(sizes[2:]), steps)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        return total
    return steps.add(steps.rounded(total), steps.reshape(steps.high(bias), [-1, *(1,) * (rank - 2)]))


def _of_blocks(weight: ir.Value, groups: int, blocks: int, results: int, channels: int, steps: Steps) -> ir.Value:
    """Return weights [groups * results, channels, ...] as [groups * blocks * results, channels / blocks, ...]."""
    kernel = [int(size) for size in list(weight.shape or ())[2:] if isinstance(size, int)]
    apart = steps.reshape(weight, [groups, results, blocks, channels // blocks, *kernel])
    turned = steps.transpose(apart, [0, 2, 1, 3, *range(4, 4 + len(kernel))])
    return steps.reshape(turned, [groups * blocks * results, channels // blocks, *kernel])


def _grouped(node: ir.Node, x: ir.Value, weight: ir.Value, groups: int, steps: Steps) -> ir.Value:
    attributes = {name: value.value for name, value in node.attributes.items() if name != "group"}
    return steps.op(node.op_type, [x, weight], {**attributes, "group": groups})


def _stacked(value: ir.Value, groups: int, blocks: int, results: int, rank: int, steps: Steps) -> ir.Value:
    """Return [n, groups * blocks * results, ...] as [blocks, n, groups * results, ...]."""
    spatial = steps.slice(steps.op("Shape", [value]), [2], [rank], [0])
    apart = steps.reshape(
        value, steps.concat([steps.constant(np.array([-1, groups, blocks, results], np.int64)), spatial], 0)
    )
    turned = steps.op("Transpose", [apart], {"perm": [2, 0, 1, 3, *range(4, rank + 2)]})
    heads = steps.constant(np.array([blocks, -1, groups * results], np.int64))
    return steps.reshape(turned, steps.concat([heads, spatial], 0))


# ---- reductions ----


def reduction_in_low(node: ir.Node, steps: Steps) -> ir.Value:
    """Write a sum over axes, of terms or their squares, magnitudes or exponentials, and what is made of the sum."""
    x, r = _read(node, 0, steps), steps.rounded
    prepared = {
        "ReduceL1": lambda: steps.op("Abs", [x]),
        "ReduceL2": lambda: r(steps.mul(x, x)),
        "ReduceLogSumExp": lambda: r(steps.op("Exp", [x])),
        "ReduceSumSquare": lambda: r(steps.mul(x, x)),
    }
    rank = steps.rank_in_run(node.inputs[0])
    axes = summed_axes(node, rank) if rank else None
    if axes is None:
        return sum_of_bounded(node, steps)
    if not axes:
        return computed_wide(node, steps)[0]
    terms = prepared.get(node.op_type, lambda: x)()
    total = r(_summed(terms, sorted(axes), rank, steps))
    if node.op_type == "ReduceMean":
        count = steps.div(_count(x, steps), _count(total, steps))
        total = steps.div(total, r(count))
    finish = {"ReduceL2": "Sqrt", "ReduceLogSum": "Log", "ReduceLogSumExp": "Log"}.get(node.op_type)
    total = total if finish is None else steps.op(finish, [total])
    return steps.unsqueeze(total, sorted(axes)) if node.attributes.get_int("keepdims", 1) else total


def _summed(terms: ir.Value, axes: Sequence[int], rank_before: int, steps: Steps) -> ir.Value:
    """Return the sum over axes, which are gone from it."""
    others = [axis for axis in range(rank_before) if axis not in axes]
    sizes = [_size(terms, axis - rank_before) for axis in axes]
    known = [size for size in sizes if size is not None]
    count = math.prod(known) if len(known) == len(sizes) else None
    rows = steps.reshape(steps.transpose(terms, [*others, *axes]), [*(0,) * len(others), -1])
    blocks, length = _divided(count)
    rank = len(others) + 1
    apart = _blocks_first(rows, rank, rank, (blocks, length, count), steps)
    exact = steps.reduce("ReduceSum", apart, [-1], keepdims=False)
    sizes_of = steps.reduce("ReduceSum", steps.op("Abs", [apart]), [-1], keepdims=False)
    return _accumulated(exact, sizes_of, len(others), max(1, (count or _MANY) // _LANES), steps)


def _count(x: ir.Value, steps: Steps) -> ir.Value:
    return steps.cast(steps.op("Size", [x]), ir.DataType.FLOAT)


def mean_in_low(node: ir.Node, steps: Steps) -> ir.Value:
    """Write AveragePool: its sum is infinite where it is beyond the format, and loses digits by its length."""
    shape = steps.shape_in_run(node.inputs[0])
    kernel = node.attributes.get_ints("kernel_shape", ()) or (shape or ())[2:]
    length = math.prod(kernel) if kernel else _MANY
    mean = computed_wide(node, steps)[0]
    copy = computed_wide(node, steps)[0]
    inner = copy.producer()
    assert inner is not None
    inner.replace_input_with(0, _before(inner, "Abs", steps))
    lossy = _of_fewer_digits(mean, length, steps)
    return _infinite_beyond(lossy, steps.mul(copy, float(length)), steps)


# ---- the rest ----


def sum_of_bounded(node: ir.Node, steps: Steps) -> ir.Value:
    """Write a sum by its bound: infinite where the magnitudes of its terms add up to more than the format holds.

    It is an estimate: a sum of positive and negative terms may stay within it.
    """
    result, sizes = computed_wide(node, steps)[0], computed_wide(node, steps)[0]
    inner = sizes.producer()
    assert inner is not None
    for index in range(len(inner.inputs)):
        inner.replace_input_with(index, _before(inner, "Abs", steps, index))
    return _infinite_beyond(_of_fewer_digits(result, _MANY, steps), sizes, steps)


def softmax_in_low(node: ir.Node, steps: Steps) -> ir.Value:
    """Write Softmax: 0 where the exponentials of a row add up to more than the format holds."""
    result, x = computed_wide(node, steps)[0], _read(node, 0, steps)
    axis = [node.attributes.get_int("axis", -1)]
    total = steps.sum(steps.op("Exp", [steps.sub(x, steps.reduce("ReduceMax", x, axis))]), axis)
    return steps.where(steps.compare("Greater", total, _BEYOND), 0.0, result)


def _before(node: ir.Node, op_type: str, steps: Steps, index: int = 0) -> ir.Value | None:
    """Return an operator of an input of a node, inserted before it."""
    value = node.inputs[index]
    if value is None or value.dtype != ir.DataType.FLOAT:
        return value
    saved, steps.before = steps.before, node
    result = steps.op(op_type, [value])
    steps.before = saved
    return result


def _read(node: ir.Node, index: int, steps: Steps) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return steps.high(value)


def _size(value: ir.Value, axis: int) -> int | None:
    """Return the size of an axis in every run; None where runs may differ."""
    size = None if value.shape is None else value.shape[axis]
    return size if isinstance(size, int) else None


# ---- the accumulator ----


def _accumulated(exact: ir.Value, sizes: ir.Value, rank: int, length: int, steps: Steps) -> ir.Value:
    """Return the sum of blocks, [blocks, ...], in the format.

    Args:
        exact: what each block adds.
        sizes: the sum of the magnitudes of its terms.
        rank: of the sum.
        length: roundings of a block; where it is 1, what it adds is one term, or as good as one.
        steps: inserts operators.
    """
    body = _adding_body(steps, rank, length)
    first = steps.squeeze(steps.slice(exact, [0], [1], [0]), [0])
    start = steps.mul(first, 0.0)  # NaN where a term is infinite, as it is on the device
    room = steps.sub(sizes, 2.0 * _BEYOND)
    total = steps.nodes("Scan", [start, exact, room], {"body": body, "num_scan_inputs": 2}, outputs=1)[0]
    total.type = exact.type
    total.shape = ir.Shape([None] * rank if exact.shape is None else list(exact.shape)[1:])
    return total


def _adding_body(steps: Steps, rank: int, length: int) -> ir.Graph:
    """Return the body that adds a block to the total: with few operators of two inputs, since they take the time.

    The positive terms of a block are half of its sum and its magnitudes, the negative ones half of their difference. So
    the total leaves the format inside the block if the total, the sum, and the magnitudes are beyond twice the largest.
    """
    names, dtype = steps.names, ir.TensorType(ir.DataType.FLOAT)
    inputs = [ir.Value(name=names.fresh("device_sum"), type=dtype, shape=ir.Shape([None] * rank)) for _ in range(3)]
    total, term, room = inputs  # the magnitudes of a block come less what they may be
    body = ir.Graph(inputs, [], nodes=[], name=names.fresh("device_sum_body"), opset_imports={})
    with steps.inside(body):
        term = steps.rounded(term) if length == 1 else term
        exact = steps.add(total, term)
        twice = steps.add(total, exact)
        beyond = steps.add(steps.op("Abs", [twice]), room)
        is_beyond = steps.op("HardSigmoid", [beyond], {"alpha": _STEEP, "beta": 0.0})
        exact = steps.add(exact, steps.mul(steps.mul(twice, is_beyond), _LARGEST))
        result = steps.op("Identity", [steps.rounded(_of_fewer_digits(exact, length, steps))])
    body.outputs.append(result)
    return body


def _of_fewer_digits(value: ir.Value, length: int, steps: Steps) -> ir.Value:
    """Return a value with an error of the variance that so many roundings to the format have."""
    lost = math.ceil(0.5 * math.log2(length) - _SLACK) if length > 1 else 0
    if not lost:
        return value
    finite = steps.op("Clip", [value, steps.constant(-_LARGEST), steps.constant(_LARGEST)])
    scaled = steps.mul(finite, float(2 ** (_DIGITS - max(2, steps.low.digits - lost)) + 1))
    return steps.sub(scaled, steps.sub(scaled, finite))


def _infinite_beyond(value: ir.Value, sizes: ir.Value, steps: Steps) -> ir.Value:
    """Return a value, infinite where what its terms add up to is beyond the format."""
    infinite = steps.where(steps.compare("Less", value, 0.0), steps.constant(-math.inf), math.inf)
    return steps.where(steps.compare("Greater", sizes, _BEYOND), infinite, value)


LOW_SUMS = named(
    convolution_in_low,
    gemm_in_low,
    mean_in_low,
    product_in_low,
    reduction_in_low,
    softmax_in_low,
    sum_of_bounded,
)
"""Name in the table -> the rule."""
