"""The product with constants that reads the result of an attention, and whether it is cheaper to read it in columns."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from amp_transpiler.fusion.attention_operands import BATCH_FIRST, End
from amp_transpiler.fusion.attention_pattern import Found
from amp_transpiler.fusion.attention_prices import is_cheaper_in_columns
from amp_transpiler.fusion.attention_projection import constant_shape, weight_array
from amp_transpiler.fusion.attention_values import is_standard_op, made_by, only_reader
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["Output", "add_to_bias", "is_cheaper_turned", "output_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """A product of an attention's result with constants.

    Attributes:
        weight: the constants, of rank 2.
        bias: what is added to it, if that is a vector of constants.
        result: the product, in three axes like the attention's result.
        last: the node that makes it, or adds the bias.
    """

    weight: ir.Value
    bias: np.ndarray | None
    result: ir.Value
    last: ir.Node

    @property
    def array(self) -> np.ndarray:
        """The constants."""
        array = weight_array(self.weight)
        assert array is not None, "an output has constants"
        return array


def output_of(end: End, sizes: Sizes) -> Output | None:
    """Return the product that reads the result of an attention; None if others read it, or no such product."""
    value, node = end.value, only_reader(end.value)
    if node is not None and is_standard_op(node, "Reshape") and node.inputs[0] is value:
        value = node.outputs[0]
        node = only_reader(value)
    if node is None or not is_standard(node) or not node.inputs or node.inputs[0] is not value:
        return None
    if is_standard_op(node, "MatMul") and value is end.value and not end.is_flat:
        return _with_bias(node)
    return _flat(node, end, sizes) if is_standard_op(node, "Gemm") else None


def _with_bias(product: ir.Node) -> Output | None:
    weight, result = product.inputs[1], product.outputs[0]
    shape = constant_shape(weight)
    if weight is None or shape is None or len(shape) != 2 or result.is_graph_output():
        return None
    add = only_reader(result)
    if add is not None and is_standard_op(add, "Add"):
        for other in add.inputs:
            bias = None if other is result else constant_array(other)
            if bias is not None and bias.shape == shape[1:]:
                return Output(weight, bias, result, add)
    return Output(weight, None, result, product)


def _flat(gemm: ir.Node, end: End, sizes: Sizes) -> Output | None:
    """Read a product in two dimensions, whose result is brought into three again."""
    weight, bias = gemm.inputs[1], gemm.inputs[2] if len(gemm.inputs) > 2 else None
    shape, array, reshape = constant_shape(weight), constant_array(bias), only_reader(gemm.outputs[0])
    if weight is None or shape is None or (bias is not None and (array is None or array.shape != shape[1:])):
        return None
    if any(gemm.attributes.get_int(name, 0) for name in ("transA", "transB")):
        return None
    if any(gemm.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return None
    if reshape is None or not is_standard_op(reshape, "Reshape") or reshape.outputs[0].is_graph_output():
        return None
    result, before = sizes.shape(reshape.outputs[0]), _in_three_axes(end, sizes)
    if result is None or before is None or result != (*before[:2], shape[1]):
        return None
    return Output(weight, array, reshape.outputs[0], reshape)


def _in_three_axes(end: End, sizes: Sizes) -> tuple[object, ...] | None:
    shape = sizes.shape(end.value)
    return shape if shape is not None and len(shape) == 3 else None


def add_to_bias(builder: NodeBuilder, output: Output, offset: np.ndarray) -> None:
    """Add a vector to the bias of a product that has one.

    Args:
        builder: where the new bias is put.
        output: the product.
        offset: what is added to its results.
    """
    assert output.bias is not None, "it has a bias"
    total = builder.constant((output.bias + offset).astype(np.float32))
    if is_standard_op(output.last, "Add"):
        output.last.replace_input_with(1 - output.last.inputs.index(output.result), total)
        return
    gemm = made_by(output.last.inputs[0], "Gemm")  # of the Reshape behind it
    assert gemm is not None, "it makes the result"
    gemm.replace_input_with(2, total)


def is_cheaper_turned(attention: Found, end: End, output: Output) -> bool:
    """Whether the product should read columns of the attention's result; where a size is open, it reads rows."""
    value, rows, shape = attention.value, attention.query.rows, constant_shape(output.weight)
    assert shape is not None, "an output has constants"
    sides = (value.batch, value.heads, rows, value.rows, value.size, shape[1])
    known = [side for side in sides if isinstance(side, int)]
    return end.order == BATCH_FIRST and len(known) == len(sides) and is_cheaper_in_columns(*known)
