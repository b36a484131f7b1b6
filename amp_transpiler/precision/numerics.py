"""Finds nodes that are numerically unsafe in a low format, as far as can be known without running the program.

Five rules, each a function from a typed program to nodes with a reason:

1. operators that amplify rounding errors or leave the format's range (a column of the operator table);
2. sums of squares, and the operators on them up to the one that uses them;
3. values computed with a constant beyond the format's range, such as a softmax mask;
4. index arithmetic: floats computed only from integers, such as positions and masks;
5. floats from which sizes are made, such as counts of rows (`size_chains.py`).

Where data showed the ranges of all values around a node, `shown_safe` says whether they speak for it all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of, is_pow_of_two
from amp_transpiler.graph.dtypes import LOW_DTYPES, LowFormat
from amp_transpiler.graph.walk import control_ports, has_bodies, in_order
from amp_transpiler.ops.kinds import BOUNDED, CAPPED, MOVEMENT, ROOT, SCATTER, SQUARES, SUM
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.table import column, operator_table
from amp_transpiler.precision.constraints import is_float32
from amp_transpiler.precision.masks import NO_MASKS, Masks
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.reasons import Reason

if TYPE_CHECKING:
    from amp_transpiler.precision.evidence import TensorRange

__all__ = ["UNSAFE", "from_integers", "normalisations", "shown_safe", "unsafe_nodes"]

_FORMATS = {"both": ("float16", "bfloat16"), "float16": ("float16",)}
UNSAFE: dict[str, tuple[str, tuple[str, ...]]] = {
    operator: (operator_table()[operator].cells["unsafe reason"], _FORMATS[formats])
    for operator, formats in column("unsafe").items()
}
"""Operator -> the reason why it is unsafe, and the formats in which it is."""

_LINEAR = MOVEMENT | {"Add", "Cast", "Div", "Mul", "Neg", "Range", "Sub", "Where"}  # of positions
_WEIGHT_ELEMENTS = 1024  # a matrix of at least this size counts as weights; rotary frequencies have 32 to 128


def unsafe_nodes(
    model: ir.Model,
    low: LowFormat,
    ranges: RangeFaults,
    masks: Masks = NO_MASKS,
    safe: Collection[ir.Node] = (),
    counting: Iterable[ir.Node] | None = None,
    sizing: Iterable[ir.Node] | None = None,
) -> dict[ir.Node, Reason]:
    """Return the nodes that should stay float32, each with its reason.

    Args:
        model: a typed program, nodes in topological order.
        low: the low format.
        ranges: the damage that rounding does to constants.
        masks: the masks that do none, since their constants are limited.
        safe: parts of a whole that is safe: an operator there amplifies nothing.
        counting: what `from_integers` says of the program; None: it is asked.
        sizing: what `size_chains` says of it; None: it is asked.
    """
    from amp_transpiler.precision.size_chains import size_chains

    nodes = list(in_order(model.graph))
    reasons: dict[ir.Node, Reason] = {}
    rules: tuple[Found, ...] = (
        _amplifiers([node for node in nodes if node not in safe], low),
        _squares(nodes),
        _beyond_range(nodes, low, ranges, masks),
        _index_arithmetic(from_integers(nodes) if counting is None else counting, masks),
        _sizes(size_chains(nodes) if sizing is None else sizing),
    )
    for rule in rules:
        for node, reason in rule:
            reasons.setdefault(node, reason)
    return reasons


Found = Iterator[tuple[ir.Node, Reason]]


def _amplifiers(nodes: list[ir.Node], low: LowFormat) -> Found:
    for node in nodes:
        row = UNSAFE.get(node.op_type) if is_standard(node) else None
        if row is not None and low.name in row[1]:
            yield node, Reason("unsafe-operator", {"effect": row[0]})
        elif node.op_type in SCATTER and _reduces(node):
            yield node, Reason("scatter-sum")


def _reduces(node: ir.Node) -> bool:
    attribute = node.attributes.get("reduction")
    return attribute is not None and attribute.as_string() != "none"


def _reads(node: ir.Node, values: set[ir.Value]) -> bool:
    return any(value in values for value in node.inputs)


def _squares(nodes: list[ir.Node]) -> Found:
    for node, reason, _ in _on_squares(nodes):
        yield node, reason


def normalisations(nodes: list[ir.Node]) -> list[frozenset[ir.Node]]:
    """Return the nodes of each normalisation that is written out: the squares that are summed, and what works on sums.

    ONNX Runtime fuses one only if it is in one precision.

    Args:
        nodes: those of a program, in the order of execution.
    """
    groups: dict[ir.Node, set[ir.Node]] = {}
    for node, _, together in _on_squares(nodes):
        members = {node}.union(*(groups.get(other, {other}) for other in together))
        groups.update(dict.fromkeys(members, members))
    return list({id(members): frozenset(members) for members in groups.values() if len(members) > 1}.values())


def _on_squares(nodes: list[ir.Node]) -> Iterator[tuple[ir.Node, Reason, list[ir.Node]]]:
    """Squares that are summed, their sum, and the operators on the sum up to the one that uses it.

    Yields:
        A node, why it is unsafe, and nodes of the same normalisation.
    """
    sums: set[ir.Value] = set()
    for node in nodes:
        if is_standard(node) and node.op_type in SUM and (square := _square(node.inputs[0])) is not None:
            yield square, Reason("square"), []
            yield node, Reason("square-sum"), [square]
            sums.update(node.outputs)
        elif is_standard(node) and node.op_type in SQUARES:
            sums.update(node.outputs)
        elif (read := [value for value in node.inputs if value is not None and value in sums]) and is_standard(node):
            makers = [maker for value in read if (maker := value.producer()) is not None]
            if _continues(node):
                yield node, Reason("on-squares"), makers
                sums.update(node.outputs)
            elif node.op_type in ("Div", "Mul"):
                yield node, Reason("normalises-by-squares"), makers


def _square(value: ir.Value | None) -> ir.Node | None:
    """The node that makes `value`, if that is a square."""
    node = None if value is None else value.producer()
    if node is None or not is_standard(node):
        return None
    return node if is_pow_of_two(node) or (node.op_type == "Mul" and node.inputs[0] is node.inputs[1]) else None


def _continues(node: ir.Node) -> bool:
    if node.op_type in ("Mul", "Div"):
        return any(constant_of(value) is not None for value in node.inputs)
    return node.op_type in ROOT


def _beyond_range(nodes: list[ir.Node], low: LowFormat, ranges: RangeFaults, masks: Masks) -> Found:
    """Follow values that may exceed the range, from the constants that do to operators with bounded results."""
    if low.name != "float16":
        return
    read = {value for node in nodes for value in node.inputs}
    if not any(map(ranges.overflows, read)):  # the rule is true of few programs
        return
    beyond: set[ir.Value] = set()
    known = -1
    while known != len(beyond):  # a body comes before its owner, and a Loop's state goes around
        known = len(beyond)
        for node in nodes:
            _pass_through(node, beyond)
            if _may_leave_range(node, beyond, ranges, masks):
                beyond.update(node.outputs)
    for node in nodes if beyond else ():
        if _makes_float32(node) and _reads(node, beyond):
            yield node, Reason("after-large-constant")


def _may_leave_range(node: ir.Node, beyond: set[ir.Value], ranges: RangeFaults, masks: Masks) -> bool:
    if not _makes_float32(node) or node.op_type in BOUNDED or _divides_by(node, ranges):
        return False
    if _reads(node, beyond):
        return True
    return node.op_type not in CAPPED and any(
        ranges.overflows(value) and (node, index) not in masks.uses for index, value in enumerate(node.inputs)
    )


def _makes_float32(node: ir.Node) -> bool:
    return is_standard(node) and any(map(is_float32, node.outputs))


def _pass_through(node: ir.Node, beyond: set[ir.Value]) -> None:
    """Follow values into and out of the bodies of `node`."""
    for port in control_ports(node):
        if any(use.value in beyond for use in port.uses):
            beyond.update(port.definitions)


def _divides_by(node: ir.Node, ranges: RangeFaults) -> bool:
    return node.op_type == "Div" and ranges.overflows(node.inputs[1])


def _index_arithmetic(counting: Iterable[ir.Node], masks: Masks) -> Found:
    for node in counting:
        if node.op_type != "Cast" and node not in masks.nodes:
            yield node, Reason("index")


def _sizes(sizing: Iterable[ir.Node]) -> Found:
    for node in sizing:
        if node.op_type != "Cast":
            yield node, Reason("size")


def from_integers(nodes: list[ir.Node]) -> Iterator[ir.Node]:
    """Yield the nodes that make floats from integers, or compute floats only from such floats and constants."""
    derived: set[ir.Value] = set()
    for node in nodes:
        read = [value for value in node.inputs if is_float32(value)]
        if any(value not in derived and constant_of(value) is None for value in read):
            continue
        if not is_standard(node) or has_bodies(node):
            continue
        if not any(map(is_float32, node.outputs)) or _applies_weights(node):
            continue
        if derived.isdisjoint(read):
            if any(value is not None and value.dtype in LOW_DTYPES for value in node.inputs):
                continue  # a cast of a 16-bit float
            if node.op_type not in ("Cast", "Range", "Where", "CumSum"):
                continue
        derived.update(node.outputs)
        yield node


def exact_positions(counting: Iterable[ir.Node]) -> set[ir.Node]:
    """Return the nodes of index arithmetic whose results must be exact: a function, a comparison or an index follows.

    What is only moved, shifted and scaled until it meets features is rounded there, whatever it was before.

    Args:
        counting: nodes of `from_integers`, in the order of execution.
    """
    exact: set[ir.Node] = set()
    for node in reversed(list(counting)):
        uses = (use.node for value in node.outputs for use in value.uses())
        readers = [reader for reader in uses if reader.op_type not in ("Shape", "Size")]  # these read no number
        counts = any(not any(map(is_float32, reader.outputs)) for reader in readers)
        if counts or node.op_type not in _LINEAR or any(reader in exact for reader in readers):
            exact.add(node)
    return exact


def _applies_weights(node: ir.Node) -> bool:
    """Whether a weight matrix turns indices into features here, which ends index arithmetic."""
    weights = (constant_of(value) for value in node.inputs)
    return any(tensor is not None and len(tensor.shape) >= 2 and tensor.size >= _WEIGHT_ELEMENTS for tensor in weights)


def shown_safe(
    node: ir.Node,
    ranges: Mapping[str, TensorRange],
    low: LowFormat,
    headroom: float,
    *,
    counts: bool,
    degrees: Mapping[ir.Value, float] = MappingProxyType({}),
) -> bool:
    """Whether the ranges that data showed speak for a node that is unsafe by its nature.

    They must be known for all that it reads and computes, and must fit with headroom: below the largest number, and for
    index arithmetic within the integers that the format holds. What is steep near zero is `near_zero`'s question, what
    grows with an open size that of `growth`.
    By how much its rounding is felt is another question, which only a comparison answers.

    Args:
        node: the node.
        ranges: value -> its range.
        low: the low format.
        headroom: how many times larger than on the data the node's inputs may be, each in its own scale.
        counts: the node is part of index arithmetic.
        degrees: value -> the power with which it grows; 1 for others.
    """
    if not is_standard(node) or node.op_type == "QuantizeLinear" or has_bodies(node):
        return False  # a number that is rounded once more may fall on the other side of a step
    from amp_transpiler.precision.range_growth import fits

    for value in (*node.inputs, *node.outputs):
        if not is_float32(value) or constant_of(value) is not None:
            continue
        seen = ranges.get(str(value.name))
        if seen is None or not fits(seen, low, headroom, degrees.get(value, 1.0)):
            return False
        if counts and seen.largest * headroom > 2.0**low.digits:
            return False
    return True
