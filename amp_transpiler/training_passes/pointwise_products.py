"""Computes convolutions of one sample with 1x1 kernels as products of two matrices."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.cost.form_prices import seconds_of_form
from amp_transpiler.cost.forms import Tensor
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.contrib_node import contrib
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["PointwiseProducts"]

_OPERATORS = ("Conv", "ConvTranspose")


class PointwiseProducts(Pass[PassResult]):
    """Writes Conv and ConvTranspose of one sample, whose kernel is one element, as products; counts them.

    With one sample, [1, C, ...] is a matrix [C, n] as it lies, and the result is one: the weight, for ConvTranspose
    transposed, times the matrix. A bias is added as a column.

    1. Nothing is padded or left out between elements, and there is one group.
    2. The product takes less time by the price list.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names: NameAllocator | None = None
        count = 0
        for node in list(model.graph):
            if not _is_pointwise(node) or not _is_faster(*_facts(node), _opset(model)):
                continue
            names = names or NameAllocator(model)
            prefix = f"{node.name}/"
            builder = GraphBuilder(model, before=node, names=names, metadata=node.metadata_props, prefix=prefix)
            result = _product(builder, node.op_type, _operands(node))
            take_over(node.outputs[0], result, names)
            _join_views(result)
            model.graph.remove(node, safe=True)
            count += 1
        return PassResult(model, modified=bool(count), count=count)


def _is_pointwise(node: ir.Node) -> bool:
    if node.op_type not in _OPERATORS or not is_standard(node) or not all(map(is_static, _operands(node))):
        return False
    data, weight = shape_of(_operands(node)[0]), shape_of(_operands(node)[1])
    is_plain = not any(node.attributes.get_ints("pads", ())) and not any(node.attributes.get_ints("output_padding", ()))
    is_dense = all(stride == 1 for stride in node.attributes.get_ints("strides", ()))
    is_whole = node.attributes.get_int("group", 1) == 1 and "output_shape" not in node.attributes
    return is_plain and is_dense and is_whole and data[0] == 1 and set(weight[2:]) == {1} and math.prod(data) > 0


def _operands(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]


def _opset(model: ir.Model) -> int:
    return model.graph.opset_imports[""]


def _facts(node: ir.Node) -> tuple[str, tuple[Tensor, ...]]:
    """Return what a price depends on: the operator, types and sizes of its operands."""
    operands = _operands(node)
    assert all(value.dtype is not None for value in operands), "the program is typed"
    return node.op_type, tuple((value.dtype, shape_of(value)) for value in operands if value.dtype is not None)


@functools.lru_cache(maxsize=1024)
def _is_faster(op_type: str, operands: tuple[Tensor, ...], opset: int) -> bool:
    """Whether a product takes less time than the convolution."""
    product = seconds_of_form(lambda builder, values: _product(builder, op_type, values), operands, opset)
    return product < seconds_of_form(lambda builder, values: builder.op(op_type, values), operands, opset)


def _product(builder: GraphBuilder, op_type: str, operands: Sequence[ir.Value]) -> ir.Value:
    data, weight, *biases = operands
    _, channels, *spatial = shape_of(data)
    rows = _view(builder, data, [channels, math.prod(spatial)])
    turned = op_type == "ConvTranspose"
    if (source := _transposed(weight)) is not None:
        weight, turned = source, not turned
    matrix = _view(builder, weight, shape_of(weight)[:2])
    results = shape_of(matrix)[turned]
    if biases:  # ONNX Runtime would make one Gemm of both, as the last node: what runs before it would be alive for it
        column = _view(builder, biases[0], [results, 1])
        product = builder.op("Gemm", [matrix, rows, column], {"transA": int(turned)})
    elif turned:
        shape = [results, math.prod(spatial)]
        product = contrib(builder, "FusedMatMul", [matrix, rows], {"transA": 1}, data.dtype, shape)
    else:
        product = builder.matmul(matrix, rows)
    return builder.reshape(product, [1, results, *spatial])


def _join_views(result: ir.Value) -> None:
    """Let what gives a reshaped product another shape read the product: see `_view`."""
    maker = result.producer()
    assert maker is not None
    for use in list(result.uses()):
        reader = use.node
        sizes = constant_of(reader.inputs[1]) if reader.op_type == "Reshape" and reader.inputs[1] is not None else None
        if is_standard(reader) and use.idx == 0 and sizes is not None and 0 not in sizes.numpy():
            reader.replace_input_with(0, maker.inputs[0])


def _transposed(weight: ir.Value) -> ir.Value | None:
    """Return the weight that a Transpose made this one of, as bfloat16's gradient of the data does."""
    maker = weight.producer()
    if maker is None or maker.op_type != "Transpose" or not is_standard(maker):
        return None
    source, order = maker.inputs[0], maker.attributes.get_ints("perm", ())
    return source if tuple(order[:2]) == (1, 0) and source is not None and is_static(source) else None


def _view(builder: GraphBuilder, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Return a value in another shape; of one that is reshaped already, what was: ONNX Runtime would join both.

    A node that ONNX Runtime makes comes last, and what waits for it does, too.
    """
    maker = value.producer()
    while maker is not None and maker.op_type == "Reshape" and is_standard(maker) and maker.inputs[0] is not None:
        value = maker.inputs[0]
        maker = value.producer()
    return builder.reshape(value, shape)
