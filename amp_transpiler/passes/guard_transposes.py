"""Protection from ONNX Runtime's MatmulTransposeFusion where it gives up half-way: on the CPU and on CUDA."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.inserted_casts import INSERTED
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["GuardTransposes", "crashing_products"]

logger = logging.getLogger(__name__)


class GuardTransposes(Pass[PassResult]):
    """Keeps a MatMul apart from a Transpose that moves the batch, and from a Cast of it; counts the MatMuls and Casts.

    MatmulTransposeFusion exchanges a Transpose and the Cast behind it, and then gives up where the MatMul cannot take
    the Transpose. The new Cast was never looked up, so the session is refused on CUDA ("Failed to find kernel for
    Cast(-1)"). A model whose Cast comes first stays as it is.

    ONNX Runtime 1.31's CPU provider computes such a MatMul in float32. MatmulTransposeFusion then starts on a Transpose
    that moves the first dimension to one of the last two, gives up because the weights have another rank, and leaves
    nodes behind that FuseFp16InitializerToFp32NodeTransformer follows into nothing: SIGSEGV when the session opens.
    The weights multiply rows, so the Transpose is done after the product where it leaves the rows whole; else the
    weights get the other operand's rank. Neither changes a number, nor costs the CUDA provider a launch.
    """

    def call(self, model: ir.Model) -> PassResult:
        products = list(_products(model))
        names = functools.cache(lambda: NameAllocator(model))  # collecting the names takes longer than all the rest
        exchanged = sum(_cast_first(node.inputs[side], names) for node in products for side in (0, 1))
        if exchanged:
            logger.info("%d casts moved in front of a Transpose that ONNX Runtime would refuse on CUDA", exchanged)
        low = [node for node in products if node.outputs[0].dtype == ir.DataType.FLOAT16]
        apart = sum(any(_guard(node, side, names) for side in (0, 1)) for node in low)
        if apart:
            logger.info("%d products kept apart from a Transpose that would crash ONNX Runtime on the CPU", apart)
        return PassResult(model, modified=bool(exchanged + apart), count=exchanged + apart)


def crashing_products(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the float16 products with which ONNX Runtime's CPU provider crashes when a session opens."""
    for node in _products(model):
        if node.outputs[0].dtype == ir.DataType.FLOAT16 and any(_moved_batch(node, side) for side in (0, 1)):
            yield node


def _products(model: ir.Model) -> Iterator[ir.Node]:
    return (node for node in all_nodes(model) if node.op_type == "MatMul" and is_standard(node))


class _MovedBatch(NamedTuple):
    transpose: ir.Node
    perm: list[int]


def _cast_of_moved_batch(operand: ir.Value | None) -> tuple[ir.Node, _MovedBatch] | None:
    """Return the Cast that makes an operand, and the Transpose of the batch before it; None without these two."""
    cast = None if operand is None else _producer_before_scaling(operand)
    if cast is None or cast.op_type != "Cast" or not is_standard(cast) or cast.inputs[0] is None:
        return None
    transpose = cast.inputs[0].producer()
    perm = _perm(transpose)
    return None if transpose is None or not _moves_the_batch(perm) else (cast, _MovedBatch(transpose, perm))


def _moved_batch(node: ir.Node, side: int) -> _MovedBatch | None:
    """Return the Transpose of the batch that a product reads on a side, beside a matrix of weights; None without it."""
    operand = node.inputs[side]
    if operand is None or not _matrix(node.inputs[1 - side]):
        return None
    transpose = _producer_before_scaling(operand)
    perm = _perm(transpose)
    return None if transpose is None or not _moves_the_batch(perm) else _MovedBatch(transpose, perm)


def _cast_first(operand: ir.Value | None, names: Callable[[], NameAllocator]) -> bool:
    """Exchange the Cast that makes an operand and the Transpose of the batch before it, if there are these two."""
    both = _cast_of_moved_batch(operand)
    if both is None:
        return False
    cast, (transpose, perm) = both
    builder = NodeBuilder(cast, names())
    source, to = transpose.inputs[0], cast.attributes["to"].as_int()
    assert source is not None, "a Transpose has an input"
    rounded = _inserted_cast(source, to)
    if rounded is None:
        rounded = builder.node("Cast", [source], dict(cast.attributes), ir.DataType(to))
        rounded.shape = None if source.shape is None else ir.Shape(source.shape)
        first = rounded.producer()
        assert first is not None, "the builder made it"
        cast.name, first.name = first.name, cast.name
        first.meta.update({key: value for key, value in cast.meta.items() if key == INSERTED})
    cast.meta.pop(INSERTED, None)
    builder.become("Transpose", [rounded], {"perm": perm})
    _drop_if_unread(transpose)
    return True


def _inserted_cast(value: ir.Value, to: int) -> ir.Value | None:
    """Return the result of a Cast that was put right behind `value` before, so that it is not cast twice."""
    for user, _ in value.uses():
        if user.op_type == "Cast" and INSERTED in user.meta and user.attributes["to"].as_int() == to:
            return user.outputs[0]
    return None


def _guard(node: ir.Node, side: int, names: Callable[[], NameAllocator]) -> bool:
    """Rewrite a product whose operand on `side` is transposed and whose other one is a matrix of weights."""
    moved = _moved_batch(node, side)
    if moved is None:
        return False
    transpose, perm = moved
    operand, weights = node.inputs[side], node.inputs[1 - side]
    assert operand is not None, "it is transposed"
    builder = NodeBuilder(node, names())
    if side == 0 and transpose is operand.producer() and perm[-1] == len(perm) - 1:
        _transpose_last(node, transpose, perm, builder)
    else:
        shape = np.array([1] * (len(perm) - 2) + _matrix(weights), np.int64)
        same = builder.node("Reshape", [weights, builder.constant(shape)], dtype=ir.DataType.FLOAT16)
        same.shape = ir.Shape(shape.tolist())
        node.replace_input_with(1 - side, same)
    return True


def _matrix(weights: ir.Value | None) -> list[int]:
    """Return the sizes of a constant matrix, or of one that is transposed before it is read; else an empty list."""
    tensor = constant_of(weights)
    if tensor is not None:
        return list(tensor.shape.numpy()) if len(tensor.shape) == 2 else []
    transpose = None if weights is None else weights.producer()
    if transpose is None or transpose.op_type != "Transpose" or not is_standard(transpose):
        return []
    return _matrix(transpose.inputs[0])[:: 1 if _perm(transpose) == [0, 1] else -1]


def _transpose_last(node: ir.Node, transpose: ir.Node, perm: list[int], builder: NodeBuilder) -> None:
    """Multiply what is transposed, and transpose the product; the product keeps its node's name."""
    product = builder.node("MatMul", [transpose.inputs[0], node.inputs[1]], dtype=ir.DataType.FLOAT16)
    multiplied = product.producer()
    assert multiplied is not None, "the builder made it"
    if node.outputs[0].shape is not None:
        dims = node.outputs[0].shape.dims
        product.shape = ir.Shape([dims[perm.index(axis)] for axis in range(len(perm))])
    builder.become("Transpose", [product], {"perm": perm})
    node.name, multiplied.name = multiplied.name, node.name
    _drop_if_unread(transpose)


def _drop_if_unread(node: ir.Node) -> None:
    if node.graph is not None and not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        node.graph.remove(node, safe=True)


def _producer_before_scaling(value: ir.Value) -> ir.Node | None:
    """Return the node that makes a value, looking past products with one number: ONNX Runtime absorbs them first."""
    node = value.producer()
    while node is not None and node.op_type in ("Mul", "Div") and is_standard(node):
        tensor = constant_of(node.inputs[1])
        if tensor is None or tensor.size != 1 or node.inputs[0] is None:
            return None
        node = node.inputs[0].producer()
    return node


def _perm(transpose: ir.Node | None) -> list[int]:
    if transpose is None or transpose.op_type != "Transpose" or not is_standard(transpose):
        return []
    perm = transpose.attributes.get("perm")
    return [] if perm is None or perm.is_ref() else list(perm.as_ints())


def _moves_the_batch(perm: list[int]) -> bool:
    """Whether a permutation puts the first dimension among the last two and leaves the others in order."""
    rank = len(perm)
    return rank > 2 and perm[:-2] == list(range(1, rank - 1)) and sorted(perm[-2:]) == [0, rank - 1]
