"""The list that a node is on at one level, with the reason."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from amp_transpiler.graph.operator_class import operator_class
from amp_transpiler.ops.kinds import SCATTER
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.systems.paddle.default_colours import DEFAULT_COLOURS, Colour
from amp_transpiler.systems.paddle.levels import Level
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists

__all__ = ["Classification", "Colour", "colour"]


class Classification(NamedTuple):
    """The list that a node is on.

    Attributes:
        colour: the list in effect at the level.
        reason: why.
    """

    colour: Colour
    reason: Reason


def colour(node: ir.Node, lists: AutoMixedPrecisionLists, level: Level) -> Classification:
    """Return the list that `node` is on at `level`. Names, regions and kernels do not matter here.

    The first that applies: the unsupported list; the white list; at OD, black; the black list, which O2 and auto lift;
    the gray list. Of the extra black list, O2 and auto lift the operators that do not accumulate.
    """
    key = operator_class(node)
    at_level = {"level": level.name, "operator": key}
    if level.changes_nothing:
        return Classification(Colour.BLACK, Reason("level-changes-nothing", {"level": level.name}))
    if key in lists.unsupported_list and not _is_lifted(node, key, lists, level):
        return Classification(Colour.UNSUPPORTED, _unsupported_reason(key, lists))
    if key in lists.white_list:
        return Classification(Colour.WHITE, Reason("white", {"operator": key, "why": _why(key, Colour.WHITE)}))
    if level.lists == "white":
        return Classification(Colour.BLACK, Reason("not-white", at_level))
    if key in lists.black_list:
        if not level.is_pure:
            return Classification(Colour.BLACK, Reason("black", {"operator": key, "why": _why(key, Colour.BLACK)}))
        return Classification(Colour.UNLISTED, Reason("black-lifted", at_level))
    if key in lists.gray_list:
        return Classification(Colour.GRAY, Reason("gray", {"operator": key}))
    return Classification(Colour.UNLISTED, Reason("unlisted", {"operator": key}))


def _is_lifted(node: ir.Node, key: str, lists: AutoMixedPrecisionLists, level: Level) -> bool:
    """Whether O2 and auto lift an operator of the extra black list. They do unless it accumulates.

    Paddle's reasons for the list do not hold in ONNX Runtime. Looking up rows of a rounded table gives the same as
    rounding rows of the float32 table. Resize computes its positions from scales, which stay float32. A scatter without
    a reduction only moves values.
    """
    if key not in lists.extra_black_list or not level.is_pure:
        return False
    reduction = node.attributes.get("reduction")
    return not (node.op_type in SCATTER and reduction is not None and reduction.value != "none")


def _unsupported_reason(key: str, lists: AutoMixedPrecisionLists) -> Reason:
    if key in lists.custom_black_list:
        return Reason("custom-black", {"operator": key})
    return Reason("extra-black", {"operator": key, "why": _why(key, Colour.UNSUPPORTED)})


def _why(key: str, expected: Colour) -> str:
    """Return why the operator has its default colour, if that is `expected`; else nothing."""
    default, why = DEFAULT_COLOURS.get(key, (None, ""))
    return why if default is expected else ""
