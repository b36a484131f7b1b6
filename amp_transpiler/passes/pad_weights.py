"""Gives weights of products more columns or rows, of zeros: columns leave the result again, operands get zeros."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.cost.padded_products import Padding, paddings
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.passes.manager import Pass, PassResult, run_pass
from amp_transpiler.precision.policy import Policy
from amp_transpiler.program.program import Program
from amp_transpiler.targets.devices import find_device

__all__ = ["PadWeights", "pad_weights"]

_WEIGHT, _BIAS = 1, 2  # operands of a product


def pad_weights(program: Program, policy: Policy) -> tuple[Padding, ...]:
    """Widen the weights of a prepared program, in place, where that is predicted to save time.

    Args:
        program: a typed program in plain form; float32 where it is low later.
        policy: names the low format, the device and the sizes of open dimensions, and has the user's lists.

    Returns:
        The products whose weights are wider now; none whose result the lists name.
    """
    rows = paddings(program.model, policy.low, find_device(policy.device), policy.dims)
    listed = policy.rules.lists.black_varnames
    rows = tuple(row for row in rows if row.node.outputs[0].name not in listed)
    if run_pass(PadWeights({row.node: row for row in rows}), program.model).modified:
        program.touch()
    return rows


class PadWeights(Pass[PassResult]):
    """Widens weights; counts them. The product and its weight keep their names, and so does what is read of them.

    Args:
        paddings: product (MatMul, or Gemm with a vector as its bias) -> what its weight gets. The weight and the bias
            are float32 constants of the main graph that nothing else reads.
    """

    def __init__(self, paddings: Mapping[ir.Node, Padding]) -> None:
        self._paddings = paddings

    def call(self, model: ir.Model) -> PassResult:
        for node, padding in self._paddings.items():
            _deepen(model, node, padding)
            _widen(model, node, padding.width)
        return PassResult(model, modified=bool(self._paddings), count=len(self._paddings))


def _deepen(model: ir.Model, node: ir.Node, padding: Padding) -> None:
    """Give the weight of a MatMul rows of zeros, and the operand before it as many columns."""
    if padding.depth == padding.inner:
        return
    operand = node.inputs[0]
    assert operand is not None
    _pad(node.inputs[_WEIGHT], 0, padding.depth)
    builder = GraphBuilder(model, before=node, prefix=f"{node.name}/", metadata=node.metadata_props)
    pads = builder.constant(np.array([*[0] * (2 * padding.rank - 1), padding.depth - padding.inner], np.int64))
    deep = builder.op("Pad", [operand, pads])
    deep.type = operand.type
    node.replace_input_with(0, deep)


def _widen(model: ir.Model, node: ir.Node, width: int) -> None:
    axis = 0 if node.attributes.get_int("transB", 0) else 1
    weight = node.inputs[_WEIGHT]
    assert weight is not None
    assert weight.const_value is not None
    if weight.const_value.shape[axis] == width:
        return
    columns = _pad(weight, axis, width)
    if len(node.inputs) > _BIAS and node.inputs[_BIAS] is not None:
        _pad(node.inputs[_BIAS], 0, width)
    name, graph = node.name, node.graph
    assert graph is not None
    builder = GraphBuilder(model, before=node, prefix=f"{name}/", metadata=node.metadata_props)
    product = builder.op(
        node.op_type, node.inputs, {attribute.name: attribute.value for attribute in node.attributes.values()}
    )
    result = builder.slice(product, [0], [columns], [-1])
    take_over(node.outputs[0], result, builder.names)
    graph.remove(node, safe=True)
    wide = product.producer()
    assert wide is not None
    wide.name = name


def _pad(value: ir.Value | None, axis: int, width: int) -> int:
    """Put zeros behind a constant, so that it is as long along an axis as it should be; return how long it was."""
    assert value is not None
    assert value.const_value is not None
    array = value.const_value.numpy()
    length = int(array.shape[axis])
    zeros = [(0, 0)] * array.ndim
    zeros[axis] = (0, width - length)
    wide = np.pad(array, zeros)
    value.const_value = ir.Tensor(wide, dtype=value.const_value.dtype, name=value.name)
    value.shape = ir.Shape(wide.shape)
    return length
