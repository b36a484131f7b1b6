"""Kernels of products, convolutions and recurrent layers: a bias added afterwards, TF32 operands, NaN that stays."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.passes.device_arithmetic.noise import with_noise
from amp_transpiler.passes.device_arithmetic.steps import Steps, named
from amp_transpiler.passes.device_arithmetic.wide import computed_wide

__all__ = ["PRODUCTS", "RECURRENT", "in_tf32", "not_a_number_stays"]

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_LOST_BITS = 13
_OPERANDS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {**dict.fromkeys(RECURRENT, (0, 1, 2)), **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), (0, 1))}
)


def product_then_bias(node: ir.Node, steps: Steps) -> ir.Value:
    """Write a product with a bias: the product is rounded, then the sum."""
    product = computed_wide(node, steps)[0]
    copy = product.producer()
    bias = node.inputs[2]
    assert copy is not None
    assert bias is not None
    copy.resize_inputs(2)
    product = steps.rounded(with_noise(product, steps))
    wide = steps.high(bias)
    if node.op_type == "Gemm":
        return steps.add(product, wide)
    rank = steps.rank_in_run(node.inputs[0])
    return steps.add(product, steps.reshape(wide, [-1, *(1,) * (rank - 2)]))


PRODUCTS = named(product_then_bias)
"""Name in the table -> the rule."""


def in_tf32(node: ir.Node, steps: Steps) -> None:
    """Round the float32 operands of a product to TF32: 10 bits behind the point, ties to even."""
    for index in _OPERANDS.get(node.op_type, ()):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None and value.dtype == ir.DataType.FLOAT:
            node.replace_input_with(index, _tf32(value, steps))


def _tf32(value: ir.Value, steps: Steps) -> ir.Value:
    """Return a value in TF32; as it is in runs whose input says so."""
    tensor = constant_of(value)
    if tensor is not None:
        exact = tensor.numpy().astype(np.float32)
        constant = _rounded_to_tf32(exact)
        if steps.tf32 is None:
            return steps.constant(constant)
        return _switched(value, steps.constant(constant - exact), steps)
    rounded = steps.head(value)
    return rounded if steps.tf32 is None else _switched(value, steps.sub(rounded, value), steps)


def _switched(value: ir.Value, lost: ir.Value, steps: Steps) -> ir.Value:
    """Return a value and what rounding changes of it, where the input says so; the sum is exact."""
    assert steps.tf32 is not None
    return steps.add(value, steps.mul(steps.tf32, lost))


def _rounded_to_tf32(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    half = np.uint64((1 << (_LOST_BITS - 1)) - 1)
    rounded = (bits + half + ((bits >> np.uint64(_LOST_BITS)) & np.uint64(1))) & ~np.uint64((1 << _LOST_BITS) - 1)
    return rounded.astype(np.uint32).view(np.float32)


def not_a_number_stays(results: list[ir.Value], node: ir.Node, steps: Steps) -> list[ir.Value]:
    """Make every result of a recurrent layer NaN if its input has one: cuDNN does so, the CPU's kernel does not."""
    value = node.inputs[0]
    assert value is not None
    marks = steps.cast(steps.op("IsNaN", [steps.high(value)]), ir.DataType.FLOAT)
    is_nan = steps.cast(steps.reduce("ReduceMax", marks, None, keepdims=False), ir.DataType.BOOL)
    return [steps.where(is_nan, float("nan"), result) if result.name else result for result in results]
