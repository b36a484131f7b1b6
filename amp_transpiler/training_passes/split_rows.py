"""Computes losses over many classes, of 16-bit scores, for one part of the samples after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.graph.walk import bodies
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["SplitRows"]

_LARGE = 1 << 24  # elements: 64 MB in float32. Below that, launching more kernels costs more than it is worth
_SMALL = 64  # times
_PARTS = 4
_FLOAT = ir.DataType.FLOAT
_ELEMENTWISE = frozenset({"Abs", "Add", "Cast", "Div", "Equal", "Exp", "Mul", "Neg", "Not", "Sqrt", "Sub", "Where"})
_ALONG_AXIS = {"GatherElements": 0, "LogSoftmax": -1, "ScatterElements": 0, "Softmax": -1}  # with the default axis
_PICKS = ("GatherElements", "ScatterElements")
_SOFTMAX_BY_AXIS = 13  # the opset from which Softmax has one axis


class SplitRows(Pass[PassResult]):
    """Computes large float32 islands that pick by labels for some rows at a time; counts the islands.

    A cross entropy over a large vocabulary is such an island, and so is its gradient: between 16-bit scores and a loss
    or a 16-bit gradient there are float32 tensors of twice their size, where a step needs the most memory anyway. A
    part of the rows needs a part of these: with four, a result and what it is computed of take as much as the scores.

    1. An island begins with a cast from 16 bits to float32 and has only nodes that compute each row (index along the
       first axis) by itself, one that reads or writes by index among them. It ends in casts to 16 bits, in small
       results and in sums over the rows.
    2. Each part is computed from a slice of what the island reads. Results are joined, sums are added.

    All values are the same, to the bit, but for the sums over rows. Shapes must be inferred. Only the main graph is
    edited.

    Args:
        large: the number of elements from which a value counts as large.
    """

    def __init__(self, large: int = _LARGE) -> None:
        self._large = large

    def call(self, model: ir.Model) -> PassResult:
        names, count, done = NameAllocator(model), 0, set[ir.Node]()
        for node in list(model.graph):
            if node in done or not _is_start(node, self._large):
                continue
            island = _Island.grow(model, node)
            if island.is_worth_it(self._large):
                done.update(island.nodes)
                island.split(GraphBuilder(model, names=names, before=island.nodes[0]))
                count += 1
        if count:  # what reads a result may stand before the last node of an island
            model.graph.sort()
        return PassResult(model, modified=bool(count), count=count)


def _is_start(node: ir.Node, large: int) -> bool:
    if node.op_type != "Cast" or not is_standard(node) or role_of(node) == "optimize":
        return False
    value = node.outputs[0]
    sizes = _sizes(value)
    is_widening = value.dtype == _FLOAT and node.inputs[0] is not None and node.inputs[0].dtype in LOW_DTYPES
    return is_widening and sizes is not None and len(sizes) > 1 and sizes[0] >= _PARTS and math.prod(sizes) >= large


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    return shape_of(value) if value is not None and is_static(value) else None


class _Island:
    """Nodes that compute rows independently of each other, in the graph's order.

    Attributes:
        nodes: the nodes.
        rows: how many rows there are.
        outputs: results by rows that others read, and sums over the rows.
    """

    def __init__(self, model: ir.Model, start: ir.Node, rows: int) -> None:
        self._opset = model.graph.opset_imports.get("", 0)
        self._most = math.prod(shape_of(start.outputs[0]))
        self.rows = rows
        self.nodes = [start]
        self._values = {start.outputs[0]}
        self._sums: set[ir.Value] = set()
        self.outputs: list[ir.Value] = []
        self._borders = [rows * part // _PARTS for part in range(_PARTS + 1)]
        self._cuts: dict[tuple[ir.Value, int], tuple[ir.Value, ...]] = {}

    @classmethod
    def grow(cls, model: ir.Model, start: ir.Node) -> _Island:
        """Return the largest island that begins with `start`."""
        sizes = _sizes(start.outputs[0])
        assert sizes is not None
        island = cls(model, start, sizes[0])
        following = iter(model.graph)
        while next(following) is not start:
            pass
        for node in following:
            if any(value in island._values or value in island._sums for value in _reads(node)):
                island._take(node)
        island._leave_small_ends()
        island._find_outputs()
        return island

    def _take(self, node: ir.Node) -> None:
        """Add a node if it computes by rows, or sums them."""
        if len(node.outputs) != 1 or not is_standard(node) or any(value in self._sums for value in node.inputs):
            return
        if self._sums_rows(node):
            self._sums.add(node.outputs[0])
        elif self._is_by_rows(node):
            self._values.add(node.outputs[0])
        else:
            return
        self.nodes.append(node)

    def _is_small(self, value: ir.Value | None) -> bool:
        """Whether a value is so small beside the first one that it is joined again rather than computed in parts."""
        sizes = _sizes(value)
        return sizes is not None and math.prod(sizes) * _SMALL <= self._most

    def _sums_rows(self, node: ir.Node) -> bool:
        if self._weighs_rows(node):
            return True
        if node.op_type != "ReduceSum":
            return False
        if len(node.inputs) < 2 or node.inputs[1] is None:
            return "noop_with_empty_axes" not in node.attributes  # over all axes
        axes = constant_of(node.inputs[1])
        return axes is not None and 0 in axes.numpy()

    def _weighs_rows(self, node: ir.Node) -> bool:
        """Whether a node multiplies a row of weights with all rows: a sum of weighted rows."""
        if node.op_type != "MatMul" or node.inputs[1] not in self._values or node.inputs[0] in self._values:
            return False
        return _sizes(node.inputs[0]) == (1, self.rows)

    def _is_by_rows(self, node: ir.Node) -> bool:
        sizes = _sizes(node.outputs[0])
        if sizes is None or len(sizes) < 2 or sizes[0] != self.rows:
            return False
        if node.op_type in _ALONG_AXIS:
            attribute = node.attributes.get("axis")
            axis = _ALONG_AXIS[node.op_type] if attribute is None else attribute.as_int()
            by_axis = "Softmax" not in node.op_type or self._opset >= _SOFTMAX_BY_AXIS
            has_rows = all(_sizes(value) is not None and _rows_of(value) == self.rows for value in node.inputs)
            return has_rows and by_axis and axis % len(sizes) != 0 and node.inputs[0] in self._values
        if node.op_type not in _ELEMENTWISE or (node.op_type == "Cast" and node.inputs[0] not in self._values):
            return False
        return all(_sizes(value) is not None for value in node.inputs)

    def _leave_small_ends(self) -> None:
        """Drop the nodes that compute small values of small ones, and that nothing else in the island needs."""
        inside = set(self.nodes)
        for node in reversed(self.nodes[1:]):
            inputs = [value for value in node.inputs if value in self._values]
            needed = any(use.node in inside for use in node.outputs[0].uses())
            if not needed and all(map(self._is_small, (*inputs, *node.outputs))):
                inside.remove(node)
                self._values.discard(node.outputs[0])
                self._sums.discard(node.outputs[0])
        self.nodes = [node for node in self.nodes if node in inside]

    def _find_outputs(self) -> None:
        inside = set(self.nodes)
        for node in self.nodes:
            value = node.outputs[0]
            if value.is_graph_output() or any(use.node not in inside for use in value.uses()):
                self.outputs.append(value)

    def is_worth_it(self, large: int) -> bool:
        """Whether it picks by labels, has float32 results of float32 ones, and no large one is needed as a whole."""
        if not any(node.op_type in _PICKS for node in self.nodes):
            return False
        wide = [value for value in self._values if value.dtype == _FLOAT and math.prod(shape_of(value)) >= large]
        return len(wide) > 1 and not any(value in wide for value in self.outputs)

    def split(self, builder: GraphBuilder) -> None:
        """Replace the nodes by copies for a part of the rows each."""
        copies = [self._copy(builder, part) for part in range(_PARTS)]
        for value in self.outputs:
            node = value.producer()
            assert node is not None
            builder.metadata = dict(node.metadata_props)
            parts = [copy[value] for copy in copies]
            # No Add: ONNX Runtime would fuse it with a product, which then runs after much else.
            joined = builder.op("Sum", parts) if value in self._sums else builder.concat(parts, 0)
            take_over(value, joined, builder.names)
        assert builder.graph is not None
        for node in reversed(self.nodes):
            builder.graph.remove(node, safe=True)

    def _copy(self, builder: GraphBuilder, part: int) -> dict[ir.Value, ir.Value]:
        """Write the nodes for a part of the rows; return what stands for each value there."""
        copies: dict[ir.Value, ir.Value] = {}
        for node in self.nodes:
            builder.metadata = dict(node.metadata_props)
            inputs = [self._operand(builder, node, value, copies, part) for value in node.inputs]
            (copies[node.outputs[0]],) = builder.nodes(node.op_type, inputs, _attributes(node))
        return copies

    def _operand(
        self,
        builder: GraphBuilder,
        node: ir.Node,
        value: ir.Value | None,
        copies: dict[ir.Value, ir.Value],
        part: int,
    ) -> ir.Value | None:
        """Return what the copy of `node` reads in the place of `value`: of a tensor with rows, those of the part."""
        if value is None or value in copies:
            return None if value is None else copies[value]
        if self._weighs_rows(node):
            return self._cut(builder, value, 1, part)
        sizes, of_result = _sizes(value), _sizes(node.outputs[0])
        has_rows = sizes is not None and sizes[:1] == (self.rows,)
        if node.outputs[0] in self._sums or not has_rows or len(sizes or ()) < len(of_result or ()):
            return value  # axes of a sum, or what is the same for all rows
        copies[value] = self._cut(builder, value, 0, part)
        return copies[value]

    def _cut(self, builder: GraphBuilder, value: ir.Value, axis: int, part: int) -> ir.Value:
        """Return a part of a value along the axis of its rows: of a small one, all parts are cut at once."""
        if not self._is_small(value):
            return builder.slice(value, [self._borders[part]], [self._borders[part + 1]], [axis])
        if (value, axis) not in self._cuts:
            sizes = builder.constant(np.diff(np.array(self._borders, np.int64)))
            self._cuts[value, axis] = builder.nodes("Split", [value, sizes], {"axis": axis}, outputs=_PARTS)
        return self._cuts[value, axis][part]


def _rows_of(value: ir.Value | None) -> int | None:
    sizes = _sizes(value)
    return sizes[0] if sizes else None


def _attributes(node: ir.Node) -> dict[str, object]:
    return {name: attribute.value for name, attribute in node.attributes.items()}


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node and its bodies read."""
    yield from (value for value in node.inputs if value is not None)
    for _, body in bodies(node):
        for inner in body:
            yield from _reads(inner)
