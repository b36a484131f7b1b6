"""Queries, keys and values that are products with constants which nobody else needs: written apart, or as one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.fusion.attention_operands import Operand
from amp_transpiler.fusion.attention_prices import is_cheaper_joined
from amp_transpiler.fusion.attention_projection import Projection, constant_shape, projection, weight_array
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = [
    "joined",
    "joins_products",
    "products_of",
    "source_of",
    "unshared_parts",
    "whole_products",
    "widths_of",
    "written_product",
]

_FLOAT = ir.DataType.FLOAT


def source_of(operand: Operand, sizes: Sizes) -> ir.Value:
    """Return what an operand may be made of anew."""
    product = projection(operand.whole, sizes)
    return operand.whole if product is None else product.source


def products_of(operands: Sequence[Operand], gone: Collection[ir.Node], sizes: Sizes) -> tuple[Projection | None, ...]:
    """Return how each operand is all columns of a product with constants that nobody else needs, where it is one.

    Args:
        operands: queries, keys and values.
        gone: nodes that nobody reads any more once attention is written anew.
        sizes: the sizes of the graph's values.
    """
    return whole_products(operands, unshared_parts(operands, gone, sizes))


def unshared_parts(operands: Sequence[Operand], gone: Collection[ir.Node], sizes: Sizes) -> list[Projection | None]:
    """Return how each operand is a part of a product that nobody else needs, where it is one: see `products_of`."""
    parts = [projection(operand.whole, sizes) for operand in operands]
    return [
        part if part is not None and _is_only_read_by(gone, operand.whole, part) else None
        for operand, part in zip(operands, parts, strict=True)
    ]


def whole_products(operands: Sequence[Operand], parts: Sequence[Projection | None]) -> tuple[Projection | None, ...]:
    """Return those of the parts that are all columns of their products."""
    return tuple(
        part if part is not None and _is_all_of(part, operand) else None
        for operand, part in zip(operands, parts, strict=True)
    )


def widths_of(product: Projection) -> tuple[int, ...]:
    """Return height and width of the constants of a product."""
    shape = constant_shape(product.weight)
    assert shape is not None, "a projection has constants"
    return shape


# ---- as one product, or several ----
def joins_products(
    operands: Sequence[Operand], products: Sequence[Projection | None], biased: Sequence[bool], sizes: Sizes
) -> bool:
    """Whether the products that operands are cost less as one, by the price list; where a size is open, they do not.

    Args:
        operands: queries, keys and values.
        products: how each is a product.
        biased: of each, whether it keeps its bias.
        sizes: the sizes of the graph's values.
    """
    parts = [product for product in products if product is not None]
    if len(parts) < len(operands) or len({part.source for part in parts}) > 1:
        return False
    if len({(operand.width, operand.order) for operand in operands}) > 1:
        return False
    shape = sizes.shape(parts[0].source) or ("",)
    known = [side for side in shape if isinstance(side, int)]
    adds = tuple(keeps and part.bias is not None for keeps, part in zip(biased, parts, strict=True))
    rows, height = math.prod(known[:-1]), known[-1] if known else 0
    return len(known) == len(shape) and is_cheaper_joined(rows, height, operands[0].width, adds)


def joined(builder: NodeBuilder, products: Sequence[Projection | None], biased: Sequence[bool]) -> Projection:
    """Return products as one, with constants side by side; those that are not `biased` lose their biases."""
    parts = [product for product in products if product is not None]
    arrays = [(weight_array(part.weight), constant_array(part.bias)) for part in parts]
    matrices = [matrix for matrix, _ in arrays if matrix is not None]
    vectors = [
        vector if keeps and vector is not None else np.zeros(matrix.shape[1], np.float32)
        for matrix, (_, vector), keeps in zip(matrices, arrays, biased, strict=True)
    ]
    weight, bias = np.concatenate(matrices, axis=1), np.concatenate(vectors)
    is_biased = any(keeps and vector is not None for keeps, (_, vector) in zip(biased, arrays, strict=True))
    offset = builder.weight("qkv_bias", bias) if is_biased else None
    return Projection(parts[0].source, builder.weight("qkv_weight", weight), offset, 0, weight.shape[1])


def written_product(builder: NodeBuilder, rows: ir.Value, product: Projection, *, keeps_bias: bool) -> ir.Value:
    """Return the product of rows with the constants of another, with its bias if `keeps_bias`."""
    value = builder.node("MatMul", [rows, product.weight], dtype=_FLOAT)
    if product.bias is None or not keeps_bias:
        return value
    return builder.node("Add", [value, product.bias], dtype=_FLOAT)


def _is_only_read_by(gone: Collection[ir.Node], whole: ir.Value, product: Projection) -> bool:
    """Whether all that computes a value from the source of a product is gone."""
    waiting = [whole]
    while waiting:
        value = waiting.pop()
        if value is product.source or constant_shape(value) is not None:
            continue
        node = value.producer()
        if node is None or node not in gone:
            return False
        waiting += [each for each in node.inputs if each is not None and each.dtype == _FLOAT]
    return True


def _is_all_of(product: Projection, operand: Operand) -> bool:
    return operand.parts == 1 and (product.start, product.stop) == (0, widths_of(product)[1])
