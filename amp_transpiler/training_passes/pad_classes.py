"""Gives scores over many classes more columns, so that rows begin at aligned addresses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, shape_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.training_passes.class_columns import ClassColumns, Exit, class_columns, saves_time
from amp_transpiler.training_passes.take_over import take_over
from amp_transpiler.training_passes.update_chains import source_of

__all__ = ["PadClasses"]

_LOWEST = {ir.DataType.FLOAT16: -65504.0}  # a score whose probability is 0
_LOWEST_WIDE = -1e30  # of bfloat16 and float32; what is subtracted from it stays finite


class PadClasses(Pass[PassResult]):
    """Computes scores over many classes, and their gradients, with columns that tensor cores like; counts the scores.

    The weight is widened in each step: parameters, their gradients and states keep their shapes.

    1. Where scores are 16-bit, or have no bias, the inputs of the layer get a column of ones and the weight the bias,
       or zeros, with the lowest score for the classes more. So no kernel adds the bias, and its gradient is a column of
       the weight's.
    2. Float32 scores keep their bias apart, which TF32 would round; it gets the lowest scores.
    3. The columns more have the probability 0 and the gradient 0: no other number of the step changes.

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


@dataclasses.dataclass(frozen=True, slots=True)
class _Gradient:
    """A weight's gradient that has the gradient of the bias as its last column or row.

    Attributes:
        wide: the result of the product.
        axis: the axis of the classes.
        source: the gradient by the scores.
    """

    wide: ir.Value
    axis: int
    source: ir.Value


