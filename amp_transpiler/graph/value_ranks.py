"""The rank of a value, by the nodes right before it: without inferring the shapes of the whole model."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.ops.names import is_standard

__all__ = ["rank_of"]

_LIKE_THE_FIRST = frozenset(
    """
    Abs AveragePool BatchNormalization Cast Ceil Clip Concat Elu Erf Exp Floor Gelu GlobalAveragePool GlobalMaxPool
    GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization LayerNormalization LeakyRelu Log LpPool
    MaxPool Neg Pad RMSNormalization Reciprocal Relu Resize Selu Sigmoid Slice Softmax Softplus Split Sqrt Tanh
    Transpose Upsample
    """.split()
)
_BROADCAST = frozenset({"Add", "Div", "MatMul", "Max", "Mean", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum", "Where"})
_LIKE_THE_WEIGHT = frozenset({"Conv", "ConvTranspose"})
_FARTHEST = 32  # nodes back


def rank_of(value: ir.Value | None, farthest: int = _FARTHEST) -> int | None:
    """Return the rank of a value; None where neither its shape nor the nodes before it tell.

    Args:
        value: the value.
        farthest: how many nodes in a row are asked.
    """
    if value is None:
        return None
    if value.shape is not None:
        return len(value.shape)
    node = value.producer()
    if node is None or not is_standard(node) or not farthest:
        return None
    if node.op_type in _LIKE_THE_FIRST:
        return rank_of(node.inputs[0], farthest - 1)
    if node.op_type in _LIKE_THE_WEIGHT:
        return rank_of(node.inputs[1], farthest - 1)
    if node.op_type in _BROADCAST:
        return _broadcast(node, farthest - 1)
    if node.op_type == "Gemm":
        return 2
    shape = constant_array(node.inputs[1]) if node.op_type == "Reshape" else None
    return None if shape is None else int(shape.size)


def _broadcast(node: ir.Node, farthest: int) -> int | None:
    ranks = [rank_of(value, farthest // 2) for value in node.inputs]
    known = [rank for rank in ranks if rank is not None]
    if node.op_type == "MatMul" and 1 in known:
        return None  # a vector loses its axis
    return max(known) if len(known) == len(ranks) else None
