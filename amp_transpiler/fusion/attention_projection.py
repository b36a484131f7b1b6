"""Queries, keys and values as products of one value with constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from amp_transpiler.fusion.attention_values import changes_nothing, made_by, turns
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.ops.names import is_standard

__all__ = ["Projection", "projection", "weight_array"]


@dataclasses.dataclass(frozen=True, slots=True)
class Projection:
    """A value that is `source @ weight[:, start:stop] + bias[start:stop]`, with constants.

    Attributes:
        source: of rank 3.
        weight: of rank 2.
        bias: None without one.
        start, stop: columns.
    """

    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    start: int
    stop: int


def projection(value: ir.Value, sizes: Sizes) -> Projection | None:
    """Return how a value is a product with constants, if it is one."""
    part = value.producer()
    while part is not None and changes_nothing(part) and part.inputs[0] is not None:
        value, part = part.inputs[0], part.inputs[0].producer()
    if part is not None and is_standard(part) and part.op_type in ("Split", "Slice"):
        whole, start = _offset(part, value, sizes)
        product = None if whole is None else _product(whole, sizes)
        width = sizes.shape(value)
        if product is None or width is None or start is None or not isinstance(width[-1], int):
            return None
        return dataclasses.replace(product, start=start, stop=start + width[-1])
    return _product(value, sizes)


def _offset(part: ir.Node, value: ir.Value, sizes: Sizes) -> tuple[ir.Value | None, int | None]:
    """Return what a part of the last axis is taken from, and where it begins."""
    whole = part.inputs[0]
    shape = sizes.shape(whole)
    if whole is None or shape is None or not isinstance(shape[-1], int):
        return None, None
    if part.op_type == "Split":
        if part.attributes.get_int("axis", 0) % len(shape) != len(shape) - 1:
            return None, None
        ends = [sizes.shape(output) for output in part.outputs[: part.outputs.index(value)]]
        widths = [end[-1] for end in ends if end is not None]
        if len(widths) < len(ends) or not all(isinstance(width, int) for width in widths):
            return None, None
        return whole, sum(int(width) for width in widths)
    bounds = [sizes.content(bound) for bound in part.inputs[1:5]]
    if len(bounds) < 3 or any(bound is None or len(bound) != 1 for bound in bounds):
        return None, None
    start, _, axis, *step = (bound[0] for bound in bounds if bound is not None)
    fits = (
        isinstance(start, int) and isinstance(axis, int) and axis % len(shape) == len(shape) - 1 and step in ([], [1])
    )
    return (whole, int(start) % shape[-1]) if fits else (None, None)


def _product(value: ir.Value, sizes: Sizes) -> Projection | None:
    reshape = made_by(value, "Reshape")
    if reshape is not None:
        return _flat_product(reshape, sizes)
    bias: ir.Value | None = None
    product: ir.Value | None = value
    if (add := made_by(value, "Add")) is not None:
        product, bias = next(_with_bias(add), (None, None))
    multiply = made_by(product, "MatMul")
    if multiply is None:
        return None
    return _checked(multiply.inputs[0], multiply.inputs[1], bias, sizes)


def _with_bias(add: ir.Node) -> Iterator[tuple[ir.Value | None, ir.Value | None]]:
    for product, bias in (tuple(add.inputs), tuple(reversed(add.inputs))):
        if constant_array(bias) is not None:
            yield product, bias


def _flat_product(reshape: ir.Node, sizes: Sizes) -> Projection | None:
    """Read a product that is done in two dimensions."""
    gemm = made_by(reshape.inputs[0], "Gemm")
    flat = None if gemm is None else made_by(gemm.inputs[0], "Reshape")
    if gemm is None or flat is None or any(gemm.attributes.get_int(name, 0) for name in ("transA", "transB")):
        return None
    if any(gemm.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return None
    source, outside = sizes.shape(flat.inputs[0]), sizes.shape(reshape.outputs[0])
    if source is None or outside is None or len(source) != 3 or len(outside) != 3:
        return None
    bias = gemm.inputs[2] if len(gemm.inputs) > 2 else None
    if source[0] != outside[0] and source[1] != outside[1]:
        return None
    return _checked(flat.inputs[0], gemm.inputs[1], bias, sizes)


def _checked(
    source: ir.Value | None, weight: ir.Value | None, bias: ir.Value | None, sizes: Sizes
) -> Projection | None:
    shape, table = sizes.shape(source), constant_shape(weight)
    if source is None or weight is None or shape is None or len(shape) != 3 or table is None or len(table) != 2:
        return None
    if shape[2] != table[0] or (bias is not None and constant_shape(bias) != (table[1],)):
        return None
    return Projection(source, weight, bias, 0, table[1])


def constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a constant, or of one that is turned, without reading it."""
    if value is not None and value.is_initializer() and not value.is_graph_input():
        tensor = value.const_value
        if tensor is not None:
            return tuple(int(size) for size in tensor.shape.numpy())
    if (turned := made_by(value, "Transpose")) is not None:
        shape = constant_shape(turned.inputs[0])
        return None if shape is None or not turns(turned, (1, 0)) else shape[::-1]
    content: np.ndarray | None = constant_array(value)
    return None if content is None else content.shape


def weight_array(value: ir.Value | None) -> np.ndarray | None:
    """Return a constant, also where it is one that is turned by a Transpose."""
    turned = made_by(value, "Transpose")
    if turned is None or not turns(turned, (1, 0)):
        return constant_array(value)
    array = constant_array(turned.inputs[0])
    return None if array is None else array.T
