"""Checks gradients for infinity by matrix products with zeros."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.match import bindings, parse_form
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.roles import ROLE_KEY, role_of
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.update_passes.scattered_sums import float16_operands
from amp_transpiler.update_passes.update_chains import is_scalar, is_widened

__all__ = ["CheckByProducts"]

_CHECK = parse_form("ReduceSum(product:Mul(tensor, 0))")
_COLUMNS = 8  # of the zeros: products of 16 bits are fast where all sizes are multiples of it
_SHORTEST, _LONGEST = 64, 4096  # elements of a row: long enough to leave little, short enough for many rows
_MOST = 32  # tensors that one kernel of ONNX Runtime joins without a table in the device's memory


class CheckByProducts(Pass[PassResult]):
    """Checks that gradients are finite by products with zeros; counts the gradients.

    The check multiplies each gradient by 0 and sums up what is 0 or NaN (`loss_scaling.check_finite`). Written so, a
    gradient is read twice and written once, by two kernels. A product with a matrix of zeros gives the same, reads it
    once, and leaves so little that all of it is joined and summed up at once.

    1. A sum that is at the end of sums of such scalars, of both formats, is replaced.
    2. A gradient that was rounded to 16 bits only for the check is checked as it was.
    3. A float32 sum of float16 values, as of a table of words that is the last layer's weight too, cannot overflow:
       these values are checked, of half the size.

    The values of the model must be typed, and have shapes. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        count = 0
        for node in [node for node in model.graph if node.op_type == "Sum" and role_of(node) == "optimize"]:
            parts = list(_parts(node))
            checks = [_checked(value) for value in parts]
            if not _is_inner(node) and 1 < len(parts) <= _MOST and any(checks):
                _rewrite(model, node, parts)
                count += sum(check is not None for check in checks)
        return PassResult(model, modified=bool(count), count=count)


def _is_inner(node: ir.Node) -> bool:
    """Whether a sum is only a part of another sum."""
    value = node.outputs[0]
    readers = [use.node for use in value.uses()]
    if value.is_graph_output() or len(readers) != 1:
        return value.is_graph_output() or not readers
    return readers[0].op_type == "Sum" or (is_widened(readers[0]) and _is_inner(readers[0]))


def _parts(node: ir.Node) -> Iterable[ir.Value]:
    """Yield the scalars that a sum adds up, those of sums inside it one by one."""
    for value in node.inputs:
        assert value is not None  # a Sum has no optional inputs
        source = _own_source(value)
        maker = source.producer()
        if maker is not None and maker.op_type == "Sum" and len(source.uses()) == 1 and is_standard(maker):
            yield from _parts(maker)
        else:
            yield source


def _own_source(value: ir.Value) -> ir.Value:
    """Return the 16-bit scalar that a float32 one was cast from, if nothing else reads either."""
    node = value.producer()
    if node is None or not is_widened(node) or len(value.uses()) != 1 or node.inputs[0] is None:
        return value
    return node.inputs[0] if len(node.inputs[0].uses()) == 1 else value


def _checked(value: ir.Value) -> ir.Value | None:
    """Return the tensor whose product with 0 is summed up to a scalar; None if the scalar is something else."""
    node = value.producer()
    check = None if node is None else next(bindings(_CHECK, node), None)
    if check is None or any(axes is not None for axes in check.last.inputs[1:]):
        return None
    tensor = check["tensor"]
    is_read_once = len(value.uses()) == len(check["product"].uses()) == 1
    return tensor if is_read_once and is_scalar(value) and is_static(tensor) and _width(tensor) else None


def _width(value: ir.Value) -> int:
    """Return the elements of a row, if a tensor is cut into rows: as many as possible, of eights if possible."""
    size = math.prod(shape_of(value))
    fit = [width for width in range(_SHORTEST, min(_LONGEST, size) + 1) if size % width == 0]
    return max(fit, key=lambda width: (width % _COLUMNS == 0, width), default=0)


def _rewrite(model: ir.Model, node: ir.Node, parts: Iterable[ir.Value]) -> None:
    builder = GraphBuilder(model, before=node, metadata={ROLE_KEY: "optimize"}, prefix="check/")
    alike: dict[ir.DataType | None, list[ir.Value]] = {}
    for value in parts:
        for remainder in _remainders(builder, value):
            alike.setdefault(remainder.dtype, []).append(remainder)
    joined = [values[0] if len(values) == 1 else builder.concat(values, 0) for values in alike.values()]
    wide = [builder.high(value) for value in joined]
    vector = wide[0] if len(wide) == 1 else builder.concat(wide, 0)
    total = builder.reduce("ReduceSum", vector, None, keepdims=False)
    result = node.outputs[0]
    (reader, *others) = [use.node for use in result.uses()]
    if is_widened(reader) and not others:
        reader.outputs[0].replace_all_uses_with(total)
        remove_unread(reader)
    else:
        result.replace_all_uses_with(builder.cast(total, result.dtype))
        remove_unread(node)


def _remainders(builder: GraphBuilder, value: ir.Value) -> list[ir.Value]:
    """Return what is left of the tensors that a scalar tells of: vectors of zeros and NaN."""
    tensor = _checked(value)
    if tensor is None:
        return [builder.reshape(value, [1])]
    tensor = _before_rounding(tensor)
    added = float16_operands(tensor)
    return [_remainder(builder, each) for each in (added if all(map(_width, added)) else ()) or [tensor]]


def _remainder(builder: GraphBuilder, tensor: ir.Value) -> ir.Value:
    width = _width(tensor)
    zeros = builder.constant(np.zeros((width, _COLUMNS)), tensor.dtype)
    return builder.reshape(builder.op("MatMul", [builder.reshape(tensor, [-1, width]), zeros]), [-1])


def _before_rounding(value: ir.Value) -> ir.Value:
    """Return what a 16-bit tensor was rounded from, if nothing else reads it."""
    source: ir.Value | None = value
    while source is not None and len(source.uses()) == 1 and not source.is_graph_output():
        node = source.producer()
        if node is None or node.op_type not in ("Cast", "Identity") or node.inputs[0] is None:
            break
        source = node.inputs[0]
        if node.op_type == "Cast":
            return source if source.dtype == ir.DataType.FLOAT else value
    return value
