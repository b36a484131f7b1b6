"""Masks: the "minus infinity" that keeps elements out of a Softmax.

float16 cannot hold it, and does not need to: any number that no score outweighs gives the same zeros. Half the format's
largest magnitude leaves room for a score, or for a second mask, to be added. A mask may take it where all that is made
of it ends in a Softmax. Rows that are masked as a whole come out another way than in float32; whether that matters is
for the comparison with data to tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.ops.kinds import MOVEMENT
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.precision.constraints import is_float32
from amp_transpiler.precision.ranges import RangeFaults

__all__ = ["NO_MASKS", "Masks", "find_masks"]

# Operator -> the inputs through which a mask may pass; all outputs of a movement.
_PASSES = {"Add": (0, 1), "Sub": (0,), "Where": (1, 2), "Max": None, "Cast": (0,)}
# What bounds a masked value: operator -> inputs.
_ENDS = {
    "Softmax": (0,),
    "Attention": (3,),
    "com.microsoft::Attention": (5,),
    "com.microsoft::MultiHeadAttention": (5,),
}
_STARTS = {"Where": (1, 2), "Add": (0, 1), "Mul": (0, 1)}  # operators that make a mask of a constant


@dataclasses.dataclass(frozen=True, slots=True)
class Masks:
    """The masks of a program that may take a smaller magnitude.

    Attributes:
        uses: (node, index) of the constants to limit.
        nodes: the nodes that compute nothing but masks. Their values are zero or outweigh every score, so rounding
            does them no harm.
    """

    uses: frozenset[tuple[ir.Node, int]] = frozenset()
    nodes: frozenset[ir.Node] = frozenset()
    values: frozenset[ir.Value] = frozenset()


NO_MASKS = Masks()


def find_masks(
    nodes: list[ir.Node],
    ranges: RangeFaults,
    from_integers: Collection[ir.Value],
    is_fixed: Callable[[ir.Node], bool] = lambda _: False,
) -> Masks:
    """Return the masks that end in a Softmax wherever they go.

    Args:
        nodes: of a typed program, in the order of execution.
        ranges: the damage that rounding does to constants.
        from_integers: float values that are computed only from integers. A product of one and "minus infinity" is a
            mask; that of a feature is not.
        is_fixed: whether a node stays in float32 whatever else is decided: then its mask stays as it is.
    """
    hiding = {
        node: indices
        for node in nodes
        if (indices := [i for i in _starting_inputs(node, from_integers) if ranges.hides(node.inputs[i])])
    }
    if not hiding:
        return NO_MASKS
    hidden = _hidden(nodes, is_fixed)
    uses: set[tuple[ir.Node, int]] = set()
    masked: dict[ir.Value, bool] = {}  # values with a mask in them -> whether they are nothing else
    maskings: set[ir.Node] = set()
    for node in nodes:
        is_hidden = all(value in hidden for value in node.outputs)
        starts = [(node, index) for index in hiding.get(node, ())] if is_hidden else []
        if not starts and not any(value in masked for value in node.inputs):
            continue
        if not starts and not any(value in hidden for value in node.outputs):
            continue  # a Softmax
        uses.update(starts)
        alone = node.op_type != "Add" or not starts
        pure = alone and all(
            masked.get(value, False) or value in from_integers or constant_of(value) is not None
            for value in node.inputs
            if is_float32(value)
        )
        masked.update(dict.fromkeys(node.outputs, pure))
        if pure:
            maskings.add(node)
    return (
        Masks(frozenset(uses), frozenset(maskings | _factors(nodes, maskings, uses)), frozenset(masked))
        if uses
        else NO_MASKS
    )


def _starting_inputs(node: ir.Node, from_integers: Collection[ir.Value]) -> tuple[int, ...]:
    """The inputs of a node at which a constant "minus infinity" can only be a mask."""
    if not is_standard(node) or len(node.outputs) != 1:
        return ()
    if node.op_type in MOVEMENT:
        return (0,)
    starts = _STARTS.get(node.op_type, ())
    if node.op_type == "Mul":
        return tuple(index for index in starts if node.inputs[1 - index] in from_integers)
    return starts


def _hidden(nodes: list[ir.Node], is_fixed: Callable[[ir.Node], bool]) -> set[ir.Value]:
    """The values that only reach a Softmax, however they go on."""
    hidden: set[ir.Value] = set()
    for node in reversed(nodes):
        for value in node.outputs:
            uses = value.uses()
            if (
                uses
                and not value.is_graph_output()
                and all(_hides(use.node, use.idx, hidden, is_fixed) for use in uses)
            ):
                hidden.add(value)
    return hidden


def _hides(node: ir.Node, index: int, hidden: set[ir.Value], is_fixed: Callable[[ir.Node], bool]) -> bool:
    """Whether a value that a node reads as input `index` ends in a Softmax there, or goes on to nothing else."""
    if is_fixed(node):
        return False
    if index in _ENDS.get(operator_name(node), ()):
        return True
    if not is_standard(node):
        return False
    passes = _PASSES.get(node.op_type, ())
    through = node.op_type in MOVEMENT or passes is None or index in passes
    return through and all(value in hidden and is_float32(value) for value in node.outputs)


def _factors(nodes: list[ir.Node], maskings: set[ir.Node], uses: set[tuple[ir.Node, int]]) -> set[ir.Node]:
    """The nodes whose results are only multiplied by "minus infinity": a switch, of which any rounding will do."""
    switches = {node for node, _ in uses if node in maskings and node.op_type == "Mul"}
    factors: set[ir.Node] = set()
    for node in reversed(nodes):
        if node in maskings or not is_standard(node) or not any(map(is_float32, node.outputs)):
            continue
        readers = [use.node for value in node.outputs for use in value.uses()]
        if readers and all(reader in switches or reader in factors for reader in readers):
            factors.add(node)
    return factors
