"""Adds wide biases inside matrix products, by a column of ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.cost.form_prices import seconds_of_form
from amp_transpiler.cost.products import ALIGNED
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.match import Binding, bindings, only_read_within, parse_form
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["BiasColumns"]

_FORM = parse_form("Add(MatMul(rows, weight), bias)")
_OPSET = 17  # any from which the operators have these attributes
_DTYPES = (ir.DataType.FLOAT, *LOW_DTYPES)


class BiasColumns(Pass[PassResult]):
    """Multiplies rows with a column of ones and a weight with its bias as a row; counts the biases.

    ONNX Runtime writes the bias over the whole result first, one number a thread, and adds the product to it. Where the
    result is much wider than the rows are long, both copies take less time.

    1. Rows and weight are matrices, and nothing else reads the product.
    2. It takes less time by the price list.

    The columns more are as many as tensor cores like; those behind the ones are zeros, whatever the weight has there. A
    product in TF32 rounds the bias as it rounds the weight. Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        builder, count = GraphBuilder(model, prefix="bias/"), 0
        for node in [node for node in model.graph if node.op_type == "Add"]:
            biased = next((each for each in bindings(_FORM, node) if _fits(each)), None)
            if biased is not None:
                _rewrite(builder, biased)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


def _fits(biased: Binding) -> bool:
    """Whether a bias is added to a product of matrices, and a column pays."""
    operands, result = _operands(biased), biased.last.outputs[0]
    if not all(is_static(value) for value in (*operands, result)) or result.dtype not in _DTYPES:
        return False
    rows, weight, bias = map(shape_of, operands)
    if len(rows) != 2 or len(weight) != 2 or bias != weight[1:] or not only_read_within(biased.nodes, biased.last):
        return False
    inputs = [(result.dtype, shape_of(value)) for value in operands]
    return seconds_of_form(_beside, inputs, _OPSET) < seconds_of_form(_over, inputs, _OPSET)


def _operands(biased: Binding) -> list[ir.Value]:
    return [biased[name] for name in ("rows", "weight", "bias")]


def _over(builder: GraphBuilder, operands: Sequence[ir.Value]) -> ir.Value:
    """Write the product as ONNX Runtime fuses it."""
    return builder.op("Gemm", operands)


def _beside(builder: GraphBuilder, operands: Sequence[ir.Value]) -> ir.Value:
    """Write the product of the rows with ones and the weight with its bias."""
    rows, weight, bias = operands
    count, length = shape_of(rows)
    aligned = ALIGNED[rows.dtype.name.lower() if rows.dtype in LOW_DTYPES else "float32"]
    extra = aligned - length % aligned
    column = builder.reshape(bias, [1, shape_of(bias)[0]])
    wide = builder.concat([rows, _ones(builder, rows, count, extra)], 1)
    return builder.matmul(wide, builder.concat([weight, *[column] * extra], 0))


def _ones(builder: GraphBuilder, rows: ir.Value, count: int, extra: int) -> ir.Value:
    """Return a column of ones and columns of zeros; an equal constant that is there takes no memory once more."""
    content = np.eye(1, extra, dtype=np.float32).repeat(count, 0)
    for value in builder.model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or value.dtype != rows.dtype or tuple(tensor.shape) != content.shape:
            continue
        if (tensor.numpy().astype(np.float32) == content).all():
            return value
    return builder.constant(content, rows.dtype)


def _rewrite(builder: GraphBuilder, biased: Binding) -> None:
    node = biased.last
    builder.before, builder.metadata = node, dict(node.metadata_props)
    take_over(node.outputs[0], _beside(builder, _operands(biased)), builder.names)
    builder.graph.remove(sorted(biased.nodes, key=lambda each: each is not node), safe=True)
