"""How each operator ties the exponents of what it reads and computes: a table, an operator a row.

A value is *scaled by an exponent e* if it holds `2 ** e` times the numbers that it would hold. A row says by equations
over exponents when all results of a node are scaled exactly. In its text

- `x0`, `x1` are inputs and `y0`, `y1` are outputs, by index; `x*` stands for every input, `y*` for every output;
- `@epsilon` is the number of an attribute, which takes an exponent like a constant that is an input;
- `a = b + c` ties sums; a chain `a = b = c` is two equations; clauses are separated by `;`;
- a slot that stands by itself is free: the results do not depend on its scale (`x0` of Sign);
- a slot that is absent from a node drops out of its chain, and a sum with an absent slot does, too.

Every float slot that its row does not mention has the exponent 0, and so do all slots of an operator without a row:
these are the borders, such as Softmax, Gelu or Exp.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import single_number
from amp_transpiler.ops.dtype_attributes import tensor_of
from amp_transpiler.ops.names import operator_name

__all__ = ["EPSILONS", "EVERY", "ROWS", "Form", "Rule", "Slot", "parsed", "rule_of"]

Slot: TypeAlias = tuple[str, int | str]
"""`("x", index)` of an input, `("y", index)` of an output, `("@", name)` of an attribute; index -1 stands for all."""

Form: TypeAlias = tuple[tuple[int, Slot], ...]
"""A sum of slots, each with its factor."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A row, parsed.

    Attributes:
        chains: sums that are equal to each other, for each chain.
        mentioned: the slots that are not borders.
    """

    chains: tuple[tuple[Form, ...], ...]
    mentioned: frozenset[Slot]


_SAME = "x0 = y*"
_ALL_SAME = "x* = y0"
_PRODUCT = "x0 + x1 = y0"
_LAYER_NORM = "@epsilon = 2x0; x1 = x2 = y0; y1 = x0; y2 + x0 = 0"
_NORM = "@epsilon = 2x0; x1 = x2 = y0"
_FREE = "x0"
_COMPARED = "x0 = x1"

_Conditional: TypeAlias = Callable[[ir.Node], str]


def _text(node: ir.Node, name: str, default: str) -> str:
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.as_string()


def _power(node: ir.Node) -> str:
    """Return the row of a constant exponent that is a half of a whole number; no other power of two stays one."""
    exponent = single_number(node.inputs[1])
    if exponent is None or not (2.0 * exponent).is_integer() or abs(exponent) > _MOST_POWER:
        return ""
    twice = int(2.0 * exponent)
    if twice == 0:
        return "x0"
    return f"2y0 = {twice}x0" if twice > 0 else f"2y0 + {-twice}x0 = 0"


def _cast(node: ir.Node) -> str:
    """Only casts between equal types are scaled; an integer or truth value of another number is another one."""
    read, result = node.inputs[0], node.outputs[0]
    return _SAME if read is not None and read.dtype is result.dtype else ""


def _clip(node: ir.Node) -> str:
    has_attributes = "min" in node.attributes or "max" in node.attributes  # up to opset 6
    return "" if has_attributes else "x0 = x1 = x2 = y0"


def _pad(node: ir.Node) -> str:
    return "" if "value" in node.attributes else "x0 = x2 = y0"


def _scatter(node: ir.Node) -> str:
    return "" if _text(node, "reduction", "none") == "mul" else "x0 = x2 = y0"


def _resize(node: ir.Node) -> str:
    crops = _text(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return "" if crops else "x0 = y0"


def _filled(node: ir.Node) -> str:
    """A tensor of zeros is one at any scale."""
    attribute = node.attributes.get("value")
    tensor = None if attribute is None or attribute.is_ref() else tensor_of(attribute)
    is_zero = "value" not in node.attributes or (tensor is not None and not np.any(tensor.numpy()))
    return "y0" if is_zero else ""


def _einsum(node: ir.Node) -> str:
    return " + ".join(f"x{index}" for index in range(len(node.inputs))) + " = y0"


def _batch_norm(node: ir.Node) -> str:
    training = node.attributes.get("training_mode")
    infers = training is None or not training.as_int()
    is_plain = infers and not any(value.name for value in node.outputs[1:])
    return "@epsilon = 2x0; x3 = x0; x4 = 2x0; x1 = x2 = y0" if is_plain else ""


def _attention(node: ir.Node) -> str:
    """Scores go through a Softmax, so queries and keys cancel; what is weighed keeps its scale."""
    softcap = node.attributes.get("softcap")
    capped = softcap is not None and softcap.as_float() != 0.0
    return "" if capped else "x0 + x1 = 0; x4 = x1 = y1; x2 = x5 = y0 = y2"


def _fused_conv(node: ir.Node) -> str:
    linear = _text(node, "activation", "Relu") in ("Relu", "LeakyRelu")
    return "x0 + x1 = x2 = x3 = y0" if linear else ""


_MOST_POWER = 4

ROWS: Mapping[str, str | _Conditional] = MappingProxyType(
    {
        # what moves numbers, or takes the same share of all of them
        **dict.fromkeys(
            (
                *("Abs", "AveragePool", "Compress", "DFT", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather"),
                *("GatherElements", "GatherND", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GridSample"),
                *("Identity", "LeakyRelu", "LpPool", "MaxPool", "MaxUnpool", "Neg", "PRelu", "ReduceL1", "ReduceL2"),
                *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape", "ReverseSequence"),
                *("RoiAlign", "CenterCropPad", "CumSum", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile"),
                *("TopK", "Transpose", "Trilu", "Unsqueeze", "Upsample"),
            ),
            _SAME,
        ),
        "Cast": _cast,
        "Clip": _clip,
        "ConstantOfShape": _filled,
        "Pad": _pad,
        "Resize": _resize,
        "Where": "x1 = x2 = y0",
        **dict.fromkeys(("ScatterElements", "ScatterND", "Scatter"), _scatter),
        # sums
        **dict.fromkeys(("Add", "Concat", "Max", "Mean", "Min", "Sub", "Sum"), _ALL_SAME),
        # products
        **dict.fromkeys(("MatMul", "Mul", "com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul"), _PRODUCT),
        **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), "x0 + x1 = x2 = y0"),
        "com.microsoft::FusedConv": _fused_conv,
        "Div": "x0 = x1 + y0",
        "Einsum": _einsum,
        "STFT": "x0 + x2 = y0",
        "com.microsoft::MatMulNBits": "x0 + x2 = x5 = y0",
        # powers
        "Pow": _power,
        "ReduceSumSquare": "2x0 = y0",
        "Reciprocal": "x0 + y0 = 0",
        "Sqrt": "x0 = 2y0",
        # normalisations
        "BatchNormalization": _batch_norm,
        "GroupNormalization": _NORM,
        "InstanceNormalization": _NORM,
        "LayerNormalization": _LAYER_NORM,
        "LpNormalization": _FREE,
        "RMSNormalization": "@epsilon = 2x0; x1 = y0",
        "SimplifiedLayerNormalization": "@epsilon = 2x0; x1 = y0; y1 + x0 = 0",
        "com.microsoft::SkipLayerNormalization": (
            "@epsilon = 2x0; x0 = x1 = x4 = y3; x2 = x3 = y0; y1 = x0; y2 + x0 = 0"
        ),
        "com.microsoft::SkipSimplifiedLayerNormalization": (
            "@epsilon = 2x0; x0 = x1 = x3 = y3; x2 = y0; y1 = x0; y2 + x0 = 0"
        ),
        # attention
        "Attention": _attention,
        # what does not see a scale
        **dict.fromkeys(("ArgMax", "ArgMin", "IsInf", "IsNaN", "NonZero", "Shape", "Sign", "Size"), _FREE),
        **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _COMPARED),
        # quantized tensors: the scale takes the exponent, the integers stay
        "QuantizeLinear": _COMPARED,
        "DequantizeLinear": "x1 = y0",
    }
)
"""Operator -> its row, or a function that returns the row of a node, empty for a border."""

EPSILONS: Mapping[str, float] = MappingProxyType(
    {
        "com.microsoft::SkipLayerNormalization": 1e-12,
        "com.microsoft::SkipSimplifiedLayerNormalization": 1e-12,
    }
)
"""Operator -> its epsilon where the attribute is absent, unless that is 1e-5."""


def rule_of(node: ir.Node) -> Rule:
    """Return the rule of a node; one that ties nothing for an operator without one.

    Args:
        node: of a typed program, without bodies.
    """
    row = ROWS.get(operator_name(node), "")
    return parsed(row if isinstance(row, str) else row(node))


@functools.cache
def parsed(row: str) -> Rule:
    """Return a row as a rule."""
    chains: list[tuple[Form, ...]] = []
    mentioned: set[Slot] = set()
    for clause in filter(None, map(str.strip, row.split(";"))):
        chain = tuple(_form(side) for side in clause.split("="))
        mentioned.update(slot for form in chain for _, slot in form)
        if len(chain) > 1 or any(slot[1] == EVERY for form in chain for _, slot in form):
            chains.append(chain)
    return Rule(tuple(chains), frozenset(mentioned))


EVERY = -1
"""The index of a slot that stands for all."""

_TERM = re.compile(r"(\d*)(?:([xy])(\d+|\*)|@(\w+))")


def _form(text: str) -> Form:
    if text.strip() == "0":
        return ()
    terms = []
    for part in text.split("+"):
        term = _TERM.fullmatch(part.strip())
        assert term is not None, f"no term: {part}"
        factor, letter, index, attribute = term.groups()
        place = EVERY if index == "*" or attribute else int(index)
        slot: Slot = ("@", attribute) if attribute else (letter, place)
        terms.append((int(factor or 1), slot))
    return tuple(terms)
