"""Gives weights of products more columns, of zeros, and takes the columns off the result again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.cost.padded_products import Padding, paddings
from amp_transpiler.graph.builder import GraphBuilder
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
    if run_pass(PadWeights({row.node: row.width for row in rows}), program.model).modified:
        program.touch()
    return rows


class PadWeights(Pass[PassResult]):
    """Widens weights; counts them. The product and its weight keep their names, and so does what is read of them.

    Args:
        widths: product (MatMul, or Gemm with a vector as its bias) -> the columns that its weight gets. The weight and
            the bias are float32 constants of the main graph that nothing else reads.
    """

    def __init__(self, widths: Mapping[ir.Node, int]) -> None:
        self._widths = widths

    def call(self, model: ir.Model) -> PassResult:
        for node, width in self._widths.items():
            _widen(model, node, width)
        return PassResult(model, modified=bool(self._widths), count=len(self._widths))


def _widen(model: ir.Model, node: ir.Node, width: int) -> None:
    axis = 0 if node.attributes.get_int("transB", 0) else 1
    columns = _pad(node.inputs[_WEIGHT], axis, width)
    if len(node.inputs) > _BIAS and node.inputs[_BIAS] is not None:
        _pad(node.inputs[_BIAS], 0, width)
    name, old, graph = node.name, node.outputs[0], node.graph
    assert graph is not None
    builder = GraphBuilder(model, before=node, prefix=f"{name}/", metadata=node.metadata_props)
    product = builder.op(
        node.op_type, node.inputs, {attribute.name: attribute.value for attribute in node.attributes.values()}
    )
    result = builder.slice(product, [0], [columns], [-1])
    result.type, result.shape, result.doc_string = old.type, old.shape, old.doc_string
    result.metadata_props.update(old.metadata_props)
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    result.name, old.name = old.name, None
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
