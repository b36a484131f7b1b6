"""Activations as WebGPU's shaders compute them: by float16 functions of WGSL, with absolute errors near zero.

A shader writes Tanh and Erf, and the GELUs that are made of them, as sums and quotients that are about 1 for small
inputs: their results are off by some units in the last place of 1, however small they are. Sources: ONNX Runtime's
unary_elementwise_ops.cc, and what Mesa's lavapipe computes of all 63,488 finite inputs.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from amp_transpiler.passes.device_arithmetic.steps import Steps, named
from amp_transpiler.passes.device_arithmetic.wide import computed_wide

__all__ = ["SHADER_FUNCTIONS"]


def in_steps_of_2_to_minus_7(node: ir.Node, steps: Steps) -> ir.Value:
    """Write a function whose results are off by up to 2**-8."""
    return _in_steps_of(node, 7, steps)


def in_steps_of_2_to_minus_8(node: ir.Node, steps: Steps) -> ir.Value:
    """Write a function whose results are off by up to 2**-9."""
    return _in_steps_of(node, 8, steps)


def in_steps_of_2_to_minus_9(node: ir.Node, steps: Steps) -> ir.Value:
    """Write a function whose results are off by up to 2**-10."""
    return _in_steps_of(node, 9, steps)


def _in_steps_of(node: ir.Node, bits: int, steps: Steps) -> ir.Value:
    """Return the result in steps of 2**-bits, which are smaller than those of the format for large results."""
    result = computed_wide(node, steps)[0]
    return steps.mul(steps.op("Round", [steps.mul(result, 2.0**bits)]), 2.0**-bits)


def exp_by_powers_of_two(node: ir.Node, steps: Steps) -> ir.Value:
    """Write Exp as a power of two, whose exponent is rounded: its error grows with the input."""
    return _exp(_read(node, steps), steps)


def sigmoid_by_exp(node: ir.Node, steps: Steps) -> ir.Value:
    """Write Sigmoid as 1 / (1 + exp(-x)), each step rounded: 0 for inputs below -11."""
    r = steps.rounded
    exponential = r(_exp(steps.neg(_read(node, steps)), steps))
    return steps.op("Div", [steps.constant(1.0), r(steps.add(exponential, 1.0))])


def _exp(x: ir.Value, steps: Steps) -> ir.Value:
    exponent = steps.rounded(steps.mul(x, steps.held(math.log2(math.e))))
    return steps.op("Exp", [steps.mul(exponent, math.log(2.0))])


def _read(node: ir.Node, steps: Steps) -> ir.Value:
    value = node.inputs[0]
    assert value is not None  # every activation reads one
    return steps.high(value)


SHADER_FUNCTIONS = named(
    exp_by_powers_of_two,
    in_steps_of_2_to_minus_7,
    in_steps_of_2_to_minus_8,
    in_steps_of_2_to_minus_9,
    sigmoid_by_exp,
)
"""Name in the table -> the rule."""
