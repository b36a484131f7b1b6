"""Applies factors of the rows of a large matrix to the small matrices that it is multiplied with."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.match import bindings, parse_form
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.graph.walk import is_used
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["MoveRowFactors"]

_SCALED = parse_form("Cast(product:Mul(Cast(rows), factors))")
_LEAST = 64  # columns: a factor for every few numbers is no smaller than they are


class MoveRowFactors(Pass[PassResult]):
    """Multiplies what a matrix is multiplied with by the factors of its rows, instead of the matrix; counts them.

    The gradient of a loss is such a matrix: shares of all classes times one float32 factor a sample, of the size of
    the scores. It is read only by products, the gradients of the last layer: `(r G) W = r (G W)`, and
    `(r G)' X = G' (r X)`, whose other matrices have as many columns as that layer has inputs.

    1. The value is a 16-bit matrix, cast to float32, multiplied by a column, and cast back.
    2. Where all its readers are products, the column is applied there, in 16 bits; sums inside stay float32.
    3. Otherwise the matrix is multiplied in 16 bits.
    4. With `float32`, also a float32 matrix of the backward pass times a column, which only products and sums of rows
       read, or a cast to 16 bits for products; such a sum becomes a product with the column.

    Shapes must be inferred. Only the main graph is edited.

    Args:
        float32: whether float32 matrices count. Their sums of rows are TF32's where products are.
    """

    def __init__(self, *, float32: bool = False) -> None:
        self._float32 = float32

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for node in list(model.graph):
            scaled = _Scaled.of(node) or (_Scaled.of_float32(node) if self._float32 else None)
            if scaled is not None:
                scaled.move(model, names)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


@dataclasses.dataclass(frozen=True)
class _Scaled:
    """A matrix with a factor a row.

    Attributes:
        last: the node of the result: the cast of the product to 16 bits, or a float32 product itself.
        rows: the matrix.
        factors: float32, a column.
    """

    last: ir.Node
    rows: ir.Value
    factors: ir.Value

    @classmethod
    def of(cls, cast: ir.Node) -> _Scaled | None:
        """Return the matrix whose last node is `cast`, None if that is another node."""
        for scaled in bindings(_SCALED, cast):
            result, low, factors = cast.outputs[0], scaled["rows"], scaled["factors"]
            if result.dtype not in LOW_DTYPES or result.is_graph_output() or len(scaled["product"].uses()) > 1:
                return None
            if not is_static(result) or len(shape_of(result)) != 2 or not is_static(factors):
                continue
            rows, columns = shape_of(result)
            if columns >= _LEAST and low.dtype == result.dtype and shape_of(factors) == (rows, 1):
                return cls(cast, low, factors)
        return None

    @classmethod
    def of_float32(cls, node: ir.Node) -> _Scaled | None:
        """Return the float32 matrix of the backward pass that a Mul multiplies with a column, None if it does not."""
        if node.op_type != "Mul" or not is_standard(node) or role_of(node) != "backward":
            return None
        result = node.outputs[0]
        if result.dtype != ir.DataType.FLOAT or result.is_graph_output() or not _is_matrix(result):
            return None
        rows, factors = node.inputs
        if factors is not None and is_static(factors) and shape_of(factors) == shape_of(result):
            rows, factors = factors, rows
        if rows is None or factors is None or not is_static(factors) or not is_static(rows):
            return None
        count, columns = shape_of(result)
        if columns < _LEAST or shape_of(rows) != (count, columns) or shape_of(factors) != (count, 1):
            return None
        readers = [use.node for use in result.uses()]
        return cls(node, rows, factors) if all(_applies_factors(reader, result) for reader in readers) else None

    def move(self, model: ir.Model, names: NameAllocator) -> None:
        """Let the readers apply the factors, or apply them in 16 bits."""
        scaled = self.last.outputs[0]
        builder = GraphBuilder(model, before=self.last, names=names, metadata=self.last.metadata_props)
        factors = builder.cast(self.factors, scaled.dtype)
        for total in [use.node for use in scaled.uses() if _is_sum_of_rows(use.node)]:
            _sum_by_product(GraphBuilder(model, before=total, names=names, metadata=total.metadata_props), total)
        for cast in [use.node for use in scaled.uses() if _is_rounded_for_products(use.node)]:
            _Scaled(cast, builder.cast(self.rows, cast.outputs[0].dtype), self.factors).move(model, names)
        readers = [use.node for use in scaled.uses()]
        moves = [_Product.of(node, scaled) for node in readers]
        if all(moves):
            for move in filter(None, moves):
                metadata = move.node.metadata_props
                move.apply(GraphBuilder(model, before=move.node, names=names, metadata=metadata), self.rows, factors)
        else:
            scaled.replace_all_uses_with(builder.mul(self.rows, factors))
        node: ir.Node | None = self.last if self.last.graph is not None else None
        while node is not None and node.graph is not None and not any(map(is_used, node.outputs)):
            source = node.inputs[0]
            node.graph.remove(node, safe=True)
            node = None if source is None or source is self.rows else source.producer()


@dataclasses.dataclass(frozen=True)
class _Product:
    """A product of a matrix with another one.

    Attributes:
        node: MatMul or Gemm.
        index: which of the two it is.
        turned: whether it is multiplied transposed.
    """

    node: ir.Node
    index: int
    turned: bool

    @classmethod
    def of(cls, node: ir.Node, matrix: ir.Value) -> _Product | None:
        """Return the product that a node is; None if it is none, adds something, or is too large to be worth it."""
        if not is_standard(node) or node.op_type not in ("MatMul", "Gemm") or node.outputs[0].is_graph_output():
            return None
        if len(node.inputs) != 2 or list(node.inputs).count(matrix) != 1 or not all(map(_is_matrix, node.inputs)):
            return None
        product = cls(node, list(node.inputs).index(matrix), False)
        product = dataclasses.replace(product, turned=product.is_turned(product.index))
        small = product.other if product.is_summed_over else node.outputs[0]
        return product if is_static(small) and math.prod(shape_of(small)) <= math.prod(shape_of(matrix)) else None

    def is_turned(self, index: int) -> bool:
        """Whether a factor of the product is multiplied transposed."""
        flag = self.node.attributes.get(("transA", "transB")[index])
        return flag is not None and bool(flag.as_int())

    @property
    def is_summed_over(self) -> bool:
        """Whether the product sums over the rows of the matrix."""
        return self.turned != bool(self.index)

    @property
    def other(self) -> ir.Value:
        """The other factor."""
        value = self.node.inputs[1 - self.index]
        assert value is not None
        return value

    def apply(self, builder: GraphBuilder, rows: ir.Value, factors: ir.Value) -> None:
        """Multiply the unscaled matrix; apply the factors to the other matrix, or to the result."""
        self.node.replace_input_with(self.index, rows)
        if not self.is_summed_over:
            _behind(builder, self.node, builder.reshape(factors, [1, -1]) if self.index else factors)
            return
        other = self.other
        if (self.index == 1) != self.is_turned(1 - self.index):  # the other one's last axis is summed over
            factors = builder.reshape(factors, [1, -1])
        scaled = factors if _is_ones(other) and shape_of(other) == shape_of(factors) else builder.mul(other, factors)
        self.node.replace_input_with(1 - self.index, scaled)


def _behind(builder: GraphBuilder, node: ir.Node, factors: ir.Value) -> None:
    """Let the readers of a node's result read it times `factors`."""
    result = node.outputs[0]
    uses = [(use.node, use.idx) for use in result.uses()]
    following = iter(node.graph or ())
    while next(following) is not node:
        pass
    builder.before = next(following, None)
    scaled = builder.mul(result, factors)
    for reader, index in uses:
        reader.replace_input_with(index, scaled)


