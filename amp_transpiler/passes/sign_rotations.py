"""Rotations of positions (rotary embeddings), with the sign in the angles instead of in every layer."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.match import Binding, bindings, parse_form
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.graph.walk import is_used
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["SignRotations"]

logger = logging.getLogger(__name__)

_KEEPS_LAST_AXIS = frozenset({"Cast", "Identity", "Mul", "Unsqueeze"})
_ANGLES = parse_form("Sin(both:Concat(half:Mul(positions, frequencies), half))")
_SWAPPED = parse_form("Concat(minus:Neg(turned), kept)")


class SignRotations(Pass[PassResult]):
    """Takes the minus out of `x * cos(a) + concat(-x2, x1) * sin(a)`, where `a` is twice the same; counts these.

    The angles are positions times a constant, put together with themselves. A sine is odd and a cosine even: with the
    first half of the angles negative, `concat(x2, x1) * sin(a)` is the same, and the Concat of the angles becomes part
    of the constant. It saves one kernel, and one more for every query and key of every layer.
    """

    def call(self, model: ir.Model) -> PassResult:
        rotations = [rotation for node in model.graph if (rotation := _angles(node)) is not None]
        sizes = Sizes(model.graph) if rotations else None
        names = NameAllocator(model) if rotations else None
        count = 0
        for angles, frequencies in rotations:
            assert sizes is not None  # there is one
            assert names is not None
            if _is_last(angles, sizes) and (turned := _turned(angles.last, frequencies.shape[-1], sizes)):
                _rewrite(angles, frequencies, turned, names)
                count += len(turned)
        if count:
            logger.info("%d rotated queries and keys have their sign in the angles", count)
        return PassResult(model, modified=bool(count), count=count)


def _angles(sine: ir.Node) -> tuple[Binding, np.ndarray] | None:
    """Return the angles of a sine, which only sines and cosines read, and their frequencies; None for other nodes."""
    for angles in bindings(_ANGLES, sine):
        both, product = angles.node("both"), angles.node("half")
        if len(both.inputs) != 2 or product.graph is not both.graph:
            return None
        if not _is_read_by(angles["both"], ("Sin", "Cos")) or not _is_read_by(angles["half"], ("Concat",)):
            return None
        frequencies = constant_array(angles["frequencies"])
        if frequencies is not None and frequencies.ndim and constant_array(angles["positions"]) is None:
            return angles, frequencies
    return None


def _is_read_by(value: ir.Value, kinds: tuple[str, ...]) -> bool:
    return not value.is_graph_output() and all(
        use.node.op_type in kinds and is_standard(use.node) for use in value.uses()
    )


def _is_last(angles: Binding, sizes: Sizes) -> bool:
    """Whether the last axis of the angles is the constant's, twice."""
    positions, both = sizes.shape(angles["positions"]), sizes.shape(angles["both"])
    if not positions or not both:
        return False
    return positions[-1] == 1 and angles.node("both").attributes.get_int("axis", 0) % len(both) == len(both) - 1


def _turned(sine: ir.Node, half: int, sizes: Sizes) -> list[ir.Node] | None:
    """Return the `Concat(Neg(x2), x1)` that a sine is multiplied with; None if it is used for anything else."""
    swaps: list[ir.Node] = []
    pending = [sine.outputs[0]]
    while pending:
        value = pending.pop()
        shape = sizes.shape(value)
        if value.is_graph_output() or not shape or shape[-1] != 2 * half:
            return None
        for use in value.uses():
            node = use.node
            if node.op_type not in _KEEPS_LAST_AXIS or not is_standard(node) or node.graph is not sine.graph:
                return None
            others = [other for other in node.inputs if other is not None and other is not value]
            if node.op_type != "Mul" or (len(others) == 1 and _is_one_number(others[0])):
                pending.append(node.outputs[0])
            elif len(others) == 1 and (swapped := _swapped(others[0], half, sizes)) is not None:
                swaps.append(swapped)
            else:
                return None
    return list(dict.fromkeys(swaps)) or None


def _is_one_number(value: ir.Value) -> bool:
    array = constant_array(value)
    return array is not None and array.size == 1


def _swapped(value: ir.Value, half: int, sizes: Sizes) -> ir.Node | None:
    """Return the node `Concat(Neg(x2), x1)` on the last axis, with two equal halves, that makes a value for one Mul."""
    node, shape = value.producer(), sizes.shape(value)
    if node is None or not shape or len(node.inputs) != 2 or not any(bindings(_SWAPPED, node)):
        return None
    if node.attributes.get_int("axis", 0) % len(shape) != len(shape) - 1 or not _is_read_by(value, ("Mul",)):
        return None
    widths = [part[-1] if (part := sizes.shape(operand)) else None for operand in node.inputs]
    return node if widths == [half, half] and len(value.uses()) == 1 else None


def _rewrite(angles: Binding, frequencies: np.ndarray, turned: list[ir.Node], names: NameAllocator) -> None:
    both, product = angles.node("both"), angles.node("half")
    builder, graph = NodeBuilder(both, names), both.graph
    signed = np.concatenate([-frequencies, frequencies], axis=-1)
    assert isinstance(graph, ir.Graph)
    builder.become("Mul", [angles["positions"], builder.constant(signed)])
    inputs = list(product.inputs)
    remove_unread(product)
    for value in inputs:
        if value is not None and value.is_initializer() and not value.is_graph_input() and not is_used(value):
            graph.initializers.pop(str(value.name), None)
    for node in turned:
        (swapped,) = bindings(_SWAPPED, node)
        node.replace_input_with(0, swapped["turned"])
        remove_unread(swapped.node("minus"))
