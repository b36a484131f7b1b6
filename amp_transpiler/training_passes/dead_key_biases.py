"""Leaves the bias of an attention's keys out of scores whose Softmax takes it away."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, rank_of, shape_of
from amp_transpiler.graph.constness import constant_of, single_number
from amp_transpiler.graph.match import bindings, parse_form
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.walk import is_used
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["DeadKeyBiases"]

_SLOPES = parse_form("Mul(shares, Sub(slopes, sums))")
_VIEWS = ("Reshape", "Transpose")


class DeadKeyBiases(Pass[PassResult]):
    """Leaves the bias out of an attention's keys in a training step; counts the biases.

    A bias of the keys adds one number to all scores of a query, and a Softmax takes it away. So no result changes, and
    the gradient of the bias is exactly 0: written so, instead of the rounding errors of a sum. Two passes over the keys
    leave the step.

    1. The Softmax, along the keys, gets the scores, perhaps times a number or plus something else.
    2. Nothing reads the keys but the scores' product and that of the gradient of the scores, whose rows sum to 0.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        builder, count = GraphBuilder(model, prefix="key_biases/"), 0
        for node in [node for node in model.graph if node.op_type == "Softmax" and is_standard(node)]:
            keys = _keys(node)
            if keys is not None:
                _leave_out(builder, *keys)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


def _keys(softmax: ir.Node) -> tuple[ir.Node, ir.Value, list[ir.Node]] | None:
    """Return the Add of a bias that a Softmax takes away, the keys without it and the gradients of the scores."""
    shares = softmax.outputs[0]
    if shares.shape is None or softmax.attributes.get_int("axis", -1) not in (-1, rank_of(shares) - 1):
        return None
    product = _scores(softmax.inputs[0], softmax)
    if product is None or product.inputs[1] is None:
        return None
    slopes = list(_gradients(shares))
    total = _biased(product.inputs[1])
    if total is None or not slopes:
        return None
    keys = _without_bias(total)
    readers = set(_readers(total.outputs[0]))
    is_inside = {product} <= readers and all(each is product or _sums_slopes(each, slopes) for each in readers)
    return None if keys is None or not is_inside else (total, keys, slopes)


def _scores(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """Return the product of queries and keys, behind factors and masks; nothing else reads what is between."""
    while value is not None and {use.node for use in value.uses()} == {reader} and not value.is_graph_output():
        node = value.producer()
        if node is None or not is_standard(node) or not is_static(value):
            return None
        if node.op_type == "MatMul":
            return node
        value, reader = _main_operand(node, value), node
    return None


def _main_operand(node: ir.Node, result: ir.Value) -> ir.Value | None:
    """Return the operand that a node multiplies with a number or adds something to; None for other nodes."""
    if node.op_type not in ("Add", "Mul"):
        return None
    for value, other in (node.inputs, tuple(reversed(node.inputs))):
        if value is None or other is None or value.shape != result.shape or constant_of(value) is not None:
            continue
        if node.op_type == "Add" or single_number(other) is not None:
            return value
    return None


def _gradients(shares: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that compute the gradient of the scores from that of the shares."""
    for use in shares.uses():
        for slopes in bindings(_SLOPES, use.node):
            sums = slopes["sums"]
            is_of_rows = is_static(sums) and shape_of(sums) == (*shape_of(shares)[:-1], 1)
            if slopes["shares"] is shares and is_of_rows and role_of(use.node) == "backward":
                yield use.node
                break


def _biased(value: ir.Value) -> ir.Node | None:
    """Return the Add of a vector that the keys are views of."""
    while (node := value.producer()) is not None and is_standard(node) and node.op_type in _VIEWS:
        assert node.inputs[0] is not None  # they have one
        value = node.inputs[0]
    return node if node is not None and node.op_type == "Add" and is_standard(node) else None


def _without_bias(total: ir.Node) -> ir.Value | None:
    """Return what a vector is added to."""
    result = total.outputs[0]
    for value, other in (total.inputs, tuple(reversed(total.inputs))):
        if value is not None and other is not None and is_static(other) and value.shape == result.shape:
            return value if shape_of(other) == shape_of(result)[-1:] else None
    return None


def _readers(value: ir.Value) -> Iterator[ir.Node | None]:
    """Yield what reads a value or views of it; None for the caller of the graph."""
    if value.is_graph_output():
        yield None
    for use in value.uses():
        if use.node.op_type in _VIEWS and is_standard(use.node) and use.idx == 0:
            yield from _readers(use.node.outputs[0])
        else:
            yield use.node


def _sums_slopes(node: ir.Node | None, slopes: list[ir.Node]) -> bool:
    """Whether a node multiplies a gradient of scores with keys, which adds up its rows."""
    if node is None or node.op_type != "MatMul" or not is_standard(node) or node.inputs[0] is None:
        return False
    return node.inputs[0].producer() in slopes


def _leave_out(builder: GraphBuilder, total: ir.Node, keys: ir.Value, slopes: list[ir.Node]) -> None:
    bias = next(value for value in total.inputs if value is not None and value is not keys)
    total.outputs[0].replace_all_uses_with(keys)
    builder.graph.remove(total, safe=True)
    for gradient in [product for node in slopes for product in _gradients_of_keys(node)]:
        for reader in list(_readers(gradient.outputs[0])):
            if reader is not None and _sums_rows(reader):
                _write_zeros(builder, reader, bias)


def _gradients_of_keys(slopes: ir.Node) -> Iterator[ir.Node]:
    """Yield the products of queries and the gradient of the scores, which its columns add up."""
    for use in slopes.outputs[0].uses():
        if use.idx == 1 and use.node.op_type == "MatMul" and is_standard(use.node):
            yield use.node


def _sums_rows(node: ir.Node) -> bool:
    """Whether a node sums the rows of a matrix: a ReduceSum, behind a cast too, or a product with ones."""
    if node.op_type == "Cast":
        readers = [use.node for use in node.outputs[0].uses()]
        return len(readers) == 1 and readers[0].op_type == "ReduceSum" and _sums_rows(readers[0])
    if not is_standard(node) or len(node.inputs) < 2 or not is_static(node.outputs[0]):
        return False
    first, second = node.inputs[:2]
    if node.op_type == "ReduceSum":
        axes = None if second is None else constant_of(second)
        return (
            axes is not None and axes.numpy().reshape(-1).tolist() == [0] and first is not None and rank_of(first) == 2
        )
    ones = None if first is None or node.op_type != "MatMul" else constant_of(first)
    return ones is not None and ones.shape[0] == 1 and bool((ones.numpy().astype(np.float32) == 1).all())


def _write_zeros(builder: GraphBuilder, node: ir.Node, bias: ir.Value) -> None:
    """Replace a sum of rows by zeros, computed in each step: ONNX Runtime copies constant gradients to the host."""
    last = next(iter(node.outputs[0].uses())).node if node.op_type == "Cast" else node
    result = last.outputs[0]
    if result.is_graph_output():
        return
    builder.before, builder.metadata = last, dict(last.metadata_props)
    zeros = builder.reshape(builder.cast(builder.mul(bias, 0.0), result.dtype), list(shape_of(result)))
    result.replace_all_uses_with(zeros)
    for each in dict.fromkeys((last, node)):
        if not is_used(each.outputs[0]):
            builder.graph.remove(each, safe=True)
