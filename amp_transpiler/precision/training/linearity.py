"""In which inputs an operator is linear: a table, one row an operator.

A backward pass is linear in the gradient that it begins with. So scaling that scales every gradient, which these rows
prove node by node.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import read
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.ops.names import is_standard

__all__ = ["LINEAR", "Linear", "is_zero", "linearity_of"]

EVERY = (-1,)


@dataclasses.dataclass(frozen=True, slots=True)
class Linear:
    """How an operator is linear.

    Attributes:
        together: inputs that it is linear in together: all of them are scaled, or zero; `EVERY` for all inputs.
        either: inputs that it is linear in one by one: one of them is scaled.
        zero: inputs that must be absent or zero.
        only: attribute -> the values for which the row holds; an attribute that is not set has the first.
        sums: it adds up many elements, or combines those of two tensors in another way than element by element.
    """

    together: tuple[int, ...] = ()
    either: tuple[int, ...] = ()
    zero: tuple[int, ...] = ()
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()
    sums: bool = False


_MOVES = Linear(together=(0,))
_SUMS = Linear(together=(0,), sums=True)
_PRODUCT = Linear(either=(0, 1), zero=(2,), sums=True)
_SCATTER = Linear(together=(0, 2), only=(("reduction", ("none", "add")),))

LINEAR: dict[str, Linear] = {
    # Element by element.
    "Add": Linear(together=EVERY),
    "Cast": _MOVES,
    "Div": Linear(either=(0,)),
    "Identity": _MOVES,
    "Mul": Linear(either=(0, 1)),
    "Neg": _MOVES,
    "Sub": Linear(together=EVERY),
    "Sum": Linear(together=EVERY),
    "Where": Linear(together=(1, 2)),
    # Movement.
    "Concat": Linear(together=EVERY),
    "DepthToSpace": _MOVES,
    "Expand": _MOVES,
    "Flatten": _MOVES,
    "Gather": _MOVES,
    "GatherElements": _MOVES,
    "GatherND": _MOVES,
    "Pad": Linear(together=(0,), zero=(2,)),
    "Reshape": _MOVES,
    "ReverseSequence": _MOVES,
    "ScatterElements": _SCATTER,
    "ScatterND": _SCATTER,
    "Slice": _MOVES,
    "SpaceToDepth": _MOVES,
    "Split": _MOVES,
    "Squeeze": _MOVES,
    "Tile": _MOVES,
    "Transpose": _MOVES,
    "Trilu": _MOVES,
    "Unsqueeze": _MOVES,
    # Sums.
    "AveragePool": _SUMS,
    "Col2Im": _SUMS,
    "CumSum": _SUMS,
    "GlobalAveragePool": _SUMS,
    "MaxUnpool": _SUMS,
    "Mean": Linear(together=EVERY),
    "ReduceMean": _SUMS,
    "ReduceSum": _SUMS,
    # Products.
    "Conv": _PRODUCT,
    "ConvTranspose": _PRODUCT,
    "Einsum": Linear(either=EVERY, sums=True),
    "Gemm": _PRODUCT,
    "MatMul": _PRODUCT,
}


def linearity_of(node: ir.Node) -> Linear | None:
    """Return how a node is linear, its inputs counted out; None: it is not, or nothing is known."""
    row = LINEAR.get(node.op_type) if is_standard(node) else None
    if row is None or not all(_holds(node, *condition) for condition in row.only):
        return None
    if any(index < len(node.inputs) and not is_zero(node.inputs[index]) for index in row.zero):
        return None
    every = tuple(range(len(node.inputs)))
    together = every if row.together == EVERY else row.together
    either = every if row.either == EVERY else row.either
    used = [*(node.inputs[index] for index in (*together, *either) if index < len(node.inputs)), *node.outputs]
    if not all(value is not None and value.dtype is not None and value.dtype.is_floating_point() for value in used):
        return None
    return dataclasses.replace(row, together=together, either=either)


def is_zero(value: ir.Value | None) -> bool:
    """Whether a value is absent, or nothing but zeros in every run."""
    while value is not None:
        tensor = constant_of(value)
        if tensor is not None:
            return not read(tensor, lambda array: bool(np.any(array)))
        node = value.producer()
        if node is None or not is_standard(node):
            return False
        if node.op_type == "ConstantOfShape":
            fill = node.attributes.get("value")
            return fill is None or not np.any(fill.as_tensor().numpy())
        if LINEAR.get(node.op_type) is not _MOVES:
            return False
        value = node.inputs[0]
    return True


def _holds(node: ir.Node, name: str, values: tuple[str, ...]) -> bool:
    attribute = node.attributes.get(name)
    return attribute is None or attribute.as_string() in values
