"""Finds scores over classes whose rows begin at odd addresses, and everything that has an axis of these classes.

A vocabulary of 30,522 words is no multiple of 8, so tensor cores' fast kernels take none of the three products of the
last layer. With 30,528 columns they do. The six columns more are classes of the lowest score: their probabilities are
0, and so are their gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.cost.form_prices import seconds_of_form
from amp_transpiler.cost.padded_products import padded_width
from amp_transpiler.cost.products import ALIGNED
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.ops.names import is_standard

__all__ = ["ClassColumns", "Exit", "class_columns", "saves_time"]

_OPSET = 17  # any from which the operators have these attributes
_LARGE = 1 << 30  # multiplications of a product, from which a copy of its weight in each step can pay
_DTYPES = (ir.DataType.FLOAT, *LOW_DTYPES)
_ALONG_CLASSES = {"GatherElements": 0, "LogSoftmax": -1, "ScatterElements": 0, "Softmax": -1}  # with the default axis
# What the columns more contain behind an operator: lowest scores, or zeros.
_LOWEST_STAY_LOWEST = {"LogSoftmax"}
_LOWEST_BECOME_ZERO = {"Exp", "Softmax"}
_ZEROS_STAY_ZERO = {"Cast", "Mul", "ScatterElements", "Where"}


@dataclasses.dataclass(frozen=True, slots=True)
class Exit:
    """A product of two matrices that reads a value with the columns of the classes.

    Attributes:
        node: MatMul or Gemm.
        position: which operand has the columns.
        axis: the axis of the classes in the result; None where the product sums over them.
    """

    node: ir.Node
    position: int
    axis: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class ClassColumns:
    """Scores of a matrix product with misaligned columns, and what is computed of them.

    Attributes:
        product: makes the scores, without a bias: MatMul or Gemm.
        bias: its Add; None where the scores have none.
        axis: the axis of the classes in the weight.
        width: how many columns the scores should have.
        inside: nodes whose results have the columns, the product and the Add not counted.
        products: the other products that read such results.
        sums: sums of such results over the rows.
    """

    product: ir.Node
    bias: ir.Node | None
    axis: int
    width: int
    inside: tuple[ir.Node, ...]
    products: tuple[Exit, ...]
    sums: tuple[ir.Node, ...]

    @property
    def sides(self) -> tuple[int, int, int]:
        """The rows of the scores, the inputs of the layer and the classes."""
        rows, columns = shape_of(self.product.outputs[0])
        return rows, shape_of(self.weight)[1 - self.axis], columns

    @property
    def weight(self) -> ir.Value:
        """The weight of the layer."""
        weight = self.product.inputs[1]
        assert weight is not None
        return weight

    @property
    def dtype(self) -> ir.DataType:
        """The element type of the scores."""
        dtype = self.product.outputs[0].dtype
        assert dtype is not None
        return dtype

    @property
    def aligned(self) -> int:
        """The elements that the length of a row should be a multiple of."""
        return alignment(self.dtype)


def alignment(dtype: ir.DataType) -> int:
    """Return the elements that a row's length should be a multiple of."""
    return ALIGNED[dtype.name.lower() if dtype in LOW_DTYPES else "float32"]


def class_columns(model: ir.Model) -> list[ClassColumns]:
    """Return the misaligned scores of a training step that can have more columns.

    The shapes of the model must be inferred. Only the main graph is searched.
    """
    axes = ((node, _misaligned(node)) for node in model.graph)
    grown = (_grown(node, axis) for node, axis in axes if axis is not None)
    return [columns for columns in grown if columns is not None]


def saves_time(columns: ClassColumns) -> bool:
    """Return whether products with more columns, and the copies that they need, take less time by the price list."""
    rows, inner, classes = columns.sides
    if rows * inner * classes < _LARGE:
        return False
    return _seconds(columns, wide=True) < _seconds(columns, wide=False)


def _misaligned(node: ir.Node) -> int | None:
    """Return the axis of the columns in the weight of a product whose rows are misaligned; None for others."""
    if not _is_plain_product(node) or _is_turned(node, "transA"):
        return None
    scores = node.outputs[0]
    if scores.dtype not in _DTYPES or shape_of(scores)[1] % alignment(scores.dtype) == 0:
        return None
    return 0 if _is_turned(node, "transB") else 1


def _is_plain_product(node: ir.Node) -> bool:
    """Whether a node multiplies two matrices of known shapes and adds nothing."""
    if node.op_type not in ("MatMul", "Gemm") or not is_standard(node):
        return False
    values = (*node.inputs, *node.outputs)
    if len(values) != 3 or any(value is None or not is_static(value) for value in values):
        return False
    alpha = node.attributes.get_float("alpha", 1.0)
    return alpha == 1.0 and all(len(shape_of(value)) == 2 for value in values if value is not None)


def _is_turned(node: ir.Node, attribute: str) -> bool:
    return bool(node.attributes.get_int(attribute, 0))


