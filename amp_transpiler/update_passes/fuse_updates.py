"""Multiplies tensors of an optimizer by numbers and adds others, by one kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.cost.form_prices import seconds_of_form
from amp_transpiler.graph.affine import affine
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.match import Binding, bindings, only_read_within, parse_form
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["FuseUpdates", "times_plus"]

_FORM = parse_form("Add(Mul(tensor, slope), shift)")
_OPSET = 17  # any from which the operators have these attributes
_CHANNELS = range(256, 1024)  # that a tensor with one slope is seen as: as many as kernels were timed with
_MOST_ROWS = 2048  # with a slope of their own, for the same reason


class FuseUpdates(Pass[PassResult]):
    """Writes a float32 tensor times a number plus a number as one BatchNormalization; counts them.

    An optimizer's kernels only read and write, so that each pass over a tensor counts: the divisor of Adam's is a root
    times a number plus another. BatchNormalization with given statistics computes that in one pass.

    1. The numbers are the same for all elements, or for each row of a matrix.
    2. It takes less time by the price list, and nothing else reads the product.

    Shapes must be inferred. Only the optimizer's nodes in the main graph are edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for node in [node for node in model.graph if node.op_type == "Add" and role_of(node) == "optimize"]:
            shifted = next((each for each in bindings(_FORM, node) if _fits(each)), None)
            if shifted is not None:
                _rewrite(model, shifted, names)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


def _fits(shifted: Binding) -> bool:
    """Whether a form has a tensor and two numbers, and one kernel pays."""
    operands = _operands(shifted)
    result = shifted.last.outputs[0]
    if not all(is_static(value) and value.dtype == ir.DataType.FLOAT for value in (*operands, result)):
        return False
    shape = shape_of(result)
    if not shape or shape_of(operands[0]) != shape or not only_read_within(shifted.nodes, shifted.last):
        return False
    if not all(_is_column(value, shape) for value in operands[1:]):
        return False
    if not _channels(operands):
        return False
    inputs = [(ir.DataType.FLOAT, shape_of(value)) for value in operands]
    return seconds_of_form(times_plus, inputs, _OPSET) < seconds_of_form(_in_two, inputs, _OPSET)


def _operands(shifted: Binding) -> list[ir.Value]:
    return [shifted[name] for name in ("tensor", "slope", "shift")]


def _is_column(value: ir.Value, shape: tuple[int, ...]) -> bool:
    """Whether a value is one number for all elements, or one for each row of a matrix."""
    sizes = shape_of(value)
    return math.prod(sizes) == 1 or (len(shape) == 2 and sizes == (shape[0], 1) and shape[0] <= _MOST_ROWS)


def _rewrite(model: ir.Model, shifted: Binding, names: NameAllocator) -> None:
    node = shifted.last
    builder = GraphBuilder(model, before=node, names=names, metadata=node.metadata_props, prefix=f"{node.name}/")
    take_over(node.outputs[0], times_plus(builder, _operands(shifted)), names)
    model.graph.remove(sorted(shifted.nodes, key=lambda each: each is not node), safe=True)


def _in_two(builder: GraphBuilder, operands: Sequence[ir.Value]) -> ir.Value:
    """Write the product and the sum."""
    tensor, slope, shift = operands
    return builder.add(builder.mul(tensor, slope), shift)


def times_plus(builder: GraphBuilder, operands: Sequence[ir.Value]) -> ir.Value:
    """Return a tensor times a number plus another, each one for all or for each row of a matrix, by one kernel.

    It is the normalisation of channels that have mean 0 and deviation 1.
    """
    tensor, *numbers = operands
    shape, channels = shape_of(tensor), _channels(operands)
    slope, shift = (_by_channel(builder, value, channels) for value in numbers)
    mean = builder.constant(np.zeros(channels), tensor.dtype)
    data = builder.reshape(tensor, [1, channels, math.prod(shape) // channels])
    return builder.reshape(affine(builder, data, slope, shift, mean), list(shape))


def _by_channel(builder: GraphBuilder, value: ir.Value, channels: int) -> ir.Value:
    """Return numbers as a vector of one for each channel."""
    if math.prod(shape_of(value)) == channels:
        return builder.reshape(value, [channels])
    return builder.op("Expand", [builder.reshape(value, [1]), builder.constant(np.array([channels], np.int64))])


def _channels(operands: Sequence[ir.Value]) -> int:
    """Return how many equal parts with one slope and shift each a tensor is seen as; 0 if there is no such number."""
    tensor, *numbers = operands
    rows = max(math.prod(shape_of(value)) for value in numbers)
    if rows > 1:
        return rows
    elements = math.prod(shape_of(tensor))
    return next((number for number in _CHANNELS if elements % number == 0), 0)
