"""MXNet 2's operator lists, from the operator table.

The lists are target (always low), fp32 (as written), widest (low if that needs no new cast), neutral (low if a float
input is low already) and conditional (as written if an attribute has one of some values).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.graph.dtypes import low_format
from amp_transpiler.graph.operator_class import operator_class
from amp_transpiler.ops.kinds import LOSS
from amp_transpiler.ops.names import operator_name
from amp_transpiler.ops.table import column, operator_table

__all__ = ["LOSSES", "USE_FP32_PARAMS", "Condition", "MxnetLists", "default_mxnet_lists", "like_mxnet_name"]

Condition = tuple[str, str, tuple[str, ...]]
"""Operator, attribute, values of it (as text) with which a node stays as written."""

# MXNet's own entries are attributes of Activation and LeakyReLU; their values are operators of their own in ONNX and
# stand on the fp32 list. No ONNX operator has such a choice in an attribute that every node has, so this one is empty.
_CONDITIONAL: tuple[Condition, ...] = ()

LOSSES = tuple(sorted(LOSS))
"""Operators whose result is a loss."""

USE_FP32_PARAMS = {"BatchNormalization": {1: "scale", 2: "B", 3: "input_mean", 4: "input_var"}}
"""Operator -> its inputs, by index, that stay float32 in a low node wherever the target has a kernel for that.

TensorRT and training programs have one; ONNX Runtime's CUDA provider wants all inputs of one type, so they are rounded.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class MxnetLists:
    """Which operators are low, as written, follow their inputs, or are as written under a condition.

    Names are ONNX's, with finer classes for some (`Gather[embedding]`).

    Attributes:
        target: low.
        fp32: as the user wrote them.
        widest: low if all float inputs are low already.
        neutral: low if any float input is; so is every operator on no list.
        conditional: (operator, attribute, values): nodes that stay as written. Others go by the lists above.
    """

    target: frozenset[str]
    fp32: frozenset[str]
    widest: frozenset[str]
    neutral: frozenset[str]
    conditional: tuple[Condition, ...] = ()

    @property
    def operators(self) -> frozenset[str]:
        """Every operator on some list."""
        return self.target | self.fp32 | self.widest | self.neutral | {operator for operator, _, _ in self.conditional}

    def key_of(self, node: ir.Node) -> str:
        """Return the name by which the lists know `node`: its finer class if that has a row, else its operator."""
        finer = operator_class(node)
        known = any(finer in operators for operators in (self.target, self.fp32, self.widest, self.neutral))
        return finer if known else operator_name(node)

    def why(self, key: str) -> str:
        """Return the operator's name in MXNet; empty if the table has none."""
        return column("mxnet names").get(key) or ""


@functools.cache
def default_mxnet_lists(target_dtype: str = "float16") -> MxnetLists:
    """Return MXNet's lists for `float16` or `bfloat16`.

    Raises:
        OptionError: (a ValueError) `target_dtype` names neither.
    """
    listed = dict(_listed(low_format(target_dtype).name))
    target, fp32, widest, neutral = (
        frozenset(operator for operator, list_name in listed.items() if list_name == name)
        for name in ("target", "fp32", "widest", "neutral")
    )
    return MxnetLists(target, fp32, widest, neutral, _CONDITIONAL)


def _listed(dtype: str) -> Iterator[tuple[str, str]]:
    """Yield each operator with its list; a cell reads `fp32` or `fp32 bfloat16:neutral`."""
    for operator, row in operator_table().items():
        for name in row.words("mxnet")[:1]:
            others = dict(word.split(":") for word in row.words("mxnet")[1:])
            yield operator, others.get(dtype, name)


def like_mxnet_name(name: str) -> list[str]:
    """Return the ONNX operators that stand for MXNet's operator `name`, such as Conv for Convolution.

    An operator whose first name it is comes before one that merely contains it.
    """
    named = {operator: re.findall(r"\w+", text.partition(":")[0]) for operator, text in column("mxnet names").items()}
    operators = [operator for operator, words in named.items() if words[0] != "none" and name in words]
    return sorted(operators, key=lambda operator: named[operator][0] != name)