class _Widening:
    """Widens one layer's scores."""

    def __init__(self, model: ir.Model, columns: ClassColumns, names: NameAllocator) -> None:
        self._columns = columns
        self._rows, self._inner, self._classes = columns.sides
        self._more = columns.width - self._classes
        self._lowest = _LOWEST.get(columns.dtype, _LOWEST_WIDE)
        self._with_ones = columns.bias is None or columns.dtype in LOW_DTYPES
        self._extra = columns.aligned - self._inner % columns.aligned if self._with_ones else 0
        self._builder = GraphBuilder(
            model, before=columns.product, names=names, metadata=columns.product.metadata_props, prefix="classes/"
        )
        self._weight = columns.weight
        self._bias = None if columns.bias is None else self._bias_vector(columns.bias)
        self._widened: dict[ir.Value, ir.Value] = {}

    def rewrite(self) -> None:
        """Edit the graph."""
        product, bias = self._columns.product, self._columns.bias
        before = product if bias is None else bias
        scores = self._wide_product()
        before.outputs[0].replace_all_uses_with(scores)
        for node in self._columns.inside:
            node.outputs[0].shape = ir.Shape([self._rows, self._columns.width])
        gradients = [self._rewrite_product(reader) for reader in self._columns.products]
        for node in self._columns.sums:
            self._rewrite_sum(node, gradients)
        self._builder.graph.remove([*([] if bias is None else [bias]), product], safe=True)

    # ---- the layer ----
    def _bias_vector(self, bias: ir.Node) -> ir.Value:
        vector = next(value for value in bias.inputs if value is not self._columns.product.outputs[0])
        assert vector is not None
        return vector

    def _wide_weight(self, slopes: ir.Value | None = None) -> ir.Value:
        """Return the weight with rows for the columns more and, beside ones, the bias.

        It is written again for the gradient: a copy that lived through the loss, where memory is fullest, would raise
        the peak. So the second copy reads one of the zeros in the gradient by the scores, `slopes`, or ONNX Runtime
        would write it as early as the first.
        """
        build, axis, weight = self._builder, self._columns.axis, self._weight
        zeros = np.zeros((self._more, self._inner), np.float32)
        rows = build.constant(zeros if axis == 0 else zeros.T, weight.dtype)
        if slopes is not None:
            rows = build.add(rows, build.slice(slopes, [0, self._classes], [1, self._classes + 1], [0, 1]))
        weight = build.concat([weight, rows], axis)
        return build.concat([weight, *self._bias_columns()], 1 - axis) if self._with_ones else weight

    def _bias_columns(self) -> list[ir.Value]:
        """Return what stands beside the widened weight: its bias with the lowest scores, and zeros."""
        build, axis, width = self._builder, self._columns.axis, self._columns.width
        sides = [[width, length] if axis == 0 else [length, width] for length in (1, self._extra - 1)]
        column = build.reshape(self._wide_bias(), sides[0])
        return [column, *([build.constant(np.zeros(sides[1]), column.dtype)] if self._extra > 1 else [])]

    def _wide_bias(self) -> ir.Value:
        """Return the bias, or zeros, with the lowest scores behind it."""
        lowest = np.full(self._more, self._lowest)
        if self._bias is None:
            return self._builder.constant(np.concatenate([np.zeros(self._classes), lowest]), self._weight.dtype)
        return self._builder.concat([self._bias, self._builder.constant(lowest, self._bias.dtype)], 0)

    def _wide_product(self) -> ir.Value:
        """Return the scores with more columns; float32 ones read their bias in the product."""
        product, build = self._columns.product, self._builder
        left = product.inputs[0]
        assert left is not None
        operands = [self._beside_ones(left, 1), self._wide_weight()]
        if self._with_ones:
            return build.op(product.op_type, operands, _attributes(product))
        return build.op("Gemm", [*operands, self._wide_bias()], _attributes(product))

    def _beside_ones(self, rows: ir.Value, axis: int) -> ir.Value:
        """Return rows with a column of ones behind them, or columns with a row of ones, and zeros behind that."""
        if not self._with_ones:
            return rows
        if rows not in self._widened:
            ones = np.zeros((self._rows, self._extra), np.float32)
            ones[:, 0] = 1.0
            constant = self._builder.constant(ones if axis == 1 else ones.T, rows.dtype)
            self._widened[rows] = self._builder.concat([rows, constant], axis)
        return self._widened[rows]

    # ---- what reads the scores ----
    def _rewrite_product(self, reader: Exit) -> _Gradient | None:
        """Let a product read wide columns, and take off its result what is too wide; return a weight's gradient."""
        node, other_index = reader.node, 1 - reader.position
        source, other, old = node.inputs[reader.position], node.inputs[other_index], node.outputs[0]
        assert source is not None
        assert other is not None
        build = self._builder
        build.before, build.metadata = node, dict(node.metadata_props)
        is_turned = bool(node.attributes.get_int("transB" if other_index else "transA", 0))
        other_axis = other_index if is_turned else 1 - other_index  # along which the product sums
        if reader.axis is None:
            wide_other = self._wide_weight(source) if self._is_weight(other) else self._with_zeros(other, other_axis)
        else:
            wide_other = self._beside_ones(other, 1 - other_axis)
        operands = [wide_other, wide_other]
        operands[reader.position] = source
        wide = build.op(node.op_type, operands, _attributes(node))
        shape = shape_of(old)
        cut = [axis for axis in (0, 1) if shape_of(wide)[axis] != shape[axis]]
        narrow = build.slice(wide, [0] * len(cut), [shape[axis] for axis in cut], cut) if cut else wide
        take_over(old, narrow, build.names)
        build.graph.remove(node, safe=True)
        return None if reader.axis is None or not self._with_ones else _Gradient(wide, reader.axis, source)

    def _is_weight(self, value: ir.Value) -> bool:
        """Whether a value is the weight of the layer, perhaps cast another time."""
        weight = self._weight
        if value is weight:
            return True
        first, second = value.producer(), weight.producer()
        if first is None or second is None or value.dtype != weight.dtype:
            return False
        return first.op_type == second.op_type == "Cast" and first.inputs[0] is second.inputs[0]

    def _with_zeros(self, value: ir.Value, axis: int) -> ir.Value:
        sizes = list(shape_of(value))
        sizes[axis] = self._more
        return self._builder.concat([value, self._builder.constant(np.zeros(sizes), value.dtype)], axis)

    def _rewrite_sum(self, node: ir.Node, gradients: Sequence[_Gradient | None]) -> None:
        """Take the gradient of the bias from that of the weight, or take the columns more off a sum."""
        build, old = self._builder, node.outputs[0]
        build.before, build.metadata = node, dict(node.metadata_props)
        sizes, source = list(shape_of(old)), _summed(node)
        gradient = next((each for each in gradients if each is not None and each.source is source), None)
        if gradient is not None:
            begins, ends = [0, self._inner], [self._classes, self._inner + 1]
            column = build.slice(gradient.wide, begins, ends, [gradient.axis, 1 - gradient.axis])
            narrow = build.cast(build.reshape(column, sizes), old.dtype)
        else:
            wide = build.op("ReduceSum", node.inputs, {"keepdims": node.attributes.get_int("keepdims", 1)})
            narrow = build.slice(wide, [0], [self._classes], [len(sizes) - 1])
        take_over(old, narrow, build.names)
        build.graph.remove(node, safe=True)


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {attribute.name: attribute.value for attribute in node.attributes.values()}


def _summed(node: ir.Node) -> ir.Value:
    """Return the 16-bit value that a ReduceSum sums, perhaps through a cast to float32, or the value that it reads."""
    value = node.inputs[0]
    assert value is not None
    return source_of(value)