# ---- what has the columns ----
def _grown(product: ir.Node, axis: int) -> ClassColumns | None:
    """Return everything that has the columns of a product's scores; None if it has a reader that needs them all."""
    columns = shape_of(product.outputs[0])[1]
    bias = _bias(product, columns)
    scores = product.outputs[0] if bias is None else bias.outputs[0]
    zeros: dict[ir.Value, bool] = {scores: False}  # whether the columns more are zeros, else the lowest scores
    inside: list[ir.Node] = []
    products: list[Exit] = []
    sums: list[ir.Node] = []
    waiting = [scores]
    while waiting:
        value = waiting.pop()
        if value.is_graph_output():
            return None
        for node, position in {(use.node, use.idx) for use in value.uses()}:
            if node.op_type == "GatherElements" and _is_along_classes(node, position):
                continue  # it picks columns that were there before
            is_zero = _filling(node, position, columns, is_zero=zeros[value])
            if is_zero is not None:
                inside.append(node)
                zeros[node.outputs[0]] = is_zero
                waiting.append(node.outputs[0])
            elif zeros[value] and _is_plain_product(node):
                products.append(_exit(node, position))
            elif zeros[value] and _is_sum_of_rows(node):
                sums.append(node)
            else:
                return None
    width = padded_width(columns, alignment(scores.dtype or ir.DataType.FLOAT))
    return ClassColumns(product, bias, axis, width, tuple(dict.fromkeys(inside)), tuple(products), tuple(sums))


def _bias(product: ir.Node, columns: int) -> ir.Node | None:
    """Return the Add of a vector that alone reads the result of a product."""
    uses = list(product.outputs[0].uses())
    if len(uses) != 1 or product.outputs[0].is_graph_output():
        return None
    node = uses[0].node
    vector = node.inputs[1 - uses[0].idx] if node.op_type == "Add" and is_standard(node) else None
    return node if vector is not None and is_static(vector) and shape_of(vector) == (columns,) else None


def _filling(node: ir.Node, position: int, columns: int, *, is_zero: bool) -> bool | None:
    """Return whether the columns more of a node's result are zeros, else the lowest; None if they are neither."""
    if not is_standard(node) or len(node.outputs) != 1 or not _keeps_columns(node, position, columns):
        return None
    if node.op_type in _ALONG_CLASSES and not _is_along_classes(node, position):
        return None
    if is_zero:
        return True if node.op_type in _ZEROS_STAY_ZERO and _others_are_rows(node, position) else None
    if node.op_type in _LOWEST_BECOME_ZERO:
        return True
    if node.op_type == "Cast":  # to a wider format: the lowest of float32 would be infinite in 16 bits
        return False if node.outputs[0].dtype == ir.DataType.FLOAT else None
    return False if node.op_type in _LOWEST_STAY_LOWEST else None


def _keeps_columns(node: ir.Node, position: int, columns: int) -> bool:
    value, result = node.inputs[position], node.outputs[0]
    if value is None or not is_static(value) or not is_static(result) or result.dtype not in _DTYPES:
        return False
    return shape_of(value) == shape_of(result) and shape_of(result)[-1] == columns


def _is_along_classes(node: ir.Node, position: int) -> bool:
    axis = node.attributes.get_int("axis", _ALONG_CLASSES[node.op_type])
    return position == 0 and axis in (1, -1)


def _others_are_rows(node: ir.Node, position: int) -> bool:
    """Whether the other operands of a node say nothing of single classes, and a Where chooses between zeros."""
    if node.op_type == "ScatterElements":
        return True  # of labels, which the columns more do not have
    for index, other in enumerate(node.inputs):
        if index == position or other is None:
            continue
        if not is_static(other) or (shape_of(other) and shape_of(other)[-1] != 1):
            return False
        if node.op_type == "Where" and index > 0:
            constant = constant_of(other)
            if constant is None or constant.numpy().any():
                return False
    return node.op_type != "Where" or position > 0


def _is_sum_of_rows(node: ir.Node) -> bool:
    if node.op_type != "ReduceSum" or not is_standard(node) or len(node.inputs) < 2 or node.inputs[1] is None:
        return False
    axes = constant_of(node.inputs[1])
    return axes is not None and axes.numpy().tolist() == [0]


def _exit(node: ir.Node, position: int) -> Exit:
    """Return a product as an exit."""
    is_turned = _is_turned(node, "transB" if position else "transA")
    sums_over_classes = is_turned if position else not is_turned
    return Exit(node, position, None if sums_over_classes else position)


# ---- what it saves ----
def _seconds(columns: ClassColumns, *, wide: bool) -> float:
    """Return the predicted time of the product and those of its gradients, with the copies that more columns need."""
    rows, inner, classes = columns.sides

    def write(builder: GraphBuilder, inputs: Sequence[ir.Value]) -> None:
        left, weight = inputs
        if wide:
            zeros = builder.constant(np.zeros((columns.width - classes, inner)), columns.dtype)
            weight = builder.concat([weight, zeros], 0)
        scores = builder.op("Gemm", [left, weight], {"transB": 1})
        builder.matmul(scores, weight)
        gradient = builder.op("Gemm", [scores, left], {"transA": 1})
        if wide:
            builder.slice(gradient, [0], [classes], [0])

    return seconds_of_form(write, [(columns.dtype, (rows, inner)), (columns.dtype, (classes, inner))], _OPSET)
