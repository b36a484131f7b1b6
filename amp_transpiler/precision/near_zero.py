"""Finds what operators read that are steep near zero: logarithms, quotients, roots.

They turn the relative error of a small number into an error of their result. A low format keeps relative errors small
down to its least normal number only; below it digits go, and at last the number itself. So what such an operator reads
is low only where it is known to stay above: by a bound such as `Clip(x, 1e-3)`, or by the least magnitude of the user's
data. A bound that is smaller says that smaller numbers are to be expected, whatever the data show.

The reason holds for whatever hands the numbers on: operators that move, bound or scale them, up to that which computes
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of, single_number
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.ops.kinds import EXACT, MOVEMENT
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.constraints import is_float32
from amp_transpiler.precision.evidence import TensorRange
from amp_transpiler.precision.pole_operators import input_at_pole
from amp_transpiler.precision.reasons import Reason

__all__ = ["LowerBounds", "near_zero", "steep_input"]

_UNKNOWN = -math.inf
_READ = 1 << 12  # elements of a constant that is read for its least one
_KEPT = 2.0**6  # times the least number of the format: from there on a bound loses less than a hundredth
_WRITES_ZEROS = frozenset({"CenterCropPad", "Compress", "OneHot", "Pad", "Trilu"})
_SCALES = frozenset({"Add", "Sub", "Mul", "Div"})  # by a constant


def steep_input(node: ir.Node) -> ir.Value | None:
    """Return the input of a node that is steep where this is near zero; None for other nodes."""
    if is_standard(node) and node.op_type == "Sqrt":
        return node.inputs[0]
    return input_at_pole(node)


def near_zero(
    nodes: list[ir.Node],
    low: LowFormat,
    ranges: Mapping[str, TensorRange],
    headroom: float,
    safe: Collection[ir.Node] = (),
    integers: Collection[ir.Value] = (),
) -> dict[ir.Node, Reason]:
    """Return the nodes that should stay float32 because an operator that is steep near zero reads their numbers.

    Args:
        nodes: of a typed program, in the order of execution.
        low: the low format. One with float32's range loses nothing near zero.
        ranges: value -> the range that the user's data showed.
        headroom: how many times smaller numbers must fit than the data showed.
        safe: parts of a whole that is safe; what they read is no concern.
        integers: values that are computed only from integers, which are no small numbers unless a bound makes them.

    Returns:
        Node -> the reason.
    """
    reasons: dict[ir.Node, Reason] = {}
    steep = [(node, read) for node in nodes if node not in safe and (read := steep_input(node)) is not None]
    if low.name != "float16" or not steep:
        return reasons
    bounds = LowerBounds(nodes)
    for node, read in steep:
        if not is_float32(read) or constant_of(read) is not None:
            continue
        why = _too_small(read, bounds.of(read), ranges.get(str(read.name)), low, headroom, is_count=read in integers)
        if why:
            values = {"operator": node.op_type, "fault": why}
            reasons.setdefault(node, Reason("near-zero", values))
            for maker in _makers(read):
                reasons.setdefault(maker, Reason("read-near-zero", {**values, "node": str(node.name)}))
    return reasons


def _too_small(
    value: ir.Value, bound: float, seen: TensorRange | None, low: LowFormat, headroom: float, *, is_count: bool
) -> Reason | None:
    """Say why a value may be too small for the format; None if it is not."""
    name = str(value.name)
    if bound > 0.0:
        least = low.smallest * _KEPT
        return None if bound >= least else Reason("small-bound", {"value": name, "bound": float(bound), "least": least})
    if is_count:
        return None
    if seen is None or seen.largest == 0.0:
        return Reason("small-unknown", {"value": name})
    normal = low.smallest * 2.0 ** (low.digits - 1)
    if seen.smallest >= headroom * normal:
        return None
    values = {"value": name, "smallest": seen.smallest, "headroom": headroom, "normal": normal}
    return Reason("small-seen", values)


def _makers(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that hand the numbers of a value on, up to those that compute them."""
    waiting, known = [value], {value}
    while waiting:
        maker = waiting.pop().producer()
        if maker is None or not is_standard(maker) or has_bodies(maker) or not any(map(is_float32, maker.outputs)):
            continue
        yield maker
        for read in maker.inputs if _hands_on(maker) else ():
            if is_float32(read) and constant_of(read) is None and read not in known:
                known.add(read)
                waiting.append(read)


def _hands_on(node: ir.Node) -> bool:
    """Whether the relative errors of what a node reads are those of its results."""
    if node.op_type in EXACT or node.op_type in ("Sqrt", "Pow", "Reciprocal"):
        return True
    return node.op_type in _SCALES and any(constant_of(value) is not None for value in node.inputs)


