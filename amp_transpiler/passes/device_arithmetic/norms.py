"""Kernels of normalisations that round before they normalise."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.passes.device_arithmetic.steps import Steps, named

__all__ = ["NORMS"]

_EPSILON = 1e-5  # ONNX Runtime's default
_BIAS = 3  # the index of the input


def sum_of_squares_low(node: ir.Node, steps: Steps) -> list[ir.Value]:
    """Write SkipSimplifiedLayerNormalization whose sum of squares is rounded: infinite where values are large."""
    x, skip, scale = (_wide(node, index, steps) for index in range(3))
    total = steps.add(x, skip)
    if len(node.inputs) > _BIAS and node.inputs[_BIAS] is not None:
        total = steps.add(total, _wide(node, _BIAS, steps))
    total = steps.rounded(total)
    squares = steps.rounded(steps.sum(steps.rounded(steps.mul(total, total)), [-1]))
    width = steps.cast(steps.slice(steps.shape(total), [-1], [2**31], [0]), ir.DataType.FLOAT)
    epsilon = node.attributes.get_float("epsilon", _EPSILON)
    root = steps.op("Sqrt", [steps.add(steps.div(squares, width), epsilon)])
    inverse = steps.div(steps.constant(1.0), root)
    result = steps.mul(steps.mul(total, inverse), scale)
    return [result, root, inverse, total][: len(node.outputs)]


def _wide(node: ir.Node, index: int, steps: Steps) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return steps.high(value)


NORMS = named(sum_of_squares_low)
"""Name in the table -> the rule."""
