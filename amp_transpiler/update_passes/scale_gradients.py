"""Lets the products that make gradients multiply them by a factor that an optimizer wants."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, elements_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.match import Binding, bindings, parse_form
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.roles import role_of
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["ScaleGradients"]

_SQUARED = parse_form("Mul(square:Mul(gradient, gradient), rest)")
_LARGE = 1 << 20  # elements of a tensor whose gradient is worth it
_FLOAT = ir.DataType.FLOAT


class ScaleGradients(Pass[PassResult]):
    """Multiplies large float32 gradients by a root in the products that make them, not their squares; counts them.

    Adam's second average wants `(1 - beta2) gradient * gradient`, the first one `(1 - beta1) gradient`: a pass over the
    whole gradient for either factor. A product applies a factor for free. With gradients times `sqrt(1 - beta2)` the
    square needs none, and the other factor is divided by that root.

    1. Only both averages read the gradient, and on the way to it nothing else reads what is scaled; but for other
       slices of a product, such as a bias's gradient, which are divided by the root again.
    2. What is scattered onto the gradient of a look-up's table is multiplied by itself: there are fewer rows.
    3. Numbers differ by float32's rounding of a factor. 16-bit gradients are left: they would be rounded otherwise.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        builder, count = GraphBuilder(model, prefix="root/"), 0
        for node in [node for node in model.graph if node.op_type == "Mul" and role_of(node) == "optimize"]:
            squared = next((each for each in bindings(_SQUARED, node) if _number(each["rest"]) is not None), None)
            way = None if squared is None else _way(squared)
            if squared is not None and way is not None:
                _rewrite(builder, squared, way)
                count += 1
        if count:
            model.graph.sort()
        return PassResult(model, modified=bool(count), count=count)


@dataclasses.dataclass
class _Way:
    """The values to multiply by a root so that a gradient is multiplied by it.

    Attributes:
        products: the results of matrix products.
        scattered: nodes that add their updates to it.
        beside: slices of these products that are no part of it.
    """

    products: list[ir.Value] = dataclasses.field(default_factory=list)
    scattered: list[ir.Node] = dataclasses.field(default_factory=list)
    beside: list[ir.Value] = dataclasses.field(default_factory=list)

    def follow(self, value: ir.Value, readers: set[ir.Node]) -> bool:
        """Add what a value is computed from; return whether that is nothing but scaled products."""
        node = value.producer()
        if node is None or not is_standard(node) or value.dtype != _FLOAT or value.is_graph_output():
            return False
        if {use.node for use in value.uses()} != readers:
            return False
        sources = [source for source in node.inputs if source is not None]
        if node.op_type in ("Identity", "Reshape"):
            return self.follow(sources[0], {node})
        if node.op_type == "Concat":
            return all(self.follow(source, {node}) for source in sources)
        if node.op_type == "ScatterND" and node.attributes.get_string("reduction", "none") == "add":
            self.scattered.append(node)
            return self.follow(sources[0], {node})
        if node.op_type == "Slice":
            return self._follow_slice(node, sources[0])
        self.products.append(value)
        return node.op_type in ("Gemm", "MatMul") and len(sources) == 2 and value not in self.products[:-1]

    def _follow_slice(self, node: ir.Node, source: ir.Value) -> bool:
        others = [use.node for use in source.uses() if use.node is not node]
        if any(other.op_type != "Slice" or not is_standard(other) for other in others):
            return False
        if any(other.outputs[0].is_graph_output() for other in others):
            return False
        self.beside += [other.outputs[0] for other in others]
        maker = source.producer()
        is_product = maker is not None and is_standard(maker) and maker.op_type in ("Gemm", "MatMul")
        return is_product and self.follow(source, {node, *others})


def _number(value: ir.Value) -> float | None:
    tensor = constant_of(value)
    return float(tensor.numpy().reshape(())) if tensor is not None and tensor.size == 1 else None


def _first_average(squared: Binding) -> ir.Node | None:
    """Return the node that multiplies the gradient by a number, if all else that reads it is its square."""
    gradient, square = squared["gradient"], squared.node("square")
    others = {use.node for use in gradient.uses()} - {square}
    node = others.pop() if len(others) == 1 else None
    if node is None or node.op_type != "Mul" or not is_standard(node) or role_of(node) != "optimize":
        return None
    factor = node.inputs[1] if node.inputs[0] is gradient else node.inputs[0]
    return node if factor is not None and _number(factor) is not None else None


def _way(squared: Binding) -> _Way | None:
    """Return what is to be scaled for a gradient; None if it cannot be, or is not worth it."""
    gradient, square, root = squared["gradient"], squared.node("square"), _number(squared["rest"]) or 0.0
    average = _first_average(squared)
    if average is None or root <= 0.0 or (elements_of(gradient) or 0) < _LARGE or len(square.outputs[0].uses()) != 1:
        return None
    way = _Way()
    return way if way.follow(gradient, {square, average}) and not squared.last.outputs[0].is_graph_output() else None


def _rewrite(builder: GraphBuilder, squared: Binding, way: _Way) -> None:
    root, average = math.sqrt(_number(squared["rest"]) or 0.0), _first_average(squared)
    assert average is not None
    index = 1 if average.inputs[0] is squared["gradient"] else 0
    factor = average.inputs[index]
    assert factor is not None
    average.replace_input_with(index, builder.constant((_number(factor) or 0.0) / root, _FLOAT))
    for value, scale in (*((each, root) for each in way.products), *((each, 1.0 / root) for each in way.beside)):
        _scale_result(builder, value, scale)
    for node in way.scattered:
        builder.before, builder.metadata = node, dict(node.metadata_props)
        updates = node.inputs[2]
        assert updates is not None
        node.replace_input_with(2, builder.mul(updates, root))
    squared.last.outputs[0].replace_all_uses_with(squared.node("square").outputs[0])
    remove_unread(squared.last)


def _scale_result(builder: GraphBuilder, value: ir.Value, scale: float) -> None:
    """Multiply a value for all that read it: a Gemm does so by itself, a MatMul's factor is fused later."""
    node = value.producer()
    assert node is not None
    if node.op_type == "Gemm":
        node.attributes["alpha"] = ir.AttrFloat32("alpha", node.attributes.get_float("alpha", 1.0) * scale)
        return
    uses = list(value.uses())
    builder.before, builder.metadata = uses[0].node, dict(node.metadata_props)
    scaled = builder.mul(value, scale)
    for use in uses:
        use.node.replace_input_with(use.idx, scaled)
