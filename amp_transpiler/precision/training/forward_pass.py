"""The forward pass of a training step: the values that do not depend on where the backward pass begins."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx_ir as ir

from amp_transpiler.graph.training_step import TrainingStep
from amp_transpiler.graph.walk import bodies, has_bodies
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.training.linearity import linearity_of

__all__ = ["ancestors", "forward_values", "heights", "inputs_of", "root_of"]

_SHAPES = frozenset(["Shape", "Size"])
_VIEWS = frozenset(["Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"])
_SHIFTS = {"Add": (0, 1), "Conv": (2,), "ConvTranspose": (2,), "Gemm": (2,), "LayerNormalization": (2,)}
"""Operators that add a parameter, and the inputs at which they do."""

_SUMMANDS = 128  # values looked at for the products that a gradient is a sum of; a bias' gradient has none


def inputs_of(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values whose numbers a node reads, those that its bodies capture included."""
    if node.op_type in _SHAPES and is_standard(node):
        return
    yield from (value for value in node.inputs if value is not None)
    if has_bodies(node):
        for _, body in bodies(node):
            for inner in body.all_nodes():
                yield from (value for value in inner.inputs if value is not None)
            yield from body.outputs


def ancestors(values: Iterable[ir.Value], known: Collection[ir.Value] = ()) -> set[ir.Value]:
    """Return the values, and all that they are computed from; those in `known`, and their own, are left out."""
    found: set[ir.Value] = set()
    pending = [value for value in values if value not in known]
    while pending:
        value = pending.pop()
        if value in found:
            continue
        found.add(value)
        node = value.producer()
        if node is not None:
            pending.extend(other for other in inputs_of(node) if other not in found and other not in known)
    return found


def forward_values(graph: ir.Graph, step: TrainingStep) -> set[ir.Value]:
    """Return the values of the forward pass, as far as it is known where it ends.

    It goes as far as the operators that read the parameters: of the two factors of a parameter's gradient, one is what
    such an operator reads beside the parameter, and the other depends on its result. It goes on to every output that
    depends on neither a gradient nor such another factor, as the loss does.

    Args:
        graph: the main graph.
        step: its states and gradients.
    """
    inputs = {str(value.name): value for value in (*graph.inputs, *graph.initializers.values())}
    made = {str(value.name): value for node in graph for value in node.outputs}
    borders = {
        inputs[name]: [made[border] for border in found if border in made]
        for name, found in step.gradients.items()
        if name in inputs
    }
    forward: set[ir.Value] = set()
    backward = {value for found in borders.values() for value in found}
    for result, other in _forward_products(graph, borders):
        forward |= ancestors([result], forward)
        backward.update(() if other is None else (other,))
    below = _marked(graph, dict.fromkeys(backward - forward, 1))
    states = {state.output for state in step.states if state.role != "statistic"}
    ends = (value for value in graph.outputs if value.name not in states and value not in below)
    return forward | ancestors(ends, forward)


def _marked(graph: ir.Graph, marks: Mapping[ir.Value, int]) -> dict[ir.Value, int]:
    """Return, for every value that depends on marked ones, their marks: bits of one number."""
    found = dict(marks)
    for node in graph:
        bits = 0
        for value in inputs_of(node):
            bits |= found.get(value, 0)
        if bits:
            for value in node.outputs:
                found[value] = found.get(value, 0) | bits
    return found


def heights(graph: ir.Graph, forward: Collection[ir.Value]) -> dict[ir.Value, int]:
    """Return, for every computed value, the length of the longest way into the part of the forward pass that it reads.

    A gradient depends on values of the forward pass that come later than whatever it is multiplied with.
    """
    found: dict[ir.Value, int] = {}
    for node in graph:
        below = max((found.get(value, 0) for value in inputs_of(node)), default=0)
        for value in node.outputs:
            found[value] = below + 1 if value in forward else below
    return found


def _forward_products(
    graph: ir.Graph, borders: Mapping[ir.Value, list[ir.Value]]
) -> Iterator[tuple[ir.Value, ir.Value | None]]:
    """Yield results of the operators of the forward pass that read parameters, each with the other factor, if any."""
    readers = {parameter: list(_readers(parameter)) for parameter in borders}
    nodes = dict.fromkeys(node for found in readers.values() for node, _ in found)
    bits = {node: 1 << index for index, node in enumerate(nodes)}
    depends = _marked(graph, {value: bit for node, bit in bits.items() for value in node.outputs})
    for parameter, gradients in borders.items():
        for node, index in readers[parameter]:
            shifts = is_standard(node) and index in _SHIFTS.get(node.op_type, ())
            if shifts and any(depends.get(value, 0) & bits[node] for value in gradients):
                yield node.outputs[0], None
        beside = [
            (node, {root_of(value) for value in node.inputs if value is not None}) for node, _ in readers[parameter]
        ]
        for first, second in _factors(gradients):
            for own, other in ((first, second), (second, first)):
                for node, roots in beside:
                    if root_of(own) in roots and depends.get(other, 0) & bits[node]:
                        yield node.outputs[0], other


def _readers(parameter: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Yield the nodes that read a parameter, through views of it, and at which input."""
    pending = [parameter]
    while pending:
        for use in pending.pop().uses():
            if use.idx == 0 and is_standard(use.node) and use.node.op_type in _VIEWS:
                pending.append(use.node.outputs[0])
            else:
                yield use.node, use.idx


def _factors(borders: list[ir.Value]) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield the factors of the products that a gradient is a sum of."""
    pending, seen = list(borders), set(borders)
    while pending and len(seen) < _SUMMANDS:
        node = pending.pop().producer()
        row = None if node is None else linearity_of(node)
        if node is None or row is None:
            continue
        if node.op_type.startswith("Scatter"):
            yield node.inputs[1], node.inputs[2]  # type: ignore[misc]  # a scatter has three inputs
        elif len(row.either) > 1:
            for index in row.either:
                yield from ((node.inputs[index], node.inputs[other]) for other in row.either if other > index)  # type: ignore[misc]  # linearity_of saw them
        for index in (*row.together, *row.either):
            value = node.inputs[index] if row.together or node.op_type == "Mul" else None
            if value is not None and value not in seen:
                seen.add(value)
                pending.append(value)


def root_of(value: ir.Value) -> ir.Value:
    """Return what a value is a view of."""
    while True:
        node = value.producer()
        if node is None or not is_standard(node) or node.op_type not in _VIEWS or node.inputs[0] is None:
            return value
        value = node.inputs[0]
