"""Sums in the gradient of an attention what its result has already added up."""

from __future__ import annotations

import math

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, rank_of, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.match import Binding, bindings, parse_form
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import is_used
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["AttentionSums"]

_SLOPES = "MatMul(gradient, turned:Transpose(values))"
_FORMS = tuple(
    map(
        parse_form,
        (
            f"ReduceSum(Mul(slopes:{_SLOPES}, shares))",
            f"Squeeze(MatMul(row:Unsqueeze(slopes:{_SLOPES}), column:Unsqueeze(shares)))",
        ),
    )
)


class AttentionSums(Pass[PassResult]):
    """Computes the sums of each row of shares times slopes from an attention's result and its gradient; counts them.

    The gradient of a Softmax subtracts from each row of slopes its sum weighted by the shares. In an attention, with
    shares P, values V and the gradient G by the result P V, the slopes are G V^T, so that the sum is that of each row
    of G times P V: over the size of a head in place of the length (as in arXiv:2205.14135, appendix B.2).

    1. P V is there, and its rows are shorter than those of P.
    2. Where P V is read only transposed, and G is transposed back likewise, the rows are multiplied as they lie there,
       and only the sums are transposed: P V itself need not stay alive.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        order = {node: index for index, node in enumerate(model.graph)}
        for node in list(model.graph):
            for total in (total for form in _FORMS for total in bindings(form, node)):
                result = _result(total, order) if _is_sum_of_rows(total) else None
                if result is not None:
                    _rewrite(model, total, result, names)
                    count += 1
                    break
        return PassResult(model, modified=bool(count), count=count)


def _is_sum_of_rows(total: Binding) -> bool:
    """Whether what a form matched is the sum of the products along the last axis, which stays with size 1."""
    shares, slopes, result = total["shares"], total["slopes"], total.last.outputs[0]
    named = (shares, slopes, result, total["gradient"], total["values"])
    if not all(map(is_static, named)) or shape_of(shares) != shape_of(slopes) or result.is_graph_output():
        return False
    if shape_of(result) != (*shape_of(shares)[:-1], 1):
        return False
    rows, length = shape_of(shares)[:-1], shape_of(shares)[-1]
    if total.last.op_type == "Squeeze":
        sides = [shape_of(total[name]) for name in ("row", "column")]
        if sides != [(*rows, 1, length), (*rows, length, 1)]:
            return False
    elif not _is_over_last_axis(total.last, len(rows)):
        return False
    rank = len(rows) + 1
    return _order_of(total.node("turned")) == [*range(rank - 2), rank - 1, rank - 2]


def _is_over_last_axis(node: ir.Node, last: int) -> bool:
    tensor = constant_of(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return tensor is not None and tensor.numpy().reshape(-1).tolist() in ([last], [-1])


def _order_of(node: ir.Node) -> list[int]:
    """Return the order of axes of a Transpose."""
    return list(node.attributes.get_ints("perm", range(rank_of(node.outputs[0]))[::-1]))


def _result(total: Binding, order: dict[ir.Node, int]) -> ir.Value | None:
    """Return the product of shares and values, if it is computed before the sum and has shorter rows."""
    shares, values = total["shares"], total["values"]
    for use in shares.uses():
        node = use.node
        if node.op_type != "MatMul" or not is_standard(node) or list(node.inputs) != [shares, values]:
            continue
        result = node.outputs[0]
        is_before = order.get(node, len(order)) < order[total.last]
        if is_before and result.shape == total["gradient"].shape and shape_of(result)[-1] < shape_of(shares)[-1]:
            return result
    return None


def _rewrite(model: ir.Model, total: Binding, result: ir.Value, names: NameAllocator) -> None:
    """Sum the products of the result and its gradient in place of those of shares and slopes."""
    node, gradient = total.last, total["gradient"]
    builder = GraphBuilder(model, before=node, names=names, metadata=node.metadata_props, prefix=f"{node.name}/")
    turned = _turned_alike(result, gradient)
    if turned is None:
        sums = _dots(builder, node.op_type, gradient, result)
    else:
        there, beside, back = turned
        sums = builder.transpose(_dots(builder, node.op_type, beside, there), back)
    node.outputs[0].replace_all_uses_with(sums)
    for each in (node, *_makers(node, total)):
        if each.graph is not None and not any(map(is_used, each.outputs)):
            each.graph.remove(each, safe=True)


def _dots(builder: GraphBuilder, op_type: str, first: ir.Value, second: ir.Value) -> ir.Value:
    """Return the sums of products along the last axis, by the operators that computed them before."""
    if op_type == "ReduceSum":
        return builder.reduce("ReduceSum", builder.mul(first, second), [-1])
    rank = rank_of(first)
    product = builder.matmul(builder.unsqueeze(first, [rank - 1]), builder.unsqueeze(second, [rank]))
    return builder.squeeze(product, [rank])


def _turned_alike(result: ir.Value, gradient: ir.Value) -> tuple[ir.Value, ir.Value, list[int]] | None:
    """Return the result transposed, its gradient as it lies before it is, and the order back; None if they are not so.

    The last axis stays the last.
    """
    readers = {use.node for use in result.uses()}
    reader, maker = (readers.pop() if len(readers) == 1 else None), gradient.producer()
    if reader is None or maker is None or not (_is_transpose(reader) and _is_transpose(maker)):
        return None
    there, back = _order_of(reader), _order_of(maker)
    beside = maker.inputs[0]
    is_inverse = [there[axis] for axis in back] == list(range(len(back))) and back[-1] == len(back) - 1
    if beside is None or not is_inverse or math.prod(shape_of(beside)) == 0:
        return None
    return reader.outputs[0], beside, back


def _is_transpose(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and is_standard(node)


def _makers(node: ir.Node, total: Binding) -> list[ir.Node]:
    """Return the nodes between a sum and what it is of, the last one first."""
    inner = node.inputs[0].producer() if node.inputs[0] is not None else None
    assert inner is not None  # the form has it
    if node.op_type == "ReduceSum":
        return [inner]
    return [inner, total.node("row"), total.node("column")]
