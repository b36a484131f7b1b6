"""The noise of kernels, by which they differ from their rules: numbers that look random, another set for every draw.

They come from the last bits of the result itself, so that equal runs are equal, and a session need not be opened again
for another draw: which one it is, is an input.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from amp_transpiler.passes.device_arithmetic.steps import Steps

__all__ = ["DRAW", "TF32", "with_noise"]

DRAW = "amp_transpiler.draw"
"""The input that says which draw a run is: 0 for none, which is what the rules say; else 1, 2, 3 ..."""

TF32 = "amp_transpiler.tf32"
"""The input that says whether float32 products take operands in TF32: 1, as in CUDA's sessions by default, or 0."""

_SPREAD = 4.0e6  # radians: the last bits, less than 2**-11 of a result, turn into hundreds of waves
_SMALLEST = 2.0**-126  # a normal number, so that zeros divide
_LARGEST = 2.0**100  # beyond which the split overflows: larger numbers get the noise of this one, infinities none
_OF_DRAW, _OF_NODE = 12.9898, 78.233  # irrational enough that no two draws or nodes share their numbers


def with_noise(result: ir.Value, steps: Steps) -> ir.Value:
    """Return a float32 result that differs by up to the noise of its kernel, not rounded yet.

    Args:
        result: what the rule says; one without a name, which the node leaves out, and integers stay as they are.
        steps: inserts operators, and knows the noise.
    """
    if steps.draw is None or not steps.noise or not result.name or result.dtype != ir.DataType.FLOAT:
        return result
    share = steps.mul(steps.minimum(steps.draw, 1.0), steps.noise * 2.0**-steps.low.digits)
    phase = steps.add(steps.mul(steps.draw, _OF_DRAW), _OF_NODE * steps.place % (2 * math.pi))
    finite = steps.maximum(steps.minimum(result, _LARGEST), -_LARGEST)
    wave = steps.op("Sin", [steps.add(steps.mul(_last_bits(finite, steps), _SPREAD), phase)])
    return steps.add(result, steps.mul(steps.mul(wave, share), finite))


def _last_bits(result: ir.Value, steps: Steps) -> ir.Value:
    """Return what the last 13 bits of a float32 result are, relative to the result: at most 2**-11."""
    last = steps.sub(result, steps.head(result))
    return steps.div(last, steps.maximum(steps.op("Abs", [result]), _SMALLEST))
