"""Takes numbers and multiples of other rows off the rows of a matrix by one kernel less."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.cost.form_prices import seconds_of_form
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.match import Binding, bindings, only_read_within, parse_form
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.update_passes.fuse_updates import times_plus

__all__ = ["AffineRows"]

_FORM = parse_form("Sub(less:Sub(rows, number), multiple:Mul(other, slope))")
_OPSET = 17  # any from which the operators have these attributes
_MOST_ROWS = 1 << 15  # channels of a normalisation; kernels were timed with up to 2048


class AffineRows(Pass[PassResult]):
    """Writes what is taken off float32 rows as one BatchNormalization of other rows; counts the differences.

    The gradient of a LayerNormalization by its input is `z - m - s x`, with a number `m` and a number `s` for each row
    of `z` and `x`: three kernels. BatchNormalization with given statistics computes `s x + m`, whose channels are the
    rows, so that two remain.

    1. Nothing else reads `z - m` and `s x`.
    2. It takes less time by the price list.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        builder, count = GraphBuilder(model, prefix="rows/"), 0
        for node in [node for node in model.graph if node.op_type == "Sub"]:
            less = next((each for each in bindings(_FORM, node) if _fits(each)), None)
            if less is not None:
                builder.before, builder.metadata = node, dict(node.metadata_props)
                take_over(node.outputs[0], _by_two(builder, _operands(less)), builder.names)
                remove_unread(node)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


def _operands(less: Binding) -> list[ir.Value]:
    return [less[name] for name in ("rows", "other", "slope", "number")]


def _fits(less: Binding) -> bool:
    """Whether a form has matrices and a number a row, and one kernel less pays."""
    operands, result = _operands(less), less.last.outputs[0]
    if not all(is_static(value) and value.dtype == ir.DataType.FLOAT for value in (*operands, result)):
        return False
    sizes = shape_of(result)
    columns = [(*sizes[:-1], 1)] * 2
    if len(sizes) < 2 or [shape_of(value) for value in operands] != [sizes, sizes, *columns]:
        return False
    if not only_read_within(less.nodes, less.last):
        return False
    return math.prod(sizes[:-1]) <= _MOST_ROWS and _pays(sizes)


@functools.lru_cache(maxsize=1024)
def _pays(sizes: tuple[int, ...]) -> bool:
    """Return whether one kernel less takes less time by the price list."""
    inputs = [(ir.DataType.FLOAT, shape) for shape in (sizes, sizes, (*sizes[:-1], 1), (*sizes[:-1], 1))]
    return seconds_of_form(_by_two, inputs, _OPSET) < seconds_of_form(_by_three, inputs, _OPSET)


def _by_three(builder: GraphBuilder, operands: Sequence[ir.Value]) -> ir.Value:
    """Take off the number, then the multiple."""
    rows, other, slope, number = operands
    return builder.sub(builder.sub(rows, number), builder.mul(other, slope))


def _by_two(builder: GraphBuilder, operands: Sequence[ir.Value]) -> ir.Value:
    """Take off both at once."""
    rows, other, slope, number = operands
    sizes = shape_of(rows)
    matrix = [math.prod(sizes[:-1]), sizes[-1]]
    inputs = [builder.reshape(other, matrix), *(builder.reshape(value, [matrix[0], 1]) for value in (slope, number))]
    return builder.sub(rows, builder.reshape(times_plus(builder, inputs), list(sizes)))
