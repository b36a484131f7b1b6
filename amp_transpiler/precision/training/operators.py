"""Operators as the recognition of a training step sees them: what each does to a value that passes through it."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.graph.walk import bodies, has_bodies
from amp_transpiler.ops.names import is_standard

__all__ = [
    "COMMUTATIVE",
    "COSTS",
    "PRODUCTS",
    "REDUCTIONS",
    "SCATTERS",
    "TABLES",
    "carried_operands",
    "is_elementwise",
    "is_movement",
    "is_plain_movement",
    "kind",
    "reads",
    "updates_statistics",
    "weight_slots",
]

COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min", "Sum", "And", "Or", "Equal"})

COSTS = {
    **dict.fromkeys(("Add", "Sub", "Sum", "Where", "Cast", "Identity", "Min", "Max", "Clip", "Neg", "CastLike"), 0),
    **dict.fromkeys(("Mul", "Div"), 1),
}
"""Elementwise operator -> how much less its result still is its operand; other functions count two."""

_ELEMENTWISE = frozenset(
    """Abs Add And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Clip Cos Cosh Div Elu Equal Erf Exp
    Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean
    Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Sigmoid Sign Sin Softplus Softsign Sqrt Sub Sum Tan
    Tanh ThresholdedRelu Where Xor""".split()
)
_PLAIN_MOVEMENT = frozenset({"Expand", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_MOVEMENT = _PLAIN_MOVEMENT | {
    "Concat",
    "DepthToSpace",
    "Gather",
    "GatherElements",
    "GatherND",
    "Pad",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Tile",
    "Trilu",
}
PRODUCTS = frozenset({"MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "FusedMatMul", "FusedGemm", "FusedConv"})
SCATTERS = frozenset({"Scatter", "ScatterElements", "ScatterND"})
REDUCTIONS = frozenset({"ReduceSum", "ReduceMean"})
TABLES = frozenset({"Gather", "GatherElements", "GatherND"})

# Inputs that a weight, scale, bias or table may enter by, for operators in which position tells; MatMul and Einsum
# take a weight on either side.
_WEIGHT_SLOTS = {
    "Attention": (),
    "BatchNormalization": (1, 2),
    "BiasGelu": (1,),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "FastGelu": (1,),
    "FusedConv": (1, 2),
    "FusedGemm": (0, 1, 2),
    "FusedMatMul": (0, 1),
    "GRU": (1, 2, 3),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Gemm": (0, 1, 2),
    "GroupNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "LSTM": (1, 2, 3, 7),
    "LayerNormalization": (1, 2),
    "MatMul": (0, 1),
    "PRelu": (1,),
    "RMSNormalization": (1,),
    "RNN": (1, 2, 3),
    "SimplifiedLayerNormalization": (1,),
    "SkipLayerNormalization": (2, 3, 4),
    "SkipSimplifiedLayerNormalization": (2, 3),
}
_CARRIED = {"Where": (1, 2), "Clip": (0,), "Pow": (0,), "PRelu": (0,), "CastLike": (0,)}
_COMPARISONS = frozenset(
    {"And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor"}
)


def kind(node: ir.Node) -> str:
    """Return the operator, or an empty text for one with bodies or of a domain that is not known here."""
    if has_bodies(node) or not (is_standard(node) or node.domain == "com.microsoft"):
        return ""
    return node.op_type


def is_elementwise(node: ir.Node) -> bool:
    """Whether every element of the result depends on one element of each operand."""
    return is_standard(node) and node.op_type in _ELEMENTWISE


def is_movement(node: ir.Node) -> bool:
    """Whether the result is its first operand (or all, of Concat), moved, repeated or in parts."""
    return is_standard(node) and node.op_type in _MOVEMENT


def is_plain_movement(node: ir.Node) -> bool:
    """Whether the result is the first operand in another shape, or as another type."""
    return is_standard(node) and (node.op_type in _PLAIN_MOVEMENT or node.op_type in ("Cast", "Identity"))


def carried_operands(node: ir.Node) -> tuple[int, ...]:
    """Return the operands of an elementwise node that its result may be an update of."""
    if node.op_type in _COMPARISONS:
        return ()
    return _CARRIED.get(node.op_type, tuple(range(len(node.inputs))))


def weight_slots(node: ir.Node) -> tuple[int, ...]:
    """Return the inputs of a node by which a weight, scale, bias or table may enter."""
    if is_elementwise(node):
        return tuple(range(len(node.inputs)))
    if kind(node) in ("Einsum", "Concat"):  # a learned token stands before the others
        return tuple(range(len(node.inputs)))
    return _WEIGHT_SLOTS.get(kind(node), ())


def updates_statistics(node: ir.Node) -> bool:
    """Whether a node is a BatchNormalization in training mode."""
    mode = node.attributes.get("training_mode") if node.op_type == "BatchNormalization" else None
    return mode is not None and bool(mode.as_int()) and is_standard(node)


def reads(node: ir.Node, output: ir.Value | None = None) -> Iterator[ir.Value]:
    """Yield the values that a node reads, those that its bodies capture included.

    Args:
        node: the node.
        output: one of its outputs: only what this depends on. A BatchNormalization in training mode reads its running
            statistics for nothing but their update.
    """
    if output is not None and updates_statistics(node):
        wanted = {0: (0, 1, 2), 1: (0, 3), 2: (0, 4)}.get(node.outputs.index(output), range(len(node.inputs)))
        yield from (value for index in wanted if index < len(node.inputs) and (value := node.inputs[index]) is not None)
        return
    yield from (value for value in node.inputs if value is not None)
    if has_bodies(node):
        for _, body in bodies(node):
            for inner in body.all_nodes():
                yield from (value for value in inner.inputs if value is not None)
            yield from body.outputs
