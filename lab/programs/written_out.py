"""Counts operators that a model writes out in several nodes, from ONNX's protos alone.

It is a reference for the fusions of the package and shares no code with them: it follows names from one characteristic
node each, a root, an Erf, a Tanh or a Softmax, and asks what the definition of the operator asks for. Normalisations
are counted over the last axis alone, since ONNX's operators have no other; their variance may be the mean of squares
without the square of the mean, as JAX writes it.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.inliner import inline_local_functions

__all__ = ["KINDS", "written_out"]

KINDS = ("LayerNormalization", "RMSNormalization", "Gelu", "Attention")
_PASSES = ("Cast", "Identity", "Dropout")


def written_out(proto: onnx.ModelProto) -> dict[str, int]:
    """Return how many operators of each kind the main graph of a model writes out."""
    graph = _Graph(inline_local_functions(proto) if proto.functions else proto)
    counts = dict.fromkeys(KINDS, 0)
    for node in graph.nodes:
        kind = _kind(graph, node)
        if kind:
            counts[kind] += 1
    return counts


class _Graph:
    """The main graph of a model: makers, readers, constants and ranks by name."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.nodes = list(proto.graph.node)
        self.makers = {name: node for node in self.nodes for name in node.output}
        self.readers: dict[str, list[onnx.NodeProto]] = collections.defaultdict(list)
        for node in self.nodes:
            for name in node.input:
                self.readers[name].append(node)
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant":
                self._note_constant(node)
        self.ranks = _ranks(proto)

    def _note_constant(self, node: onnx.NodeProto) -> None:
        for attribute in node.attribute:
            if attribute.name == "value":
                self.constants[node.output[0]] = numpy_helper.to_array(attribute.t)
            elif attribute.name.startswith("value_"):
                self.constants[node.output[0]] = np.asarray(onnx.helper.get_attribute_value(attribute))

    def origin(self, name: str) -> str:
        """Return the value that a name stands for, before casts and copies."""
        while (maker := self.makers.get(name)) is not None and maker.op_type in _PASSES:
            name = maker.input[0]
        return name

    def maker(self, name: str, *operators: str) -> onnx.NodeProto | None:
        """Return what computes a value, if it is one of some operators."""
        maker = self.makers.get(self.origin(name))
        return maker if maker is not None and maker.op_type in operators else None

    def number(self, name: str) -> float | None:
        """Return a constant of one element."""
        array = self.constants.get(self.origin(name))
        return None if array is None or array.size != 1 else float(array.reshape(-1)[0])

    def users(self, name: str) -> Iterator[onnx.NodeProto]:
        """Yield what reads a value, through casts and copies."""
        for node in self.readers[name]:
            if node.op_type in _PASSES:
                yield from self.users(node.output[0])
            else:
                yield node

    def is_over_the_last_axis(self, node: onnx.NodeProto) -> bool:
        """Whether a reduction is over the last axis alone."""
        axes = next((list(attribute.ints) for attribute in node.attribute if attribute.name == "axes"), None)
        if axes is None and len(node.input) > 1:
            array = self.constants.get(self.origin(node.input[1]))
            axes = None if array is None else [int(axis) for axis in array.reshape(-1)]
        return axes == [-1] or (axes is not None and axes == [self.ranks.get(node.input[0], 0) - 1])


