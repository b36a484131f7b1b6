"""Kernels of reductions and sums. Sources: ONNX Runtime's reduction_ops.cc, reduction_functions.cu, cumsum_impl.cu."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.passes.device_arithmetic.steps import Steps, named
from amp_transpiler.passes.device_arithmetic.wide import computed_wide
from amp_transpiler.targets.kernel_conditions import Reduction, blocks_of, reduction_of, summed_axes

__all__ = ["DRAWS", "SUMS"]

DRAWS = 8
"""How many orders of the blocks' sums are written down: one for each draw."""

_LONGEST_CUMSUM = 1 << 16  # terms that are added one after the other; more would take too long


def _reduction(node: ir.Node, steps: Steps) -> Reduction:
    reduction = reduction_of(node, steps.shape_in_run)
    assert reduction is not None  # the row's condition has asked for it
    return reduction


def _summed(node: ir.Node, steps: Steps, op_type: str, terms: ir.Value, *, keepdims: bool | None = None) -> ir.Value:
    """Return a reduction of float32 terms over the axes of a node, by another operator."""
    rank = steps.rank_in_run(node.inputs[0])
    axes = summed_axes(node, rank)
    keeps = bool(node.attributes.get_int("keepdims", 1)) if keepdims is None else keepdims
    at_run_time = node.inputs[1] if axes is None else None
    return steps.reduce(op_type, terms, at_run_time if axes is None else sorted(axes), keepdims=keeps)


def _terms(node: ir.Node, steps: Steps) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    return steps.high(value)


def sum_then_divide(node: ir.Node, steps: Steps) -> ir.Value:
    """Write ReduceMean: the sum is rounded, so is the count, then the quotient."""
    total = steps.rounded(_summed(node, steps, "ReduceSum", _terms(node, steps)))
    return _divided(total, _reduction(node, steps).terms, steps)


def _divided(total: ir.Value, terms: int, steps: Steps) -> ir.Value:
    with np.errstate(over="ignore"):  # a count that float16 does not hold is infinite there
        return steps.div(total, steps.held(float(terms)))


def _squared(node: ir.Node, steps: Steps) -> ir.Value:
    wide = _terms(node, steps)
    return steps.rounded(steps.mul(wide, wide))


def _magnitudes(node: ir.Node, steps: Steps) -> ir.Value:
    return steps.op("Abs", [_terms(node, steps)])


_PREPARED: Mapping[str, Callable[[ir.Node, Steps], ir.Value]] = MappingProxyType(
    {"ReduceSumSquare": _squared, "ReduceL1": _magnitudes}
)


def squares_first(node: ir.Node, steps: Steps) -> ir.Value:
    """Write ReduceSumSquare: each square is rounded before it is added."""
    return _summed(node, steps, "ReduceSum", _squared(node, steps))


def sums_of_blocks(node: ir.Node, steps: Steps) -> ir.Value:
    """Write a sum over leading axes: blocks of rows in float32, whose rounded sums add up in the format, in any order.

    Rows that do not fill the blocks evenly go to the last ones as zeros do: they change no sum.
    """
    reduction = _reduction(node, steps)
    height, count = blocks_of(reduction.terms, reduction.results)
    terms = _PREPARED.get(node.op_type, _terms)(node, steps)
    rows = steps.reshape(terms, [reduction.terms, reduction.results])
    per_turn = height * count
    turns = math.ceil(reduction.terms / per_turn)
    if missing := turns * per_turn - reduction.terms:
        zeros = steps.constant(np.zeros((missing, reduction.results), np.float32))
        rows = steps.concat([rows, zeros], 0)
    blocks = steps.reshape(rows, [turns, count, height, reduction.results])
    partial = steps.rounded(steps.sum(blocks, [0, 2], keepdims=False))
    total = _in_any_order(partial, count, steps)
    like = _summed(node, steps, "ReduceSum", _terms(node, steps))
    result = steps.reshape(total, steps.op("Shape", [like]))
    return _divided(result, reduction.terms, steps) if node.op_type == "ReduceMean" else result


