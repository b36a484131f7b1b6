"""The main graph of a typed program as a flow of values: sizes, dependences, and which values are equal."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.shape_inference import sizes_from_inputs
from amp_transpiler.graph.tensors import content_of
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.ops.dtype_attributes import tensor_of
from amp_transpiler.ops.kinds import RANDOM
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.training.operators import COMMUTATIVE, PRODUCTS, kind, reads, updates_statistics

__all__ = ["FREE", "UNKNOWN", "Dataflow"]

FREE = -1  # the number of elements of a value with a size that only the data decide
UNKNOWN = -2

_SMALL = 256  # constants up to this many elements are compared by their contents


class Dataflow:
    """Facts about the values of the main graph.

    Args:
        model: a typed program, nodes in topological order.

    Attributes:
        graph: the main graph.
        position: node -> its place in the order of execution.
        learned: the values that depend on a matrix product or convolution, as gradients and activations do.
    """

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.position = {node: index for index, node in enumerate(model.graph)}
        self._sizes = sizes_from_inputs(model)
        self._numbers = _numbers(model.graph)
        self.learned = self.masks({out: 1 for node in model.graph if kind(node) in PRODUCTS for out in node.outputs})

    def shape(self, value: ir.Value) -> list[int | None] | None:
        """Return the dimensions, None for open ones; None if not even the rank is known."""
        dims = self._sizes.get(str(value.name))
        if dims is None and value.const_value is not None:
            return list(value.const_value.shape.numpy())
        if value.shape is None or (dims is not None and (None not in dims or len(dims) != len(value.shape))):
            return dims
        declared = [size if isinstance(size, int) else None for size in value.shape]
        if dims is None:
            return declared
        return [size if known is None else known for known, size in zip(dims, declared, strict=True)]

    def size(self, value: ir.Value) -> int:
        """Return the number of elements, `FREE` if the data decide it, or `UNKNOWN`."""
        shape = self.shape(value)
        if shape is None:
            return UNKNOWN
        total = 1
        for size in shape:
            if size is None:
                return FREE
            total *= size
        return total

    def number(self, value: ir.Value) -> int:
        """Return a number that values share which are computed alike; float casts make no difference."""
        return self._numbers[value] if value in self._numbers else -1 - id(value)

    def masks(self, seeds: Mapping[ir.Value, int]) -> dict[ir.Value, int]:
        """Return for every value the bits of the values in `seeds` that it depends on, its own included."""
        bits = dict(seeds)
        for node in self.graph:
            if updates_statistics(node):
                for output in node.outputs:
                    _note(bits, output, reads(node, output))
                continue
            mask = 0
            for value in reads(node):
                mask |= bits.get(value, 0)
            if mask:
                for output in node.outputs:
                    bits[output] = bits.get(output, 0) | mask
        return bits

    def above(self, values: Iterable[ir.Value]) -> set[ir.Value]:
        """Return the values that `values` are computed from, themselves included."""
        pending, above = list(values), set()
        while pending:
            value = pending.pop()
            if value in above:
                continue
            above.add(value)
            node = value.producer()
            if node is not None:
                pending.extend(reads(node, value))
        return above


def _note(masks: dict[ir.Value, int], output: ir.Value, sources: Iterable[ir.Value]) -> None:
    mask = 0
    for value in sources:
        mask |= masks.get(value, 0)
    if mask:
        masks[output] = masks.get(output, 0) | mask


def _numbers(graph: ir.Graph) -> dict[ir.Value, int]:
    """Number the values of a graph so that equal computations on equal operands have one number."""
    known: dict[Hashable, int] = {}
    numbers: dict[ir.Value, int] = {}

    def number(value: ir.Value | None) -> int:
        if value is None:
            return -1
        if value not in numbers:
            numbers[value] = known.setdefault(_leaf(value), len(known))
        return numbers[value]

    for node in graph:
        if _is_transparent(node):
            numbers[node.outputs[0]] = number(node.inputs[0])
            continue
        operands = [number(value) for value in node.inputs]
        if is_standard(node) and node.op_type in COMMUTATIVE:
            operands.sort()
        key: Hashable = (node.domain, node.op_type, tuple(operands), _attributes(node))
        if has_bodies(node) or node.op_type in RANDOM or node.op_type == "Constant":
            key = id(node)
        for index, output in enumerate(node.outputs):
            leaf = _leaf(output) if node.op_type == "Constant" else (key, index)
            numbers[output] = known.setdefault(leaf, len(known))
    return numbers


def _leaf(value: ir.Value) -> Hashable:
    tensor = constant_of(value)
    if tensor is None or tensor.size > _SMALL:
        return ("value", id(value))
    return (tensor.dtype, tuple(tensor.shape), content_of(tensor))


def _is_transparent(node: ir.Node) -> bool:
    if not is_standard(node):
        return False
    if node.op_type == "Identity":
        return True
    if node.op_type != "Cast" or node.inputs[0] is None:
        return False
    before, after = node.inputs[0].dtype, node.outputs[0].dtype
    return before is not None and after is not None and before.is_floating_point() and after.is_floating_point()


def _attributes(node: ir.Node) -> Hashable:
    items: list[tuple[str, Hashable]] = []
    for name, attribute in node.attributes.items():
        content: Hashable = attribute.value if not attribute.is_ref() else ("ref", attribute.ref_attr_name)
        if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
            tensor = tensor_of(attribute)
            content = content_of(tensor) if tensor.size <= _SMALL else id(tensor)
        elif isinstance(content, list | tuple):
            content = tuple(content)
        items.append((name, content))
    return tuple(sorted(items, key=lambda item: item[0]))
