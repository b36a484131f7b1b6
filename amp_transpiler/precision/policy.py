"""What the lists say of one node at one level, with the reason."""

from __future__ import annotations

from typing import Literal, NamedTuple

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.walk import constant_of, is_standard
from amp_transpiler.precision.default_lists import DEFAULT_COLOURS, Colour
from amp_transpiler.precision.lists import AutoMixedPrecisionLists

__all__ = ["LEVELS", "Classification", "Colour", "Level", "colour", "operator_class", "operator_name", "parse_level"]

Level = Literal["auto", "O0", "OD", "O1", "O2"]
LEVELS: tuple[Level, ...] = ("auto", "O0", "OD", "O1", "O2")

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
_SCATTERS = ("Scatter", "ScatterElements", "ScatterND")


def parse_level(text: str) -> Level:
    """Return the level that `text` names, in any case.

    Raises:
        OptionError: there is no such level.
    """
    for level in LEVELS:
        if str(text).lower() == level.lower():
            return level
    raise OptionError(f"unknown level {text!r}: expected one of {', '.join(LEVELS)}")


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
    if level == "O0":
        return Classification(Colour.BLACK, "level O0 changes nothing")
    if key in lists.unsupported_list and not _is_lifted(node, key, lists, level):
        return Classification(Colour.UNSUPPORTED, _unsupported_reason(key, lists))
    if key in lists.white_list:
        return Classification(Colour.WHITE, f"{key} is on the white list{_why(key, Colour.WHITE)}")
    if level == "OD":
        return Classification(Colour.BLACK, f"level OD: {key} is not on the white list")
    if key in lists.black_list:
        if level == "O1":
            return Classification(Colour.BLACK, f"{key} is on the black list{_why(key, Colour.BLACK)}")
        return Classification(Colour.UNLISTED, f"level {level} lifts the black list, which {key} is on")
    if key in lists.gray_list:
        return Classification(Colour.GRAY, f"{key} is on the gray list: it follows its producers")
    return Classification(Colour.UNLISTED, f"{key} is on no list")


def _is_lifted(node: ir.Node, key: str, lists: AutoMixedPrecisionLists, level: Level) -> bool:
    """Whether an operator of the extra list may be low all the same.

    At O2 and auto whatever does not accumulate may, since the list's reasons are not ONNX Runtime's: looking up rounded
    rows of a table gives what looking them up in float32 and rounding gives; Resize computes its positions from scales
    that stay float32; a scatter without reduction only moves values.
    """
    if key not in lists.extra_black_list or level not in ("O2", "auto"):
        return False
    reduction = node.attributes.get("reduction")
    return not (node.op_type in _SCATTERS and reduction is not None and reduction.value != "none")


def _unsupported_reason(key: str, lists: AutoMixedPrecisionLists) -> str:
    if key in lists.custom_black_list:
        return f"{key} is on the custom black list"
    return f"{key} is on the extra black list{_why(key, Colour.UNSUPPORTED)}"


def _why(key: str, expected: Colour) -> str:
    """The default table's reason, where the operator has the colour that it has there."""
    found, reason = DEFAULT_COLOURS.get(key, (None, ""))
    return f" ({reason})" if found is expected else ""


def operator_name(node: ir.Node) -> str:
    """Return the operator as lists name it: `Conv`, `com.microsoft::BiasGelu`."""
    return node.op_type if is_standard(node) else f"{node.domain}::{node.op_type}"


def operator_class(node: ir.Node) -> str:
    """Return the operator's name, or the finer class that the node is of (`Conv[depthwise]`) where it has some."""
    name = operator_name(node)
    refine = _REFINEMENTS.get(name)
    finer = refine(node) if refine is not None else None
    return f"{name}[{finer}]" if finer else name


def _conv(node: ir.Node) -> str | None:
    weight = _input(node, 1)
    shape = _shape(weight)
    kernel = node.attributes.get("kernel_shape")
    spatial = len(kernel.as_ints()) if kernel is not None else len(shape) - 2 if shape else 0
    if spatial == 3:
        return "3d"
    group = node.attributes.get("group")
    groups = group.as_int() if group is not None else 1
    # The weight is [M, C / group, ...]: a filter of its own for every channel.
    return "depthwise" if groups > 1 and shape and shape[1] == 1 else None


def _gather(node: ir.Node) -> str | None:
    axis = node.attributes.get("axis")
    if axis is not None and axis.as_int() != 0:
        return None
    table = _origin(_input(node, 0))
    tensor = _tensor(table) if table is not None else None
    return "embedding" if tensor is not None and tensor.dtype in _FLOATS and len(tensor.shape) == 2 else None


def _max_pool(node: ir.Node) -> str | None:
    return "indices" if len(node.outputs) > 1 and node.outputs[1].name else None


def _pow(node: ir.Node) -> str | None:
    exponent = _origin(_input(node, 1))
    if exponent is None or not _is_constant(exponent):
        return None
    shape = _shape(exponent)
    return "scalar" if all(size == 1 for size in shape) else None


_REFINEMENTS = {"Conv": _conv, "Gather": _gather, "MaxPool": _max_pool, "Pow": _pow}


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _origin(value: ir.Value | None) -> ir.Value | None:
    """Follow a value back through operators that do not change it but for its type."""
    while value is not None:
        node = value.producer()
        if node is None or not is_standard(node) or node.op_type not in ("Cast", "CastLike", "Identity"):
            break
        value = _input(node, 0)
    return value


def _is_constant(value: ir.Value) -> bool:
    if value.is_initializer():  # one that is also a graph input has a value to start from: older files list them all
        return True
    node = value.producer()
    return node is not None and is_standard(node) and node.op_type == "Constant"


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    return value.const_value if value.is_initializer() else constant_of(value)


def _shape(value: ir.Value | None) -> tuple[object, ...]:
    """The shape of a value as far as it is known; that of a constant always is. Empty for a scalar or if unknown."""
    if value is None:
        return ()
    tensor = _tensor(value)
    if tensor is not None:
        return tuple(tensor.shape)
    node = value.producer()
    if node is not None and is_standard(node) and node.op_type == "Constant":
        lists = (node.attributes.get(name) for name in ("value_floats", "value_ints"))
        return next(((len(attribute.value),) for attribute in lists if attribute is not None), ())
    return () if value.shape is None else tuple(value.shape)