def _applies_factors(node: ir.Node, matrix: ir.Value) -> bool:
    """Whether a reader of a float32 matrix can apply factors of its rows."""
    return _Product.of(node, matrix) is not None or _is_sum_of_rows(node) or _is_rounded_for_products(node)


def _is_rounded_for_products(node: ir.Node) -> bool:
    """Whether a node casts a matrix to 16 bits for products alone."""
    result = node.outputs[0]
    if node.op_type != "Cast" or not is_standard(node) or result.dtype not in LOW_DTYPES or result.is_graph_output():
        return False
    readers = [use.node for use in result.uses()]
    return bool(readers) and all(_Product.of(reader, result) for reader in readers)


def _is_sum_of_rows(node: ir.Node) -> bool:
    if node.op_type != "ReduceSum" or not is_standard(node) or len(node.inputs) < 2 or node.inputs[1] is None:
        return False
    value, axes = node.inputs[0], constant_of(node.inputs[1])
    is_wide = value is not None and value.dtype == ir.DataType.FLOAT
    return is_wide and axes is not None and axes.numpy().tolist() == [0] and not node.outputs[0].is_graph_output()


def _sum_by_product(builder: GraphBuilder, node: ir.Node) -> None:
    """Write the sum of a matrix's rows as a product with a row of ones."""
    rows, result = node.inputs[0], node.outputs[0]
    assert rows is not None
    total = builder.matmul(builder.constant(np.ones((1, shape_of(rows)[0])), rows.dtype), rows)
    keeps_axis = node.attributes.get_int("keepdims", 1)
    take_over(result, total if keeps_axis else builder.reshape(total, [-1]), builder.names)
    builder.graph.remove(node, safe=True)


def _is_matrix(value: ir.Value | None) -> bool:
    return value is not None and is_static(value) and len(shape_of(value)) == 2


def _is_ones(value: ir.Value) -> bool:
    tensor = constant_of(value)
    return tensor is not None and bool((tensor.numpy() == 1).all())
