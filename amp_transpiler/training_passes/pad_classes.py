"""Gives scores over many classes more columns, so that rows begin at aligned addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.match import bindings, parse_form
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.training_passes.class_columns import ClassColumns, Exit, class_columns, saves_time

__all__ = ["PadClasses"]

_SCALED = parse_form("Mul(rows, factor)")
_CHOSEN = parse_form("Where(condition, zero, rows)")
_WEIGHTED = parse_form("Mul(Where(condition, zero, weight), number)")
_LOWEST = {ir.DataType.FLOAT16: -65504.0}  # a score whose probability is 0
_PADDED = (ir.DataType.FLOAT, ir.DataType.FLOAT16)  # what Pad has a kernel for on CUDA
_LOWEST_WIDE = -1e30  # of bfloat16 and float32; what is subtracted from it stays finite


class PadClasses(Pass[PassResult]):
    """Computes scores over many classes, and their gradients, with columns that tensor cores like; counts the scores.

    The weight is widened in each step: parameters, their gradients and states keep their shapes.

    1. The inputs of the layer get a column of ones and the weight the bias, or zeros, with the lowest score for the
       classes more. So no kernel adds the bias, and its gradient, a product of ones, is a column of the weight's. TF32
       rounds the bias as it rounds the weight.
    2. The columns more have the probability 0 and the gradient 0: no other number of the step changes.

    Shapes must be inferred. Only the main graph is edited.

    Args:
        pays: whether the scores of a layer are to have more columns.
    """

    def __init__(self, pays: Callable[[ClassColumns], bool] = saves_time) -> None:
        self._pays = pays

    def call(self, model: ir.Model) -> PassResult:
        chosen = [columns for columns in class_columns(model) if self._pays(columns)]
        names = NameAllocator(model) if chosen else None
        for columns in chosen:
            assert names is not None
            _Widening(model, columns, names).rewrite()
        if chosen:
            model.graph.sort()
        return PassResult(model, modified=bool(chosen), count=len(chosen))


class _Widening:
    """Widens one layer's scores."""

    def __init__(self, model: ir.Model, columns: ClassColumns, names: NameAllocator) -> None:
        self._columns = columns
        self._rows, self._inner, self._classes = columns.sides
        self._more = columns.width - self._classes
        self._lowest = _LOWEST.get(columns.dtype, _LOWEST_WIDE)
        self._extra = columns.aligned - self._inner % columns.aligned
        self._builder = GraphBuilder(
            model, before=columns.product, names=names, metadata=columns.product.metadata_props, prefix="classes/"
        )
        self._weight = columns.weight
        self._bias = None if columns.bias is None else self._bias_vector(columns.bias)

    def rewrite(self) -> None:
        """Edit the graph."""
        product, bias = self._columns.product, self._columns.bias
        before = product if bias is None else bias
        scores = self._wide_product()
        before.outputs[0].replace_all_uses_with(scores)
        for node in self._columns.inside:
            node.outputs[0].shape = ir.Shape([self._rows, self._columns.width])
        gradient = self._gradient()
        joined = [] if gradient is None else self._joined(gradient)
        for reader in self._columns.products:
            if reader is gradient:
                self._rewrite_gradient(reader, joined)
            elif reader not in joined:
                self._rewrite_product(reader, self._other_operand(reader))
        for node in self._columns.sums:
            self._rewrite_sum(node)
        self._builder.graph.remove([*([] if bias is None else [bias]), product], safe=True)

    # ---- the layer ----
    def _bias_vector(self, bias: ir.Node) -> ir.Value:
        vector = next(value for value in bias.inputs if value is not self._columns.product.outputs[0])
        assert vector is not None
        return vector

    def _write_wide_weight(self) -> ir.Value:
        """Return the weight with zeros for the columns more, and its bias beside it.

        One kernel copies the weight and makes room; the bias is written there. What is beside it stays zero.
        """
        build, axis = self._builder, self._columns.axis
        if self._weight.dtype not in _PADDED:
            weight = build.concat([self._weight, self._zero_rows()], axis)
            return build.concat([weight, self._bias_columns()], 1 - axis)
        more = [self._more, self._extra] if axis == 0 else [self._extra, self._more]
        padded = build.op("Pad", [self._weight, build.constant(np.array([0, 0, *more], np.int64))])
        sizes = [size + extra for size, extra in zip(shape_of(self._weight), more, strict=True)]
        indices = build.constant(self._bias_indices(sizes))
        return build.reshape(build.op("ScatterND", [build.reshape(padded, [-1]), indices, self._wide_bias()]), sizes)

    def _bias_columns(self) -> ir.Value:
        """Return what stands beside the widened weight: its bias with the lowest scores, and zeros.

        They are written in each step: as a constant, the zeros would take memory all the time.
        """
        build, axis = self._builder, self._columns.axis
        column = build.reshape(self._wide_bias(), [-1, 1] if axis == 0 else [1, -1])
        first = np.eye(1, self._extra, dtype=np.float32)
        return build.mul(column, build.constant(first if axis == 0 else first.T, column.dtype))

    def _bias_indices(self, sizes: Sequence[int]) -> np.ndarray:
        """Return where the bias is in the wide weight, counted from its first element."""
        rows, columns = sizes
        if self._columns.axis == 0:
            return np.arange(self._inner, rows * columns, columns, dtype=np.int64)[:, None]
        return np.arange(self._inner * columns, (self._inner + 1) * columns, dtype=np.int64)[:, None]

    def _weight_again(self, slopes: ir.Value) -> ir.Value:
        """Return the weight with zeros for the columns more, written when the gradient by the scores is there.

        A copy that lived through the loss, where memory is fullest, would raise the peak. So this one reads one of the
        zeros in that gradient, `slopes`, or ONNX Runtime would write it as early as the first.
        """
        build, classes = self._builder, self._classes
        zero = build.slice(slopes, [0, classes], [1, classes + 1], [0, 1])
        return build.concat([self._weight, build.add(self._zero_rows(), zero)], self._columns.axis)

    def _zero_rows(self) -> ir.Value:
        zeros = np.zeros((self._more, self._inner), np.float32)
        return self._builder.constant(zeros if self._columns.axis == 0 else zeros.T, self._weight.dtype)

    def _wide_bias(self) -> ir.Value:
        """Return the bias, or zeros, with the lowest scores behind it."""
        lowest = np.full(self._more, self._lowest)
        if self._bias is None:
            return self._builder.constant(np.concatenate([np.zeros(self._classes), lowest]), self._weight.dtype)
        return self._builder.concat([self._bias, self._builder.constant(lowest, self._bias.dtype)], 0)

    def _wide_product(self) -> ir.Value:
        """Return the scores with more columns."""
        product = self._columns.product
        left = product.inputs[0]
        assert left is not None
        self._wide_weight = self._write_wide_weight()
        self._wide_rows = self._beside_ones(left)
        return self._builder.op(product.op_type, [self._wide_rows, self._wide_weight], _attributes(product))

    def _beside_ones(self, rows: ir.Value) -> ir.Value:
        """Return rows with a column of ones behind them, and zeros behind that."""
        ones = np.zeros((self._rows, self._extra), np.float32)
        ones[:, 0] = 1.0
        return self._builder.concat([rows, self._builder.constant(ones, rows.dtype)], 1)

    # ---- what reads the scores ----
    def _gradient(self) -> Exit | None:
        """Return the product that makes the weight's gradient, if that of the bias can be a column of it."""
        gradients = [reader for reader in self._columns.products if reader.axis is not None]
        return next((reader for reader in gradients if not _is_thin(reader)), None)

    def _joined(self, gradient: Exit) -> list[Exit]:
        """Return the products that sum weighted rows of the value that the weight's gradient is made of."""
        slopes, thin = _slopes(gradient), filter(_is_thin, self._columns.products)
        return [reader for reader in thin if _slopes(reader) is slopes][: self._extra]

    def _rewrite_gradient(self, gradient: Exit, joined: Sequence[Exit]) -> None:
        """Compute the weight's gradient and weighted sums of rows, as of a bias, in one product."""
        build, other, axis = self._at(gradient.node), _other(gradient), _kept_axis(gradient)
        factor = self._common_factor(other, joined) if axis == 1 else None
        if factor is not None:
            other = build.mul(self._wide_rows, factor)
        elif joined:
            lengths = (1, self._extra - len(joined))
            sides = [[self._rows, length] if axis == 1 else [length, self._rows] for length in lengths]
            columns = [build.reshape(_other(each), sides[0]) for each in joined]
            zeros = [build.constant(np.zeros(sides[1]), other.dtype)] if self._extra > len(joined) else []
            other = build.concat([other, *columns, *zeros], axis)
        wide = self._rewrite_product(gradient, other)
        assert gradient.axis is not None
        for index, each in enumerate(joined):
            begins, ends = [0, self._inner + index], [self._classes, self._inner + index + 1]
            self._at(each.node)
            column = build.slice(wide, begins, ends, [gradient.axis, 1 - gradient.axis])
            self._replace(each.node, build.reshape(column, list(shape_of(each.node.outputs[0]))))

    def _common_factor(self, other: ir.Value, joined: Sequence[Exit]) -> ir.Value | None:
        """Return the factors of the rows, if the weight's gradient is of them times these and the sum of these.

        Then both are one product: of the rows beside ones.
        """
        node, left = other.producer(), self._columns.product.inputs[0]
        if node is None or len(joined) != 1:
            return None
        for scaled in bindings(_SCALED, node):
            factor, rows = scaled["factor"], scaled["rows"]
            is_column = is_static(factor) and shape_of(factor) == (self._rows, 1)
            if is_column and _unshaped(_other(joined[0])) is factor:
                return factor if left is rows or _is_left_out(left, rows, factor) else None
        return None

    def _other_operand(self, reader: Exit) -> ir.Value:
        """Return what a product multiplies with wide columns, with as many rows where it sums over the classes."""
        other = _other(reader)
        if reader.axis is not None:
            return other
        self._at(reader.node, self._place_of(reader))
        if self._is_weight(other):
            # A copy of an input would live through the loss beside it; of a cast, it stands for what is cast.
            is_input = self._weight.producer() is None
            return self._weight_again(_slopes(reader)) if is_input else self._wide_weight
        sizes = list(shape_of(other))
        axis = 1 - _kept_axis(reader)
        sizes[axis] = self._more
        return self._builder.concat([other, self._builder.constant(np.zeros(sizes), other.dtype)], axis)

    def _rewrite_product(self, reader: Exit, other: ir.Value) -> ir.Value:
        """Let a product read wide columns, and take off its result what is too wide; return the wide one."""
        node, build = reader.node, self._at(reader.node, self._place_of(reader))
        operands = [other, other]
        operands[reader.position] = _slopes(reader)
        wide, shape = build.op(node.op_type, operands, _attributes(node)), shape_of(node.outputs[0])
        cut = [axis for axis in (0, 1) if shape_of(wide)[axis] != shape[axis]]
        self._replace(node, build.slice(wide, [0] * len(cut), [shape[axis] for axis in cut], cut) if cut else wide)
        return wide

    def _is_weight(self, value: ir.Value) -> bool:
        """Whether a value is the weight of the layer, perhaps cast another time."""
        weight = self._weight
        if value is weight:
            return True
        first, second = value.producer(), weight.producer()
        if first is None or second is None or value.dtype != weight.dtype:
            return False
        return first.op_type == second.op_type == "Cast" and first.inputs[0] is second.inputs[0]

    def _rewrite_sum(self, node: ir.Node) -> None:
        """Take the columns more off a sum of rows."""
        build, sizes = self._at(node), shape_of(node.outputs[0])
        wide = build.op("ReduceSum", node.inputs, {"keepdims": node.attributes.get_int("keepdims", 1)})
        self._replace(node, build.slice(wide, [0], [self._classes], [len(sizes) - 1]))

    def _place_of(self, reader: Exit) -> ir.Node:
        """Return the node before which a product is to be computed.

        The one with the weight comes first, right behind the gradient by the scores: the weight's gradient, as large as
        the weight, would be alive beside the weight's second copy.
        """
        producer = _slopes(reader).producer()
        if reader.axis is not None or producer is None or not self._is_weight(_other(reader)):
            return reader.node
        following = iter(self._builder.graph)
        while next(following) is not producer:
            pass
        return next(following)

    def _at(self, node: ir.Node, before: ir.Node | None = None) -> GraphBuilder:
        """Return the builder, which writes in the name of a node, before it or another one, from now on."""
        self._builder.before, self._builder.metadata = before or node, dict(node.metadata_props)
        return self._builder

    def _replace(self, node: ir.Node, result: ir.Value) -> None:
        take_over(node.outputs[0], result, self._builder.names)
        self._builder.graph.remove(node, safe=True)


