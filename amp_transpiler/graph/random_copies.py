"""Random nodes in bodies of control flow: what tells a Dropout and its copies in the backward pass that they are one.

A body runs again for its gradient, and must drop the same elements then. A mask is a function of seed, step, a name and
the numbers of the turns that the loops around it are in: so a copy keeps its original's name, and a body that goes
through the turns of a loop again says which of its inputs is the turn's number.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from amp_transpiler.ops.names import is_standard

__all__ = ["drawn_again", "draws_as", "mark_copy", "mark_turn_number", "turn_number"]

_MODE = 2  # the input of Dropout that says whether it drops
_DRAWS_AS = "amp_transpiler.draws_as"  # metadata of a Dropout: the name that its mask is drawn by
_TURN_NUMBER = "amp_transpiler.turn_number"  # metadata of a Scan's input: the number of the loop's turn


def mark_copy(original: ir.Node, copy: ir.Node, name: str) -> None:
    """Let a Dropout and its copy draw by one name: the one that the original has, else `name`."""
    mark = original.metadata_props.setdefault(_DRAWS_AS, name)
    copy.metadata_props[_DRAWS_AS] = mark


def draws_as(node: ir.Node) -> str:
    """Return the name that a Dropout's mask is drawn by."""
    return node.metadata_props.get(_DRAWS_AS) or str(node.name)


def drawn_again(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Return, of some nodes, those that share a draw with a later one."""
    last: dict[str, ir.Node] = {}
    repeated = []
    for node in nodes:
        mark = node.metadata_props.get(_DRAWS_AS)
        if mark is None or len(node.inputs) <= _MODE:  # in inference nothing is drawn
            continue
        if mark in last:
            repeated.append(last[mark])
        last[mark] = node
    return repeated


def mark_turn_number(value: ir.Value) -> None:
    """Say that an input of a Scan's body is the number of the turn of the loop that the Scan goes back through."""
    value.metadata_props[_TURN_NUMBER] = "1"


def turn_number(owner: ir.Node, body: ir.Graph) -> ir.Value | None:
    """Return the number of the turn, an int64 scalar, that the body of a loop is in; None if no turn has one."""
    if is_standard(owner) and owner.op_type == "Loop":
        return body.inputs[0]
    return next((value for value in body.inputs if _TURN_NUMBER in value.metadata_props), None)
