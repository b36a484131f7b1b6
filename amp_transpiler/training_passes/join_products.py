"""Joins query, key and value of an attention to one product, and their gradients likewise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.graph.walk import is_used
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["JoinProducts"]

_LARGE = 1 << 22  # elements, 8 MB: beyond that, to move results once more takes longer than the launches that it saves
_HEADS_FIRST = [0, 2, 1, 3]  # [batch, length, heads, size] -> [batch, heads, length, size]
_TURNED = [0, 2, 3, 1]  # the same, and transposed
_TURNED_BACK = [0, 3, 1, 2]


class JoinProducts(Pass[PassResult]):
    """Multiplies a matrix once with several equal weights, forward and backward; counts the weights.

    Query, key and value of an attention are such products: nine kernels forward, transpositions included, and
    thirteen backward. Joined they are six and eight.

    1. The 16-bit products have one left side, weights of one shape, a bias each, and are split into heads and
       transposed alike. Weights and biases are joined in each step, the result is split where the heads lie apart.
    2. The gradients by the results are joined, heads side by side. One product gives the gradient by the left side,
       summed in float32; one each, split again, the gradients by the weights and by the biases.
    3. Results and weights are small: large ones are moved once more, and the joined weights stay in memory.

    Shapes must be inferred, and sums of rows be products (SumByProducts). Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for branches in _groups(model.graph):
            joined = _Joined.of(branches)
            if joined is not None:
                joined.rewrite(model, names)
                count += len(branches)
        if count:
            model.graph.sort()
        return PassResult(model, modified=bool(count), count=count)


@dataclasses.dataclass(frozen=True)
class _Branch:
    """One of the products, with what follows.

    Attributes:
        product: the MatMul.
        total: the Add of its bias.
        heads: the Reshape into heads.
        turn: the Transpose.
        bias: the bias.
    """

    product: ir.Node
    total: ir.Node
    heads: ir.Node
    turn: ir.Node
    bias: ir.Value

    @classmethod
    def of(cls, product: ir.Node) -> _Branch | None:
        """Return the branch that begins with a product, None if none does."""
        if not _is(product, "MatMul") or product.outputs[0].dtype not in LOW_DTYPES:
            return None
        total = _reader(product.outputs[0], "Add")
        heads = None if total is None else _reader(total.outputs[0], "Reshape")
        turn = None if heads is None else _reader(heads.outputs[0], "Transpose")
        if total is None or heads is None or turn is None or _perm(turn) not in (_HEADS_FIRST, _TURNED):
            return None
        bias = next(value for value in total.inputs if value is not product.outputs[0])
        values = (*product.inputs, bias, heads.outputs[0])
        if bias is None or not all(value is not None and is_static(value) for value in values):
            return None
        return cls(product, total, heads, turn, bias) if _fits(values) else None

    @property
    def key(self) -> tuple[object, ...]:
        """What is equal for branches that can be joined."""
        left, right = self.product.inputs
        assert right is not None
        return left, shape_of(right), shape_of(self.heads.outputs[0])


def _fits(values: Sequence[ir.Value | None]) -> bool:
    """Whether rows [n, k], a weight [k, m] and a bias [m] give [batch, length, heads, size] by the same order."""
    left, right, bias, heads = (shape_of(value) for value in values if value is not None)
    if len(left) != 2 or len(right) != 2 or len(heads) != 4:
        return False
    return bias == right[1:] and heads[0] * heads[1] == left[0] and heads[2] * heads[3] == right[1]


@dataclasses.dataclass(frozen=True)
class _Gradient:
    """Describes the gradient by the result of a product, and what is computed from it.

    Attributes:
        turned: it, [batch, heads, length, size] or with the last two axes exchanged.
        perm: how that is transposed to [batch, length, heads, size].
        place: the Reshape to rows.
        to_left: the MatMul that gives the gradient by the left side.
        to_weight: the one that gives that by the weight; None if it is not wanted.
        to_bias: the one that gives that by the bias; None if it is not wanted.
    """

    turned: ir.Value
    perm: list[int]
    place: ir.Node
    to_left: ir.Node
    to_weight: ir.Node | None
    to_bias: ir.Node | None

    @classmethod
    def of(cls, branch: _Branch) -> _Gradient | None:
        """Return the gradient of a branch, None if something else is made of it."""
        left, right = branch.product.inputs
        if left is None or right is None:
            return None
        products = [use.node for turned in _transposes(right) for use in turned.outputs[0].uses() if use.idx == 1]
        if len(products) != 1 or not _is(products[0], "MatMul") or products[0].inputs[0] is None:
            return None
        rows = products[0].inputs[0]
        place = rows.producer()
        turn = (
            None
            if place is None or not _is(place, "Reshape") or place.inputs[0] is None
            else place.inputs[0].producer()
        )
        if place is None or turn is None or not _is(turn, "Transpose") or turn.inputs[0] is None:
            return None
        if _perm(turn) not in (_HEADS_FIRST, _TURNED_BACK) or len(turn.outputs[0].uses()) != 1:
            return None
        if not is_static(turn.outputs[0]) or shape_of(turn.outputs[0]) != shape_of(branch.heads.outputs[0]):
            return None
        others = [use.node for use in rows.uses() if use.node is not products[0]]
        to_weight = [node for node in others if _is_product_of_rows(node, rows, left)]
        to_bias = [node for node in others if _is_sum(node, rows)]
        if len(to_weight) > 1 or len(to_bias) > 1 or len(to_weight) + len(to_bias) != len(others):
            return None
        gradient_nodes = (products[0], *to_weight, *to_bias)
        if rows.is_graph_output() or any(node.outputs[0].is_graph_output() for node in gradient_nodes):
            return None
        weight, bias = ([*nodes, None][0] for nodes in (to_weight, to_bias))
        return cls(turn.inputs[0], _perm(turn), place, products[0], weight, bias)


