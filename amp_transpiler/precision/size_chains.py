"""Finds floats that decide sizes: their rounding does not change a number a little, it changes a shape.

`Cast(t * 29.999)` counts 29 rows in float32 and 30 in float16. Such a count goes into a Slice, a Tile, or a Resize by
scales; a Loop ends by a comparison. No tolerance measures that, so what computes it stays float32.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.walk import bodies
from amp_transpiler.ops.kinds import MOVEMENT, SUM
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.constraints import is_float32

__all__ = ["size_chains"]

_SIZE_INPUTS: dict[str, tuple[int, ...]] = {
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unique": (0,),
    "Upsample": (1,),
}
"""Operator -> the inputs whose numbers decide the shape of a result, or how often a body runs."""

_ARITHMETIC = frozenset(
    """Abs Add And Cast Ceil Clip Div Equal Exp Floor Greater GreaterOrEqual Identity Less LessOrEqual Log Max Min Mod
    Mul Neg Not Or Pow Reciprocal ReduceMax ReduceMin ReduceProd Round Sign Sqrt Sub Where""".split()
)
_FAR = 12  # operators from a size: a count is computed by a few of them, features by a whole network


def size_chains(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Return the nodes that compute floats from which sizes, or ends of loops, are made.

    A chain goes back through arithmetic and movement, to the inputs or to where a network begins.

    Args:
        nodes: those of a typed program, bodies included.
    """
    sizing: dict[ir.Node, None] = {}
    pending = [(value, 0) for node in nodes for value in _deciding(node)]
    nearest = dict.fromkeys((value for value, _ in pending), 0)
    for value, distance in pending:  # it grows, the nearer ones first
        node = value.producer()
        if node is None or not _is_arithmetic(node) or distance >= _FAR:
            continue
        if any(map(is_float32, node.outputs)) or any(map(is_float32, node.inputs)):
            sizing[node] = None
        for operand in node.inputs:
            if operand is not None and operand not in nearest and constant_of(operand) is None:
                nearest[operand] = distance + 1
                pending.append((operand, distance + 1))
    return list(sizing)


def _deciding(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node takes sizes from, and what says whether a Loop goes on."""
    if not is_standard(node):
        return []
    indices = _SIZE_INPUTS.get(node.op_type, ())
    values = [node.inputs[index] for index in indices if index < len(node.inputs)]
    if node.op_type == "Loop":
        values += [body.outputs[0] for _, body in bodies(node)]
    return [value for value in values if value is not None]


def _is_arithmetic(node: ir.Node) -> bool:
    return is_standard(node) and (node.op_type in _ARITHMETIC or node.op_type in MOVEMENT or node.op_type in SUM)