def _other(reader: Exit) -> ir.Value:
    """Return what a product multiplies with the columns of the classes."""
    value = reader.node.inputs[1 - reader.position]
    assert value is not None
    return value


def _unshaped(value: ir.Value) -> ir.Value:
    """Return what a value is reshaped from, or the value itself."""
    node = value.producer()
    is_view = node is not None and node.op_type == "Reshape" and is_standard(node) and node.inputs[0] is not None
    return node.inputs[0] if is_view else value  # type: ignore[union-attr,return-value]  # it is one


def _is_left_out(left: ir.Value | None, rows: ir.Value, factor: ir.Value) -> bool:
    """Whether rows are replaced by zeros only where their factors are 0."""
    maker, node = None if left is None else left.producer(), factor.producer()
    if node is not None and node.op_type == "Cast" and is_standard(node) and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if maker is None or node is None:
        return False
    chosen, weighted = next(bindings(_CHOSEN, maker), None), next(bindings(_WEIGHTED, node), None)
    if chosen is None or weighted is None or chosen["rows"] is not rows:
        return False
    is_zero = all(_is_zero(each["zero"]) for each in (chosen, weighted))
    return is_zero and chosen["condition"] is weighted["condition"]


def _is_zero(value: ir.Value) -> bool:
    tensor = constant_of(value)
    return tensor is not None and not tensor.numpy().any()


def _slopes(reader: Exit) -> ir.Value:
    """Return the value with the columns of the classes that a product reads."""
    value = reader.node.inputs[reader.position]
    assert value is not None
    return value


def _kept_axis(reader: Exit) -> int:
    """Return the axis of the other operand that the result has."""
    index = 1 - reader.position
    is_turned = bool(reader.node.attributes.get_int("transB" if index else "transA", 0))
    return 1 - index if is_turned else index


def _is_thin(reader: Exit) -> bool:
    """Whether a product sums weighted rows: its other operand is one row, or one column."""
    return reader.axis is not None and shape_of(_other(reader))[_kept_axis(reader)] == 1


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {attribute.name: attribute.value for attribute in node.attributes.values()}
