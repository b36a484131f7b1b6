"""Weights 16-bit rows and takes their mean off by one product with a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.cost.form_prices import seconds_of_form
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.match import Binding, bindings, parse_form
from amp_transpiler.graph.walk import is_used
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["CentreByProducts"]

_FORM = parse_form("Sub(weighted:Mul(rows, weights), mean:MatMul(rows, share:Mul(column:Reshape(weights), c)))")
_SCALE = 2**-8  # by which 16 bits may round a factor
_OPSET = 17  # any from which the operators have these attributes

_Kind: TypeAlias = "tuple[int, ir.DataType | None]"


class CentreByProducts(Pass[PassResult]):
    """Writes 16-bit rows times a vector, less the mean of that, as a product with a matrix; counts them.

    The gradient of a LayerNormalization begins so: three kernels that read and write all rows. With `w` the vector and
    `n` its length, `r w - mean(r w)` is `r M`, with the matrix `M = diag(w) - w / n`, which is small, and which one
    kernel writes. The product sums in float32, and is rounded once.

    1. The mean is a product with `w / n` (MeanByProducts, or the gradient itself), read only by the difference.
    2. The product takes less time by the price list, the matrix included.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        builder, count = GraphBuilder(model, prefix="centre/"), 0
        known: dict[_Kind, ir.Value] = {}
        for node in list(model.graph):
            centred = _centred(node)
            if centred is not None:
                builder.before, builder.metadata = node, dict(node.metadata_props)
                _rewrite(builder, centred, known)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


def _centred(node: ir.Node) -> Binding | None:
    """Return the rows that a node centres, where a product does it sooner; None for others."""
    for centred in bindings(_FORM, node):
        rows, weights = centred["rows"], centred["weights"]
        if rows.dtype not in LOW_DTYPES or not all(map(is_static, (rows, weights, centred["weighted"]))):
            continue
        sizes = shape_of(rows)
        if shape_of(weights) != sizes[-1:] or shape_of(centred["weighted"]) != sizes or not _is_mean(centred):
            continue
        inner = [centred[name] for name in ("weighted", "mean")]
        is_apart = all(len(value.uses()) == 1 and not value.is_graph_output() for value in inner)
        if is_apart and not node.outputs[0].is_graph_output() and _pays(rows):
            return centred
    return None


def _is_mean(centred: Binding) -> bool:
    """Whether the column is divided by its length."""
    length = shape_of(centred["weights"])[0]
    factors = [constant_of(value) for value in centred.node("share").inputs if value is not None]
    numbers = [float(factor.numpy().reshape(())) for factor in factors if factor is not None and factor.size == 1]
    shape = centred["column"].shape
    is_column = shape is not None and tuple(shape) == (length, 1)
    return is_column and len(numbers) == 1 and abs(numbers[0] * length - 1) < _SCALE


def _pays(rows: ir.Value) -> bool:
    """Return whether the product takes less time than the mean and the difference, by the price list."""
    dtype, sizes = rows.dtype or ir.DataType.FLOAT16, shape_of(rows)
    length = sizes[-1]
    inputs = [(dtype, sizes), (dtype, (length,)), (dtype, (length, length))]

    def apart(builder: GraphBuilder, values: Sequence[ir.Value]) -> None:
        gradient, weights, _ = values
        mean = builder.matmul(gradient, builder.mul(builder.reshape(weights, [length, 1]), 1 / length))
        builder.sub(builder.mul(gradient, weights), mean)

    def together(builder: GraphBuilder, values: Sequence[ir.Value]) -> None:
        gradient, weights, centring = values
        builder.matmul(gradient, _matrix(builder, weights, centring))

    return seconds_of_form(together, inputs, _OPSET) < seconds_of_form(apart, inputs, _OPSET)


def _matrix(builder: GraphBuilder, weights: ir.Value, centring: ir.Value) -> ir.Value:
    """Return the matrix that weights a row and takes its mean off."""
    return builder.mul(builder.reshape(weights, [shape_of(weights)[0], 1]), centring)


def _centring(builder: GraphBuilder, weights: ir.Value) -> ir.Value:
    """Return the matrix that takes the mean off a row, computed in each step: a constant would always take memory.

    ONNX Runtime computes what depends on nothing when the session opens. So this reads weights, though it is the same
    for all that are numbers.
    """
    (length,) = shape_of(weights)
    numbers = np.arange(length, dtype=np.int32)
    columns = builder.where(builder.op("IsNaN", [weights]), builder.constant(np.int32(-1)), builder.constant(numbers))
    is_diagonal = builder.compare("Equal", builder.constant(numbers[:, None]), columns)
    on, off = (builder.constant(number, weights.dtype) for number in (1 - 1 / length, -1 / length))
    return builder.where(is_diagonal, on, off)


def _rewrite(builder: GraphBuilder, centred: Binding, known: dict[_Kind, ir.Value]) -> None:
    """Replace the difference; `known` has the matrices that take a mean off, by length and element type."""
    node, weights = centred.last, centred["weights"]
    kind = (shape_of(weights)[0], weights.dtype)
    if kind not in known:
        known[kind] = _centring(builder, weights)
    result = builder.matmul(centred["rows"], _matrix(builder, weights, known[kind]))
    node.outputs[0].replace_all_uses_with(result)
    for each in (node, *(centred.node(name) for name in ("weighted", "mean", "share", "column"))):
        if not any(map(is_used, each.outputs)):
            builder.graph.remove(each, safe=True)
