"""Says how values grow where other inputs are larger, or longer, than those that a range was seen on.

A range that fits a format four times over says: what goes in may become four times as large. So headroom is taken where
an operator reads: a square becomes sixteen times as large then, and an exponential its fourth power. What is counted or
summed along an open size grows with that instead: no headroom of a magnitude says how long another input may be.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import onnx_ir as ir

from amp_transpiler.errors import AmpError
from amp_transpiler.graph.constness import constant_of, single_number
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.input_roles import ModelInput
from amp_transpiler.ops.kinds import COMPUTE, EXACT, MOVEMENT
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.precision.constraints import is_float32
from amp_transpiler.precision.evidence import TensorRange
from amp_transpiler.precision.known_shapes import KnownShapes
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.targets.kernel_conditions import summed_axes

__all__ = ["GROWS", "degrees", "fits", "growing", "touches_growing"]

GROWS = Reason("grows")
"""The reason why a node stays float32."""

_EXPONENTIALS = frozenset({"Cosh", "Exp", "ReduceProd", "Sinh"})
_SUMS = frozenset({"CumSum", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSum", "ReduceSumSquare"})
_COUNTS = frozenset({"NonZero", "Range", "Size"})
_COUNTING_ROLES = frozenset({"length", "position"})  # of integer inputs
_FOLLOWS = (
    frozenset({"Add", "Cast", "Exp", "Mean", "Mul", "Pow", "Sqrt", "Sub", "Sum"}) | _SUMS
)  # as large as its terms
_FOLLOWS_ONE = MOVEMENT - {"Concat"}  # as large as what is moved
_FOLLOWS_ANY = EXACT | _FOLLOWS
_LINEAR = frozenset({"Add", "Mean", "ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum", "Sub", "Sum"})


def degrees(nodes: list[ir.Node]) -> dict[ir.Value, float]:
    """Return the powers with which values grow that are products and powers of what was computed before; 1 for others.

    That of an exponential, and of a sum of exponentials, is infinite.

    Args:
        nodes: of a typed program, in the order of execution.
    """
    powers: dict[ir.Value, float] = {}
    for node in nodes:
        if is_standard(node) and (degree := _degree(node, powers)) != 1.0:
            powers.update(dict.fromkeys(node.outputs, degree))
    return powers


def _degree(node: ir.Node, known: Mapping[ir.Value, float]) -> float:
    read = [known.get(value, 1.0) for value in node.inputs if value is not None and constant_of(value) is None]
    if not read:
        return 1.0
    if node.op_type in _EXPONENTIALS or (node.op_type == "Pow" and constant_of(node.inputs[1]) is None):
        return math.inf
    if node.op_type == "Mul":
        return sum(read)
    if node.op_type == "Pow" and (power := single_number(node.inputs[1])) is not None:
        return abs(power) * read[0]
    if node.op_type == "ReduceSumSquare":
        return 2.0 * read[0]
    if node.op_type == "Sqrt":
        return read[0] / 2.0
    if node.op_type == "Div" and constant_of(node.inputs[1]) is not None:
        return read[0]
    return max(read) if node.op_type in EXACT or node.op_type in _LINEAR else 1.0


def fits(seen: TensorRange, low: LowFormat, headroom: float, degree: float) -> bool:
    """Whether a value stays in the range if what it is computed from grows by the headroom.

    Args:
        seen: the range of the value.
        low: the low format.
        headroom: how many times larger inputs may be.
        degree: the power with which the value grows.
    """
    if math.isinf(degree):
        return bool(seen.largest <= max(1.0, low.max ** (1.0 / headroom)))
    return bool(seen.largest * headroom ** max(1.0, degree) <= low.max)


def growing(model: ir.Model, nodes: list[ir.Node], shapes: KnownShapes) -> set[ir.Value]:
    """Return the values that grow with an open size: counts and sums along one, and what is computed from them.

    Args:
        model: a typed program.
        nodes: all of its nodes, in the order of execution.
        shapes: as far as they are the same in every run.
    """
    growing_values = {value for value in model.graph.inputs if _counts(value)}
    for node in nodes:
        if is_standard(node) and (_starts(node, shapes) or (growing_values and _follows(node, growing_values))):
            growing_values.update(node.outputs)
    return growing_values


def touches_growing(node: ir.Node, grown: Collection[ir.Value]) -> bool:
    """Whether a node computes a number that grows with an open size, or reads one.

    What a product with weights makes of such numbers is as large as any features: ranges and comparisons say whether
    it may read them.
    """
    if any(value in grown for value in node.outputs):
        return True
    return operator_name(node) not in COMPUTE and any(is_float32(value) and value in grown for value in node.inputs)


def _counts(value: ir.Value) -> bool:
    """Whether an input of integers holds positions or lengths."""
    try:
        role = ModelInput.of(value)
    except AmpError:  # no tensor
        return False
    return role.role in _COUNTING_ROLES and role.dtype.kind in "iu"


def _starts(node: ir.Node, shapes: KnownShapes) -> bool:
    if node.op_type in _COUNTS:
        return any(value is not None and constant_of(value) is None for value in node.inputs)
    if node.op_type not in _SUMS and node.op_type != "Shape":
        return False
    shape = shapes.known(node, 0)
    if shape is None:
        return True
    axes = range(len(shape)) if node.op_type == "Shape" else summed_axes(node, len(shape))
    return any(axes is None or axis in axes for axis, size in enumerate(shape) if size is None)


def _follows(node: ir.Node, known: set[ir.Value]) -> bool:
    """Whether the results of a node are about as large as something that grows."""
    if node.op_type == "Div":
        return node.inputs[0] in known and node.inputs[1] not in known
    if node.op_type in _FOLLOWS_ONE:
        return node.inputs[0] in known
    if node.op_type in _FOLLOWS_ANY or node.op_type.startswith("Reduce"):
        return any(value in known for value in node.inputs)
    return False
