"""Computes gradients of biases as rows of the gradients of their weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.cost.form_prices import seconds_of_form
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["BiasGradients"]

_OPSET = 17  # any from which the operators have these attributes


class BiasGradients(Pass[PassResult]):
    """Sums slopes over the rows in the product that makes a weight's gradient; counts the sums.

    Where rows have a column of ones beside them, for a bias (`BiasColumns`), their product with the slopes has the sum
    of the slopes as a row. The slopes, which are as wide as the layer, are read once less.

    1. It takes less time by the price list; what is above that row is copied, since it is the weight's gradient.
    2. A product in TF32 rounds the slopes of the bias as it rounds those of the weight.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        builder, count = GraphBuilder(model, prefix="bias/"), 0
        for node in list(model.graph):
            for pair in _pairs(node) if _has_ones(node) else ():
                _rewrite(builder, node, pair)
                count += 1
        if count:
            model.graph.sort()
        return PassResult(model, modified=bool(count), count=count)


@dataclasses.dataclass(frozen=True, slots=True)
class _Pair:
    """The gradients of a weight and its bias.

    Attributes:
        product: transposed rows times slopes.
        total: the sum of the slopes over the rows.
    """

    product: ir.Node
    total: ir.Node

    @property
    def slopes(self) -> ir.Value:
        """The value that both read."""
        value = self.product.inputs[1]
        assert value is not None
        return value


def _has_ones(node: ir.Node) -> bool:
    """Whether a node puts a column of ones, and only zeros behind it, beside rows."""
    if node.op_type != "Concat" or not is_standard(node) or len(node.inputs) != 2:
        return False
    rows, columns = node.inputs
    if rows is None or columns is None or not (is_static(rows) and is_static(columns)) or len(shape_of(rows)) != 2:
        return False
    tensor = constant_of(columns)
    if tensor is None or node.attributes.get_int("axis", 0) not in (1, -1):
        return False
    content = tensor.numpy().astype(np.float32)
    return bool((content == np.eye(1, content.shape[1], dtype=np.float32)).all())


def _pairs(joined: ir.Node) -> Iterator[_Pair]:
    """Yield the gradients of weights and biases of the layers that read the rows of a node, where it pays."""
    rows = joined.inputs[0]
    assert rows is not None
    turned = [use.node.outputs[0] for use in rows.uses() if _turns(use.node)]
    for product in [
        use.node for value in turned for use in value.uses() if use.idx == 0 and use.node.op_type == "MatMul"
    ]:
        slopes = product.inputs[1]
        if slopes is None or not is_static(slopes) or product.outputs[0].is_graph_output():
            continue
        total = next((use.node for use in slopes.uses() if _sums_rows(use.node, slopes)), None)
        if total is not None and _pays(joined, slopes):
            yield _Pair(product, total)


def _turns(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and is_standard(node) and node.attributes.get_ints("perm", (1, 0)) == (1, 0)


def _sums_rows(node: ir.Node, slopes: ir.Value) -> bool:
    """Whether a node sums a matrix over its rows."""
    if not is_standard(node) or node.outputs[0].is_graph_output() or len(shape_of(slopes)) != 2:
        return False
    if node.op_type == "ReduceSum" and len(node.inputs) == 2:
        axes = None if node.inputs[1] is None else constant_of(node.inputs[1])
        return axes is not None and axes.numpy().reshape(-1).tolist() == [0]
    left = node.inputs[0] if node.op_type == "MatMul" and node.inputs[1] is slopes else None
    ones = None if left is None else constant_of(left)
    return ones is not None and tuple(ones.shape) == (1, shape_of(slopes)[0]) and bool((ones.numpy() == 1).all())


def _pays(joined: ir.Node, slopes: ir.Value) -> bool:
    rows, columns = (shape_of(value) for value in joined.inputs if value is not None)
    length = rows[1]

    def apart(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        _product(builder, inputs[0], inputs[2])
        if slopes.dtype == ir.DataType.FLOAT:
            builder.sum(inputs[2], [0])
        else:
            builder.matmul(builder.constant(np.ones((1, rows[0])), slopes.dtype), inputs[2])

    def together(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        _parts(builder, _product(builder, inputs[1], inputs[2]), length)

    assert slopes.dtype is not None  # its shape is known
    shapes = [rows, (rows[0], length + columns[1]), shape_of(slopes)]
    inputs = [(slopes.dtype, shape) for shape in shapes]
    return seconds_of_form(together, inputs, _OPSET) < seconds_of_form(apart, inputs, _OPSET)


def _product(builder: GraphBuilder, rows: ir.Value, slopes: ir.Value) -> ir.Value:
    """Write the gradient of a weight as it is once `FuseProducts` has run."""
    return builder.op("Gemm", [rows, slopes], {"transA": 1})


def _parts(builder: GraphBuilder, wide: ir.Value, length: int) -> tuple[ir.Value, ir.Value]:
    """Write the gradients of a weight and of its bias, a row."""
    return builder.slice(wide, [0], [length], [0]), builder.slice(wide, [length], [length + 1], [0])


def _rewrite(builder: GraphBuilder, joined: ir.Node, pair: _Pair) -> None:
    rows, slopes, product, total = joined.inputs[0], pair.slopes, pair.product, pair.total
    assert rows is not None
    builder.before, builder.metadata = product, dict(product.metadata_props)
    length = shape_of(rows)[1]
    wide = builder.matmul(builder.transpose(joined.outputs[0], [1, 0]), slopes)
    weight, bias = _parts(builder, wide, length)
    bias = builder.reshape(bias, list(shape_of(total.outputs[0])))
    for node, result in ((product, weight), (total, bias)):
        take_over(node.outputs[0], result, builder.names)
        remove_unread(node)