class LowerBounds:
    """The least number that each value of a program can be, as far as the graph says it without data.

    Args:
        nodes: of a typed program, in the order of execution.
    """

    def __init__(self, nodes: list[ir.Node]) -> None:
        self._known: dict[ir.Value, float] = {}
        for node in nodes:
            if is_standard(node) and (rule := _RULES.get(node.op_type)) is not None:
                least = rule(node, self)
                if least > _UNKNOWN:
                    self._known.update(dict.fromkeys(node.outputs, least))

    def of(self, value: ir.Value | None) -> float:
        """Return the least number; minus infinity if nothing is known."""
        if value is None:
            return _UNKNOWN
        tensor = constant_of(value)
        if tensor is None:
            return self._known.get(value, _UNKNOWN)
        if tensor.size == 0 or tensor.size > _READ or not tensor.dtype.is_floating_point():
            return _UNKNOWN
        return float(np.min(tensor.numpy().astype(np.float64)))


_Rule = Callable[[ir.Node, LowerBounds], float]


def _every(node: ir.Node, bounds: LowerBounds) -> list[float]:
    return [bounds.of(value) for value in node.inputs if value is not None]


def _first(node: ir.Node, bounds: LowerBounds) -> float:
    return bounds.of(node.inputs[0])


def _positive_first(node: ir.Node, bounds: LowerBounds) -> float:
    """A mean or a maximum of positive numbers, and at least one term of their sum."""
    least = _first(node, bounds)
    return least if least >= 0.0 else _UNKNOWN


def _not_negative(node: ir.Node, bounds: LowerBounds) -> float:
    return max(0.0, _first(node, bounds))


def _root(node: ir.Node, bounds: LowerBounds) -> float:
    return math.sqrt(max(0.0, _first(node, bounds)))


def _zero(_: ir.Node, __: LowerBounds) -> float:
    return 0.0


def _chosen(node: ir.Node, bounds: LowerBounds) -> float:
    return min(bounds.of(value) for value in node.inputs[1:3])


def _clipped(node: ir.Node, bounds: LowerBounds) -> float:
    bound = bounds.of(node.inputs[1]) if len(node.inputs) > 1 else _UNKNOWN
    return max(_first(node, bounds), bound, node.attributes.get_float("min", _UNKNOWN))


def _product(node: ir.Node, bounds: LowerBounds) -> float:
    first, second = (bounds.of(value) for value in node.inputs)
    if node.inputs[0] is node.inputs[1]:
        return max(0.0, first) ** 2
    return first * second if first >= 0.0 and second >= 0.0 else _UNKNOWN


def _quotient(node: ir.Node, bounds: LowerBounds) -> float:
    first, second = (bounds.of(value) for value in node.inputs)
    divisor = single_number(node.inputs[1])
    if divisor is not None and divisor > 0.0:
        return first / divisor
    return 0.0 if first >= 0.0 and second >= 0.0 else _UNKNOWN


def _power(node: ir.Node, bounds: LowerBounds) -> float:
    exponent, first = single_number(node.inputs[1]), _first(node, bounds)
    if exponent is not None and exponent > 0.0 and first >= 0.0:
        return float(first**exponent) if first > 0.0 else 0.0
    return 0.0 if first >= 0.0 or (exponent is not None and exponent % 2.0 == 0.0) else _UNKNOWN


def _padded(node: ir.Node, bounds: LowerBounds) -> float:
    return min(0.0, _first(node, bounds))


_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        **dict.fromkeys(MOVEMENT - _WRITES_ZEROS - {"Concat"}, _first),
        **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "MaxPool"), _positive_first),
        **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _positive_first),
        **dict.fromkeys(("Exp", "Sigmoid", "HardSigmoid", "Softmax", "Softplus"), _zero),
        **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare", "GlobalLpPool"), _zero),
        **dict.fromkeys(("Relu", "Abs"), _not_negative),
        **dict.fromkeys((*_WRITES_ZEROS, "AveragePool"), _padded),
        "Cosh": lambda _, __: 1.0,
        "Sqrt": _root,
        "Pow": _power,
        "Mul": _product,
        "Div": _quotient,
        "Add": lambda node, bounds: sum(_every(node, bounds)),
        "Sum": lambda node, bounds: sum(_every(node, bounds)),
        "Max": lambda node, bounds: max(_every(node, bounds)),
        "Min": lambda node, bounds: min(_every(node, bounds)),
        "Concat": lambda node, bounds: min(_every(node, bounds)),
        "Where": _chosen,
        "Clip": _clipped,
    }
)
"""Operator -> the least number of its results, of the least numbers that it reads."""
