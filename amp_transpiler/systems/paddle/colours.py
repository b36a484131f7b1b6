"""What the lists say of one node at one level, with the reason."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from amp_transpiler.graph.operator_class import operator_class
from amp_transpiler.ops.kinds import SCATTER
from amp_transpiler.systems.paddle.default_colours import DEFAULT_COLOURS, Colour
from amp_transpiler.systems.paddle.levels import Level
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists

__all__ = ["Classification", "Colour", "colour"]


class Classification(NamedTuple):
    """What the lists say of a node.

    Attributes:
        colour: the list it is on, in effect at the level asked about.
        reason: why, one sentence.
    """

    colour: Colour
    reason: str


def colour(node: ir.Node, lists: AutoMixedPrecisionLists, level: Level) -> Classification:
    """Return what `lists` say of `node` at `level`, by operator alone: names, regions and kernels are not looked at.

    In this order: what is float32 at every level; the white list; at OD, all else is black; at O2 and auto, the black
    list, which is for numerics, is lifted. Of the extra list, O2 lifts embeddings, auto all that does not accumulate.
    """
    key = operator_class(node)
    if level.changes_nothing:
        return Classification(Colour.BLACK, f"level {level.name} changes nothing")
    if key in lists.unsupported_list and not _is_lifted(node, key, lists, level):
        return Classification(Colour.UNSUPPORTED, _unsupported_reason(key, lists))
    if key in lists.white_list:
        return Classification(Colour.WHITE, f"{key} is on the white list{_why(key, Colour.WHITE)}")
    if level.lists == "white":
        return Classification(Colour.BLACK, f"level {level.name}: {key} is not on the white list")
    if key in lists.black_list:
        if not level.is_pure:
            return Classification(Colour.BLACK, f"{key} is on the black list{_why(key, Colour.BLACK)}")
        return Classification(Colour.UNLISTED, f"level {level.name} lifts the black list, which {key} is on")
    if key in lists.gray_list:
        return Classification(Colour.GRAY, f"{key} is on the gray list: it follows its producers")
    return Classification(Colour.UNLISTED, f"{key} is on no list")


def _is_lifted(node: ir.Node, key: str, lists: AutoMixedPrecisionLists, level: Level) -> bool:
    """Whether an operator of the extra list may be low all the same.

    At O2 and auto whatever does not accumulate may, since the list's reasons are not ONNX Runtime's: looking up rounded
    rows of a table gives what looking them up in float32 and rounding gives; Resize computes its positions from scales
    that stay float32; a scatter without reduction only moves values.
    """
    if key not in lists.extra_black_list or not level.is_pure:
        return False
    reduction = node.attributes.get("reduction")
    return not (node.op_type in SCATTER and reduction is not None and reduction.value != "none")


def _unsupported_reason(key: str, lists: AutoMixedPrecisionLists) -> str:
    if key in lists.custom_black_list:
        return f"{key} is on the custom black list"
    return f"{key} is on the extra black list{_why(key, Colour.UNSUPPORTED)}"


def _why(key: str, expected: Colour) -> str:
    """The default table's reason, where the operator has the colour that it has there."""
    found, reason = DEFAULT_COLOURS.get(key, (None, ""))
    return f" ({reason})" if found is expected else ""
