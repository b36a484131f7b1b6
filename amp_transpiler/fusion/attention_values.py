"""Values and nodes of written-out attention: who makes a value, who reads it, and what changes nothing on the way."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array, constant_tensor
from amp_transpiler.graph.evaluate import evaluate
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.graph.walk import is_used
from amp_transpiler.ops.names import is_standard

__all__ = [
    "behind_nothing",
    "changes_nothing",
    "factor_of",
    "is_standard_op",
    "made_by",
    "number_of",
    "only_reader",
    "repeated_number",
    "turns",
    "without_scale",
]


_LONGEST_COMPUTATION = 12  # nodes, of a factor


def is_standard_op(node: ir.Node | None, op_type: str) -> bool:
    """Whether a node is of a type of the standard domain."""
    return node is not None and node.op_type == op_type and is_standard(node)


def made_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node that makes a value, if it is of a type of the standard domain."""
    node = None if value is None else value.producer()
    return node if is_standard_op(node, op_type) else None


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the only node that reads a value; None where a graph hands it out."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def turns(node: ir.Node | None, order: tuple[int, ...]) -> bool:
    """Whether a node is a Transpose to an order of axes."""
    if node is None or not is_standard_op(node, "Transpose"):
        return False
    return tuple(node.attributes.get_ints("perm", ())) == order


def number_of(value: ir.Value | None) -> float | None:
    """Return the only element of a constant."""
    array = _only_element(value)
    return float(array.reshape(())) if array is not None and array.dtype.kind == "f" else None


def repeated_number(value: ir.Value | None) -> float | None:
    """Return the number that all elements of a value are."""
    node = None if value is None else value.producer()
    if node is None or not is_standard(node):
        return number_of(value)
    if node.op_type == "Expand":
        return number_of(node.inputs[0])
    if node.op_type != "ConstantOfShape":
        return number_of(value)
    filler = node.attributes.get("value")
    return 0.0 if filler is None else float(np.asarray(filler.as_tensor().numpy()).reshape(()))


def _only_element(value: ir.Value | None) -> np.ndarray | None:
    """Return a constant of one element; others are not read, since they may be large."""
    tensor = constant_tensor(value)
    return None if tensor is None or tensor.size != 1 else np.asarray(tensor.numpy())


def factor_of(value: ir.Value | None, sizes: Sizes) -> float | None:
    """Return the number that a value always is, also where it is computed from sizes, as the root of a head's size."""
    number = number_of(value)
    if number is not None or value is None or value.dtype != ir.DataType.FLOAT:
        return number
    array = _evaluated(value, sizes, _LONGEST_COMPUTATION)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def _evaluated(value: ir.Value | None, sizes: Sizes, depth: int) -> np.ndarray | None:
    if value is None or constant_tensor(value) is not None:
        return _only_element(value)
    content = sizes.content(value)
    if content is not None and len(content) == 1:
        return np.asarray(content, np.int64) if isinstance(content[0], int) else None
    node = value.producer()
    if node is None or not depth or not node.inputs:
        return None
    inputs = [_evaluated(each, sizes, depth - 1) for each in node.inputs]
    return None if any(each is None for each in inputs) else evaluate(node, inputs, most=1)


def changes_nothing(node: ir.Node) -> bool:
    """Whether the first output is the first input.

    It is with an Identity, a Dropout outside training, a cast to the same type, a sum with 0, and a product with 1.
    """
    if not is_standard(node) or not node.inputs or node.inputs[0] is None:
        return False
    if node.op_type == "Dropout":
        trains = node.inputs[2] if len(node.inputs) > 2 else None
        truth = constant_array(trains)
        return (trains is None or (truth is not None and not truth.any())) and not any(map(is_used, node.outputs[1:]))
    if node.op_type in ("Add", "Mul"):
        return number_of(node.inputs[1]) == (0.0 if node.op_type == "Add" else 1.0)
    same = node.inputs[0].dtype is not None and node.inputs[0].dtype == node.outputs[0].dtype
    return node.op_type == "Identity" or (node.op_type == "Cast" and same)


def behind_nothing(value: ir.Value) -> ir.Value:
    """Look at what a value becomes behind nodes that change nothing."""
    while (reader := only_reader(value)) is not None and changes_nothing(reader):
        value = reader.outputs[0]
    return value


def without_scale(value: ir.Value | None, sizes: Sizes) -> tuple[ir.Value | None, float]:
    """Look through products with one number; return what is scaled, and the factor."""
    factor = 1.0
    while value is not None and (node := value.producer()) is not None and is_standard(node):
        if changes_nothing(node):
            value = node.inputs[0]
            continue
        if node.op_type not in ("Mul", "Div"):
            break
        left, right = node.inputs
        if (number := factor_of(right, sizes)) is not None and number:
            factor, value = (factor * number if node.op_type == "Mul" else factor / number), left
        elif node.op_type == "Mul" and (number := factor_of(left, sizes)) is not None and number:
            factor, value = factor * number, right
        else:
            break
    return value, factor