@dataclasses.dataclass(frozen=True)
class _Joined:
    """Branches that become one.

    Attributes:
        branches: they.
        gradients: the gradient of each.
        total: the node that adds the gradients by the left side.
    """

    branches: Sequence[_Branch]
    gradients: Sequence[_Gradient]
    total: ir.Node

    @classmethod
    def of(cls, branches: Sequence[_Branch]) -> _Joined | None:
        """Return the branches with their gradients, None if they cannot be joined."""
        candidates = [_Gradient.of(branch) for branch in branches]
        gradients = [gradient for gradient in candidates if gradient is not None]
        if len(gradients) < len(candidates) or len({(g.to_weight is None, g.to_bias is None) for g in gradients}) > 1:
            return None
        readers = [[use.node for use in gradient.to_left.outputs[0].uses()] for gradient in gradients]
        if any(len(nodes) != 1 or nodes != readers[0] for nodes in readers):
            return None
        total = readers[0][0]
        return cls(branches, gradients, total) if total.op_type in ("Add", "Sum") and is_standard(total) else None

    def rewrite(self, model: ir.Model, names: NameAllocator) -> None:
        """Replace the nodes, forward and backward."""
        order = {node: index for index, node in enumerate(model.graph)}
        last = max((branch.product for branch in self.branches), key=order.__getitem__)
        builder = GraphBuilder(model, before=last, names=names, metadata=last.metadata_props, prefix="joined/")
        weights = self._forward(builder)
        place = max((gradient.place for gradient in self.gradients), key=order.__getitem__)
        back = GraphBuilder(model, before=place, names=names, metadata=place.metadata_props, prefix="joined/")
        rows = self._rows(back)
        self._to_left(back, rows, weights)
        left = self.branches[0].product.inputs[0]
        assert left is not None
        _replace(back, [g.to_weight for g in self.gradients], lambda: back.matmul(back.swap_last(left), rows))
        ones = back.constant(np.ones((1, shape_of(rows)[0])), rows.dtype)
        _replace(back, [g.to_bias for g in self.gradients], lambda: back.matmul(ones, rows))
        for branch in self.branches:
            _remove_unused(branch.turn)
        _remove_unused(self.total)
        for gradient in self.gradients:
            for node in (gradient.to_left, gradient.to_weight, gradient.to_bias):
                _remove_unused(node)

    def _forward(self, builder: GraphBuilder) -> ir.Value:
        """Write the joined product; return the joined weights."""
        first, count = self.branches[0], len(self.branches)
        right = [branch.product.inputs[1] for branch in self.branches]
        weights = builder.concat([value for value in right if value is not None], 1)
        biases = builder.concat([branch.bias for branch in self.branches], 0)
        left = first.product.inputs[0]
        assert left is not None
        batch, length, heads, size = shape_of(first.heads.outputs[0])
        total = builder.add(builder.matmul(left, weights), biases)
        turned = builder.transpose(builder.reshape(total, [batch, length, count * heads, size]), _HEADS_FIRST)
        for branch, part in zip(self.branches, _parts(builder, turned, 1, count), strict=True):
            turned_part = builder.swap_last(part) if _perm(branch.turn) == _TURNED else part
            take_over(branch.turn.outputs[0], turned_part, builder.names)
        return weights

    def _rows(self, builder: GraphBuilder) -> ir.Value:
        """Return the joined gradient by the products' results."""
        parts = [_heads_first(builder, gradient) for gradient in self.gradients]
        joined = builder.transpose(builder.concat(parts, 1), _HEADS_FIRST)
        batch, length, heads, size = shape_of(joined)
        return builder.reshape(joined, [batch * length, heads * size])

    def _to_left(self, builder: GraphBuilder, rows: ir.Value, weights: ir.Value) -> None:
        """Let the gradient by the left side be one product instead of a sum of several."""
        gone = {gradient.to_left.outputs[0] for gradient in self.gradients}
        others = [value for value in self.total.inputs if value is not None and value not in gone]
        product = builder.matmul(rows, builder.swap_last(weights))
        builder.before = self.total
        if others:
            product = builder.add(others[0], product) if len(others) == 1 else builder.op("Sum", [*others, product])
        take_over(self.total.outputs[0], product, builder.names)