def _ranks(proto: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(proto).graph
    infos = (*inferred.value_info, *inferred.input, *inferred.output)
    return {info.name: len(info.type.tensor_type.shape.dim) for info in infos if info.type.HasField("tensor_type")}


def _kind(graph: _Graph, node: onnx.NodeProto) -> str:
    if node.op_type in ("Sqrt", "Pow"):
        return _normalisation(graph, node)
    if node.op_type in ("Erf", "Tanh"):
        return "Gelu" if _is_gelu(graph, node) else ""
    return "Attention" if node.op_type == "Softmax" and _is_attention(graph, node) else ""


def _normalisation(graph: _Graph, root: onnx.NodeProto) -> str:
    """Return the kind of normalisation that a root is the divisor of; empty for none."""
    if root.op_type == "Pow" and graph.number(root.input[1]) not in (0.5, -0.5):
        return ""
    total = graph.maker(root.input[0], "Add")
    if total is None:
        return ""
    if any(_is_difference_of_means(graph, name) for name in total.input):
        return "LayerNormalization"
    mean = next((mean_node for name in total.input if (mean_node := graph.maker(name, "ReduceMean")) is not None), None)
    if mean is None or not graph.is_over_the_last_axis(mean):
        return ""
    squared = _squared(graph, mean.input[0])
    if squared is None or not _divides(graph, root.output[0], squared):
        return ""
    centred = graph.maker(squared, "Sub")
    if centred is None:
        return "RMSNormalization"
    middle = graph.maker(centred.input[1], "ReduceMean")
    is_mean = middle is not None and graph.origin(middle.input[0]) == graph.origin(centred.input[0])
    return "LayerNormalization" if is_mean else "RMSNormalization"


def _is_difference_of_means(graph: _Graph, name: str) -> bool:
    """Whether a value is the mean of squares of a value without the square of its mean, perhaps not below 0."""
    difference = graph.maker(_behind_views(graph, name), "Sub")
    if difference is None:
        return False
    squares, mean = _averaged(graph, difference.input[0]), _squared(graph, difference.input[1])
    plain = None if mean is None else _averaged(graph, mean)
    return squares is not None and plain is not None and _squared(graph, squares) == graph.origin(plain)


def _behind_views(graph: _Graph, name: str) -> str:
    """Return what a value is made of by views, and by what keeps it from being negative."""
    while (maker := graph.maker(name, "Reshape", "Expand", "Unsqueeze", "Max", "Relu")) is not None:
        floors = [each for each in maker.input if graph.number(each) == 0.0] if maker.op_type == "Max" else []
        if maker.op_type == "Max" and not floors:
            return name
        name = next(each for each in maker.input if each not in floors)
    return name


def _averaged(graph: _Graph, name: str) -> str | None:
    """Return what a value is the mean of, over the last axis: by each operator, or by a sum and a factor."""
    scaled = graph.maker(name, "Mul", "Div")
    factors = [] if scaled is None else [each for each in scaled.input if graph.number(each) is None]
    mean = graph.maker(name, "ReduceMean") or (graph.maker(factors[0], "ReduceSum") if len(factors) == 1 else None)
    return mean.input[0] if mean is not None and graph.is_over_the_last_axis(mean) else None


def _squared(graph: _Graph, name: str) -> str | None:
    """Return what a value is the square of."""
    node = graph.maker(name, "Mul", "Pow")
    if node is None:
        return None
    first, second = map(graph.origin, node.input)
    is_square = first == second if node.op_type == "Mul" else graph.number(second) == 2.0
    return first if is_square else None


def _divides(graph: _Graph, root: str, value: str) -> bool:
    """Whether a value is divided by a root, or multiplied with its reciprocal."""
    for node in graph.users(root):
        if node.op_type in ("Div", "Mul") and value in map(graph.origin, node.input):
            return True
        if node.op_type == "Reciprocal" and _divides(graph, node.output[0], value):
            return True
        if node.op_type == "Div" and graph.number(node.input[0]) == 1.0 and _divides(graph, node.output[0], value):
            return True
    return False


def _is_gelu(graph: _Graph, node: onnx.NodeProto) -> bool:
    x = _of_error_function(graph, node) if node.op_type == "Erf" else _of_tangent(graph, node)
    if x is None:
        return False
    for total in graph.users(node.output[0]):
        if total.op_type == "Add" and 1.0 in map(graph.number, total.input):
            return any({x, 0.5} <= factors for factors in _products(graph, total.output[0], set()))
    return False


def _of_error_function(graph: _Graph, node: onnx.NodeProto) -> str | None:
    scaled = graph.maker(node.input[0], "Div", "Mul")
    if scaled is None:
        return None
    wanted = 2.0**0.5 if scaled.op_type == "Div" else 0.5**0.5
    for value, factor in (scaled.input, reversed(scaled.input)):
        number = graph.number(factor)
        if number is not None and abs(number - wanted) < 1e-3:
            return graph.origin(value)
    return None


def _of_tangent(graph: _Graph, node: onnx.NodeProto) -> str | None:
    """Return x of sqrt(2 / pi) * (x + 0.044715 * x^3), in whatever order: what the cubic's sum adds it to."""
    waiting, left = [node.input[0]], 12
    while waiting and left:
        left -= 1
        maker = graph.makers.get(graph.origin(waiting.pop(0)))
        if maker is None:
            continue
        if maker.op_type == "Add" and any(_has_cubic_factor(graph, name, 4) for name in maker.input):
            plain = [name for name in maker.input if not _has_cubic_factor(graph, name, 4)]
            if len(plain) == 1 and graph.number(plain[0]) is None:
                return graph.origin(plain[0])
            if len(plain) == 1:  # x * (1 + 0.044715 * x^2)
                users = [user for user in graph.users(maker.output[0]) if user.op_type == "Mul"]
                others = [name for user in users for name in user.input if graph.origin(name) != maker.output[0]]
                return next((_factor(graph, name) for name in others if graph.number(name) is None), None)
        waiting += maker.input
    return None


def _factor(graph: _Graph, name: str) -> str:
    """Return a value without a number that it is multiplied with."""
    product = graph.maker(name, "Mul")
    plain = [] if product is None else [each for each in product.input if graph.number(each) is None]
    return graph.origin(plain[0] if len(plain) == 1 else name)


def _has_cubic_factor(graph: _Graph, name: str, depth: int) -> bool:
    number = graph.number(name)
    if number is not None:
        return abs(number - 0.044715) < 1e-4
    maker = graph.maker(name, "Mul")
    return maker is not None and depth > 0 and any(_has_cubic_factor(graph, each, depth - 1) for each in maker.input)


def _products(graph: _Graph, name: str, known: set[object]) -> Iterator[set[object]]:
    """Yield the factors that a value is multiplied with, for each product of at most three that it is part of."""
    yield known
    if len(known) > 3:
        return
    for node in graph.users(name):
        if node.op_type == "Mul":
            others = [each for each in node.input if graph.origin(each) != name] or [node.input[0]]
            yield from _products(graph, node.output[0], known | set(_factors(graph, others[0])))
        elif node.op_type == "Div" and graph.number(node.input[1]) == 2.0:
            yield from _products(graph, node.output[0], known | {0.5})


def _factors(graph: _Graph, name: str) -> Iterator[object]:
    number = graph.number(name)
    yield graph.origin(name) if number is None else number
    product = graph.maker(name, "Mul")
    for each in () if product is None else product.input:
        number = graph.number(each)
        yield graph.origin(each) if number is None else number
    half = graph.maker(name, "Div")
    if half is not None and graph.number(half.input[1]) == 2.0:
        yield from (graph.origin(half.input[0]), 0.5)


def _is_attention(graph: _Graph, softmax: onnx.NodeProto) -> bool:
    """Whether scores of a product, scaled and masked, weigh the sum of another product."""
    name, left = softmax.input[0], 8
    while left:
        left -= 1
        maker = graph.makers.get(graph.origin(name))
        if maker is None:
            return False
        if maker.op_type == "MatMul":
            return any(_weighs(graph, softmax.output[0], 3) for _ in (0,))
        if maker.op_type in ("Add", "Mul", "Div", "Sub"):
            name = next((each for each in maker.input if _leads_to_scores(graph, each, 6)), "")
        elif maker.op_type == "Where":
            name = next((each for each in maker.input[1:] if _leads_to_scores(graph, each, 6)), "")
        elif maker.op_type in ("Reshape", "Transpose"):
            name = maker.input[0]
        else:
            return False
        if not name:
            return False
    return False


def _leads_to_scores(graph: _Graph, name: str, depth: int) -> bool:
    maker = graph.makers.get(graph.origin(name))
    if maker is None or not depth or name in graph.constants:
        return False
    if maker.op_type == "MatMul":
        return True
    if maker.op_type not in ("Add", "Mul", "Div", "Sub", "Where", "Reshape"):
        return False
    return any(_leads_to_scores(graph, each, depth - 1) for each in maker.input)


def _weighs(graph: _Graph, name: str, depth: int) -> bool:
    """Whether a value is the first operand of a product, perhaps with holes filled before."""
    for node in graph.users(name):
        if node.op_type == "MatMul" and graph.origin(node.input[0]) == name:
            return True
        if depth and node.op_type in ("Where", "Reshape") and _weighs(graph, node.output[0], depth - 1):
            return True
    return False
