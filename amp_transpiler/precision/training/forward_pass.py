"""Finds the forward pass of a training step: the values that do not depend on where the backward pass begins."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.training_step import TrainingStep
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.training.linearity import linearity_of
from amp_transpiler.precision.training.operators import reads

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
    yield from reads(node)


def ancestors(values: Iterable[ir.Value], known: Collection[ir.Value] = ()) -> set[ir.Value]:
    """Return the values, and all that they are computed from; those in `known`, and their own, are left out."""
    above: set[ir.Value] = set()
    pending = [value for value in values if value not in known]
    while pending:
        value = pending.pop()
        if value in above:
            continue
        above.add(value)
        node = value.producer()
        if node is not None:
            pending.extend(other for other in inputs_of(node) if other not in above and other not in known)
    return above


def forward_values(graph: ir.Graph, step: TrainingStep) -> set[ir.Value]:
    """Return the values of the forward pass, as far as it is known where it ends.

    It goes as far as the operators that read the parameters: of the two factors of a parameter's gradient, one is what
    such an operator reads besides the parameter, and the other depends on its result. It goes on to every output that
    depends on neither a gradient nor such another factor, as the loss does.

    Args:
        graph: the main graph.
        step: its states and gradients.
    """
    inputs = {str(value.name): value for value in (*graph.inputs, *graph.initializers.values())}
    by_name = {str(value.name): value for node in graph for value in node.outputs}
    borders = {
        inputs[name]: [by_name[border] for border in borders_of_state if border in by_name]
        for name, borders_of_state in step.gradients.items()
        if name in inputs
    }
    forward: set[ir.Value] = set()
    backward = {value for borders_of_state in borders.values() for value in borders_of_state}
    for result, other in _forward_products(graph, borders):
        forward |= ancestors([result], forward)
        backward.update(() if other is None else (other,))
    below = _marked(graph, dict.fromkeys(backward - forward, 1))
    states = {state.output for state in step.states if state.role != "statistic"}
    ends = (value for value in graph.outputs if value.name not in states and value not in below)
    return forward | ancestors(ends, forward)


def _marked(graph: ir.Graph, marks: Mapping[ir.Value, int]) -> dict[ir.Value, int]:
    """Return, for every value that depends on marked ones, their marks: bits of one number."""
    marked = dict(marks)
    for node in graph:
        bits = 0
        for value in inputs_of(node):
            bits |= marked.get(value, 0)
        if bits:
            for value in node.outputs:
                marked[value] = marked.get(value, 0) | bits
    return marked


def heights(graph: ir.Graph, forward: Collection[ir.Value]) -> dict[ir.Value, int]:
    """Return, for every computed value, the length of the longest way into the part of the forward pass that it reads.

    A gradient depends on values of the forward pass that come later than whatever it is multiplied with.
    """
    heights_below: dict[ir.Value, int] = {}
    for node in graph:
        below = max((heights_below.get(value, 0) for value in inputs_of(node)), default=0)
        for value in node.outputs:
            heights_below[value] = below + 1 if value in forward else below
    return heights_below


def _forward_products(
    graph: ir.Graph, borders: Mapping[ir.Value, list[ir.Value]]
) -> Iterator[tuple[ir.Value, ir.Value | None]]:
    """Yield results of the operators of the forward pass that read parameters, each with the other factor, if any."""
    yield from _shifted(graph, borders)
    below = _marked(graph, {parameter: 1 << index for index, parameter in enumerate(borders)})
    pairs = [
        (index, *pair)
        for index, gradients in enumerate(borders.values())
        for first, second in _factors(gradients)
        for pair in ((first, second), (second, first))
    ]
    # The operators that multiply the same factor with something that depends on a parameter.
    roots = {root_of(factor) for _, factor, _ in pairs}
    products: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
    for node in graph:
        operands = [value for value in node.inputs if value is not None]
        for root in roots.intersection(map(root_of, operands)) if len(operands) > 1 else ():
            others = (below.get(value, 0) for value in operands if root_of(value) is not root)
            products.setdefault(root, []).append((node, functools.reduce(operator.or_, others, 0)))
    bits = {
        node: 1 << i for i, node in enumerate(dict.fromkeys(n for readers in products.values() for n, _ in readers))
    }
    depends = _marked(graph, {value: bit for node, bit in bits.items() for value in node.outputs})
    for index, factor, other in pairs:
        for node, marks in products.get(root_of(factor), ()):
            if marks >> index & 1 and depends.get(other, 0) & bits[node]:
                yield _summed(node), other


def _shifted(graph: ir.Graph, borders: Mapping[ir.Value, list[ir.Value]]) -> Iterator[tuple[ir.Value, None]]:
    """Yield the results of the operators that add a parameter and that its gradient depends on."""
    readers = {
        parameter: [node for node, index in _readers(parameter) if index in _SHIFTS.get(node.op_type, ())]
        for parameter in borders
    }
    bits = {node: 1 << i for i, node in enumerate(dict.fromkeys(n for adders in readers.values() for n in adders))}
    depends = _marked(graph, {value: bit for node, bit in bits.items() for value in node.outputs})
    for parameter, gradients in borders.items():
        for node in readers[parameter]:
            if any(depends.get(value, 0) & bits[node] for value in gradients):
                yield node.outputs[0], None


def _summed(node: ir.Node) -> ir.Value:
    """Return the result of a product; that of a scalar product is the sum of the elementwise one."""
    result = node.outputs[0]
    uses = list(result.uses())
    if node.op_type == "Mul" and len(uses) == 1 and uses[0].node.op_type in ("ReduceSum", "ReduceMean"):
        return uses[0].node.outputs[0]
    return result


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
        operands = [value for index in row.either if (value := node.inputs[index]) is not None]
        computed = [value for value in operands if constant_of(value) is None]
        yield from itertools.combinations(computed, 2)
        if row.together or len(computed) == 1:
            together = (node.inputs[index] for index in row.together if index < len(node.inputs))
            new = [value for value in (*together, *computed) if value is not None and value not in seen]
            seen.update(new)
            pending.extend(new)


def root_of(value: ir.Value) -> ir.Value:
    """Return what a value is a view of."""
    while True:
        node = value.producer()
        if node is None or not is_standard(node) or node.op_type not in _VIEWS or node.inputs[0] is None:
            return value
        value = node.inputs[0]