def _groups(graph: Iterable[ir.Node]) -> list[list[_Branch]]:
    """Return the branches that begin with products of one matrix, where there are several and they are small."""
    groups: dict[tuple[object, ...], list[_Branch]] = {}
    for node in graph:
        branch = _Branch.of(node)
        if branch is not None:
            groups.setdefault(branch.key, []).append(branch)
    return [group for group in groups.values() if len(group) > 1 and _elements(group) <= _LARGE]


def _elements(group: Sequence[_Branch]) -> int:
    """Return the elements of the results, or of the weights if they are more."""
    values = [(branch.product.outputs[0], branch.product.inputs[1]) for branch in group]
    return max(
        sum(math.prod(shape_of(value)) for value in each if value is not None) for each in zip(*values, strict=True)
    )


def _heads_first(builder: GraphBuilder, gradient: _Gradient) -> ir.Value:
    """Return a gradient as [batch, heads, length, size]; `A' B` that gives it transposed as `B' A`."""
    if gradient.perm == _HEADS_FIRST:
        return gradient.turned
    node = gradient.turned.producer()
    if node is None or not _is(node, "MatMul") or len(gradient.turned.uses()) != 1:
        return builder.swap_last(gradient.turned)
    a, b = node.inputs
    assert a is not None
    assert b is not None
    return builder.matmul(builder.swap_last(b), builder.swap_last(a))


def _parts(builder: GraphBuilder, value: ir.Value, axis: int, count: int) -> tuple[ir.Value, ...]:
    """Split a value into equal parts."""
    sizes = builder.constant(np.full(count, shape_of(value)[axis] // count, np.int64))
    return builder.nodes("Split", [value, sizes], {"axis": axis}, outputs=count)


def _replace(builder: GraphBuilder, nodes: Sequence[ir.Node | None], make: Callable[[], ir.Value]) -> None:
    """Let parts of a matrix, side by side, replace the results of nodes; nothing if they are not there."""
    if any(node is None for node in nodes):
        return
    for node, part in zip(nodes, _parts(builder, make(), 1, len(nodes)), strict=True):
        assert node is not None
        take_over(node.outputs[0], part, builder.names)


def _is(node: ir.Node, op_type: str) -> bool:
    return node.op_type == op_type and is_standard(node)


def _reader(value: ir.Value, op_type: str) -> ir.Node | None:
    """Return the node of a kind if only it reads a value, None if there is none."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or not _is(uses[0].node, op_type):
        return None
    return None if uses[0].node.outputs[0].is_graph_output() else uses[0].node


def _perm(node: ir.Node) -> list[int]:
    perm = node.attributes.get("perm")
    return [] if perm is None else list(perm.as_ints())


def _transposes(matrix: ir.Value) -> list[ir.Node]:
    """Return the nodes that transpose a matrix."""
    nodes = [use.node for use in matrix.uses() if _is(use.node, "Transpose")]
    return [node for node in nodes if _perm(node) in ([], [1, 0])]


def _is_product_of_rows(node: ir.Node, rows: ir.Value, left: ir.Value) -> bool:
    """Whether a node multiplies the transposed left side with the rows."""
    turned = node.inputs[0].producer() if _is(node, "MatMul") and node.inputs[0] is not None else None
    return turned is not None and turned in _transposes(left) and node.inputs[1] is rows


def _is_sum(node: ir.Node, rows: ir.Value) -> bool:
    """Whether a node sums the rows by a product with ones."""
    if not _is(node, "MatMul") or node.inputs[0] is None or node.inputs[1] is not rows:
        return False
    tensor = constant_of(node.inputs[0])
    return tensor is not None and list(tensor.shape) == [1, shape_of(rows)[0]] and bool((tensor.numpy() == 1).all())


def _remove_unused(node: ir.Node | None) -> None:
    """Remove a node whose result nobody reads, and those before it of which the same is true."""
    if node is None or node.graph is None or any(map(is_used, node.outputs)):
        return
    sources = [value.producer() for value in node.inputs if value is not None]
    node.graph.remove(node, safe=True)
    for source in sources:
        _remove_unused(source)