def _in_any_order(partial: ir.Value, count: int, steps: Steps) -> ir.Value:
    """Return the sum of rows, rounded after each, in the order of the draw."""
    if steps.draw is not None:
        orders = np.stack([np.random.default_rng(draw).permutation(count) for draw in range(DRAWS)])
        turn = steps.op("Mod", [steps.cast(steps.draw, ir.DataType.INT64), steps.constant(np.int64(DRAWS))])
        order = steps.op("Gather", [steps.constant(orders.astype(np.int64)), turn], {"axis": 0})
        partial = steps.op("Gather", [partial, order], {"axis": 0})
    rows = [steps.op("Gather", [partial, steps.constant(np.int64(row))], {"axis": 0}) for row in range(count)]
    return _in_turn(rows, steps)


def _in_turn(terms: list[ir.Value], steps: Steps) -> ir.Value:
    total = terms[0]
    for term in terms[1:]:
        total = steps.rounded(steps.add(total, term))
    return total


def log_sum_exp_in_steps(node: ir.Node, steps: Steps) -> ir.Value:
    """Write ReduceLogSumExp: the largest is subtracted, and every step rounded."""
    r, wide = steps.rounded, _terms(node, steps)
    largest = _summed(node, steps, "ReduceMax", wide, keepdims=True)
    summed = _summed(node, steps, "ReduceSum", r(steps.op("Exp", [r(steps.sub(wide, largest))])))
    flat = steps.reshape_like(largest, summed)
    return steps.add(r(steps.op("Log", [r(summed)])), flat)


def sum_in_turn(node: ir.Node, steps: Steps) -> ir.Value:
    """Write Sum: every partial sum is rounded."""
    return _in_turn([steps.high(value) for value in node.inputs if value is not None], steps)


def cumsum_in_turn(node: ir.Node, steps: Steps) -> ir.Value:
    """Write CumSum: every partial sum is rounded. Sums of unknown or many terms are written as one rounding each."""
    value, axis = node.inputs[0], constant_array(node.inputs[1])
    shape = steps.shape_in_run(value)
    if value is None or axis is None or shape is None or _is_special(node):
        return computed_wide(node, steps)[0]
    place = int(axis.reshape(-1)[0]) % len(shape)
    if not 1 < shape[place] <= _LONGEST_CUMSUM:
        return computed_wide(node, steps)[0]
    return _scanned(steps.high(value), place, len(shape), steps)


def _is_special(node: ir.Node) -> bool:
    return bool(node.attributes.get_int("exclusive", 0) or node.attributes.get_int("reverse", 0))


def _scanned(x: ir.Value, axis: int, rank: int, steps: Steps) -> ir.Value:
    """Return the running sums along an axis, by a Scan whose body adds a term and rounds."""
    first = steps.slice(x, [0], [1], [axis])
    start = steps.squeeze(steps.mul(first, 0.0), [axis])
    body = _adding_body(steps, rank - 1)
    attributes = {"body": body, "num_scan_inputs": 1, "scan_input_axes": [axis], "scan_output_axes": [axis]}
    running = steps.nodes("Scan", [start, x], attributes, outputs=2)[1]
    running.type, running.shape = x.type, x.shape
    return running


def _adding_body(steps: Steps, rank: int) -> ir.Graph:
    names = steps.names
    dtype, shape = ir.TensorType(ir.DataType.FLOAT), [None] * rank
    total, term = (ir.Value(name=names.fresh("device_cumsum"), type=dtype, shape=ir.Shape(shape)) for _ in range(2))
    body = ir.Graph([total, term], [], nodes=[], name=names.fresh("device_cumsum_body"), opset_imports={})
    with steps.inside(body):
        result = steps.rounded(steps.add(total, term))
        copy = steps.op("Identity", [result])
    body.outputs.extend([result, copy])
    return body


SUMS = named(
    cumsum_in_turn,
    log_sum_exp_in_steps,
    squares_first,
    sum_in_turn,
    sum_then_divide,
    sums_of_blocks,
)
"""Name in the table -> the rule."""
