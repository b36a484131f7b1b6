"""Compares forms of an attention's products, by the price list."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.cost.form_prices import busy_seconds_of_form, seconds_of_form
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.contrib_node import contrib

__all__ = ["is_cheaper_as_operator", "is_cheaper_in_columns", "is_cheaper_joined"]

_LOW = ir.DataType.FLOAT16  # bfloat16 has the same prices
_OPSET = 17  # any from which the operators have these attributes
_OPSET_OF_ATTENTION = 23


@functools.lru_cache
def is_cheaper_as_operator(
    batch: int, heads: int, queries: int, keys: int, size: int, *, masked: bool, chosen: bool
) -> bool:
    """Whether ONNX's Attention costs less than two products with a softmax between.

    What makes queries, keys and values costs the same for both. A mask is free in the softmax, which takes it in.

    Args:
        batch: how many samples.
        heads: how many heads each has.
        queries: rows of a head.
        keys: rows that they meet.
        size: of a head.
        masked: a mask says which scores count.
        chosen: the operator needs a choice between queries and 0, and the pieces do not.
    """
    mask = [(_LOW, (batch, 1, queries, keys))] * masked
    in_rows = [(_LOW, (batch, rows, heads * size)) for rows in (queries, keys, keys)]
    by_positions = [(_LOW, (rows, batch, heads, size)) for rows in (queries, keys, keys)]

    def operator(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        query, key, value, *masks = inputs[: 4 if masked else 3]
        if chosen:
            query = builder.op("Where", [inputs[-1], query, query])  # by which number is the same
        builder.op("Attention", [query, key, value, *masks], {"q_num_heads": heads, "kv_num_heads": heads})

    def pieces(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        query, key, value = inputs
        flags = {"transBatchA": 1, "transBatchB": 1, "transB": 1}
        scores = _product(builder, query, key, flags, (batch, heads, queries, keys))
        weights = builder.op("Softmax", [scores], {"axis": -1})
        parts = _product(builder, weights, value, {"transBatchB": 1}, (batch, heads, queries, size))
        builder.transpose(parts, [0, 2, 1, 3])

    rows = [(ir.DataType.BOOL, (batch, queries, 1))] * chosen
    as_operator = seconds_of_form(operator, [*in_rows, *mask, *rows], _OPSET_OF_ATTENTION)
    return as_operator < seconds_of_form(pieces, by_positions, _OPSET)


@functools.lru_cache
def is_cheaper_in_columns(batch: int, heads: int, queries: int, keys: int, size: int, width: int) -> bool:
    """Whether a product reads columns of an attention's result at less than its rows.

    Rows are copied in front of it, since heads come before positions. Columns are not, but lie as many elements apart
    as there are queries, and each sample has a product of its own.

    Args:
        batch: how many samples.
        heads: how many heads each has.
        queries: rows of a head's weights.
        keys: their columns.
        size: of a head's values.
        width: of the product.
    """
    tensors = [
        (_LOW, (batch, heads, queries, keys)),
        (_LOW, (keys, batch, heads, size)),
        (_LOW, (heads * size, width)),
    ]

    def rows(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        weights, values, matrix = inputs
        parts = _product(builder, weights, values, {"transBatchB": 1}, (batch, heads, queries, size))
        turned = builder.reshape(builder.transpose(parts, [0, 2, 1, 3]), [batch, queries, heads * size])
        builder.matmul(turned, matrix)

    def columns(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        weights, values, matrix = inputs
        flags = {"transBatchA": 1, "transA": 1, "transB": 1}
        parts = _product(builder, values, weights, flags, (batch, heads, size, queries))
        turned = builder.reshape(parts, [batch, heads * size, queries])
        _product(builder, turned, matrix, {"transA": 1}, (batch, queries, width))

    return busy_seconds_of_form(columns, tensors, _OPSET) < busy_seconds_of_form(rows, tensors, _OPSET)


@functools.lru_cache
def is_cheaper_joined(rows: int, height: int, width: int, biased: tuple[bool, ...]) -> bool:
    """Whether products of the same rows cost less as one, which is split, than one by one.

    Args:
        rows: how many.
        height: of the matrix of each product.
        width: of the same.
        biased: which of them add a vector.
    """
    count = len(biased)
    data = (_LOW, (rows, height))

    def form(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        """Multiply by each matrix, and split the result if there is one matrix for all."""
        rows, *others = inputs
        matrices, vectors = [each for each in others if _rank(each) == 2], [each for each in others if _rank(each) == 1]
        results = [builder.op("Gemm", [rows, *pair]) for pair in zip(matrices, vectors, strict=False)]
        results += [builder.matmul(rows, matrix) for matrix in matrices[len(vectors) :]]
        if len(matrices) == 1:
            builder.nodes("Split", results, {"axis": 1}, outputs=count)

    joined = [data, (_LOW, (height, count * width)), *[(_LOW, (count * width,))] * any(biased)]
    apart = [data, *[(_LOW, (height, width))] * count, *[(_LOW, (width,))] * sum(biased)]
    return busy_seconds_of_form(form, joined, _OPSET) < busy_seconds_of_form(form, apart, _OPSET)


def _rank(value: ir.Value) -> int:
    return 0 if value.shape is None else len(value.shape)


def _product(
    builder: GraphBuilder, left: ir.Value, right: ir.Value, flags: dict[str, int], shape: tuple[int, ...]
) -> ir.Value:
    return contrib(builder, "FusedMatMul", [left, right], flags, _LOW, shape)
