"""Places casts of a training step next to their readers, so that nothing is kept in two precisions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from amp_transpiler.graph.builder import is_static, shape_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.tensors import element_bytes
from amp_transpiler.graph.walk import bodies
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["VIEWS", "PlaceCasts"]

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that only change the shape: ONNX Runtime lets their result share the input's memory."""

_LARGE = 1 << 24  # elements: 32 MB in 16 bits
_SPARE = 16  # one part in so many of the inputs' bytes may be kept twice: a launch less for next to no memory
_MOVES = VIEWS | {"Transpose"}
_FLOAT = ir.DataType.FLOAT


class PlaceCasts(Pass[PassResult]):
    """Keeps values from the forward pass for the backward pass in one precision only; counts the edits.

    Every value stays the same, to the bit.

    1. Equal casts become one. A cast behind a Transpose or Reshape of a value that is cast anyway goes before it.
    2. What the forward pass casts from 16 bits to float32 and the backward pass reads again is cast again there: the
       16-bit value is kept, of half the size.
    3. What the forward pass casts to 16 bits and the backward pass reads again is cast again there if the float32
       value is there anyway: a result that the backward pass reads in float32 too, or a large parameter, such as a
       table of words. Other parameters are cast once a step.
    4. The smallest of these are not cast again: together they take a sixteenth of the inputs' memory at most.

    Only the main graph is edited. A program without a backward pass, or without casts, is not.
    """

    def call(self, model: ir.Model) -> PassResult:
        nodes = list(model.graph)
        if not any(role_of(node) == "backward" for node in nodes):
            return PassResult(model, modified=False)
        count = _merge_equal(model.graph) + _move_ahead(model.graph)
        count += _Placing(model).run()
        return PassResult(model, modified=bool(count), count=count)


def _casts(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield the casts between float32 and 16 bits."""
    for node in nodes:
        if node.op_type == "Cast" and is_standard(node) and node.inputs[0] is not None:
            kinds = node.inputs[0].dtype, node.outputs[0].dtype
            if _FLOAT in kinds and any(kind in LOW_DTYPES for kind in kinds):
                yield node


def _merge_equal(graph: ir.Graph) -> int:
    """Let the first of equal casts stand for the others."""
    first: dict[tuple[ir.Value | None, ir.DataType | None], ir.Value] = {}
    count = 0
    for node in list(_casts(graph)):
        value = node.outputs[0]
        first_value = first.setdefault((node.inputs[0], value.dtype), value)
        if first_value is not value and not value.is_graph_output():
            _replace(node, first_value)
            count += 1
    return count


def _move_ahead(graph: ir.Graph) -> int:
    """Turn the casts of a moved value into movements of the cast value, where that is there already."""
    cast_of = {(node.inputs[0], node.outputs[0].dtype): node.outputs[0] for node in _casts(graph)}
    seen: set[ir.Node | None] = set()  # a cast that comes later than the movement is no help to it
    count = 0
    for node in list(graph):
        seen.add(node)
        moved, source = node.outputs[0], node.inputs[0] if node.inputs else None
        if node.op_type not in _MOVES or not is_standard(node) or moved.is_graph_output():
            continue
        readers = [use.node for use in moved.uses()]
        dtypes = {reader.outputs[0].dtype for reader in readers}
        if not readers or len(list(_casts(readers))) != len(readers) or len(dtypes) > 1:
            continue
        low = cast_of.get((source, readers[0].outputs[0].dtype))
        if low is None or low.producer() not in seen or any(reader.outputs[0].is_graph_output() for reader in readers):
            continue
        node.replace_input_with(0, low)
        moved.type = low.type
        for reader in readers:
            _replace(reader, moved)
        count += 1
    return count


def _replace(node: ir.Node, value: ir.Value) -> None:
    """Remove a node; its readers read `value` instead."""
    node.outputs[0].replace_all_uses_with(value)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


class _Placing:
    def __init__(self, model: ir.Model) -> None:
        self._names = NameAllocator(model)
        self._inputs = list(model.graph.inputs)
        self._nodes = list(model.graph)
        self._index = {node: index for index, node in enumerate(self._nodes)}
        # By place, not by role: casts that a conversion put into the backward pass have none.
        self._border = next(index for index, node in enumerate(self._nodes) if role_of(node) == "backward")
        self._memory: dict[ir.Value, ir.Value] = {}
        self._last: dict[ir.Value, int] = {}
        for index, node in enumerate(self._nodes):
            if node.op_type in VIEWS and node.inputs[0] is not None:
                self._memory[node.outputs[0]] = self._held(node.inputs[0])
            for value in _reads(node):
                self._last[self._held(value)] = index
        for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
            self._last[self._held(value)] = len(self._nodes)

    def _held(self, value: ir.Value) -> ir.Value:
        """Return the value whose memory holds `value`."""
        return self._memory.get(value, value)

    def run(self) -> int:
        """Cast again in the backward pass what is better not kept; return how many times."""
        casts = [*_casts(self._nodes[: self._border])]
        widening = [node for node in casts if node.outputs[0].dtype == _FLOAT]
        narrowing = [node for node in casts if node.outputs[0].dtype != _FLOAT]
        spared = self._spared([cast for cast in (*widening, *narrowing) if self._is_better_again(cast)])
        # The former first: they decide how long 16-bit values, and what these are cast from, are kept.
        count = 0
        for cast in (*widening, *narrowing):
            if cast not in spared and self._is_better_again(cast):
                self._cast_again(cast)
                count += 1
        return count

    def _later(self, cast: ir.Node) -> list[tuple[ir.Node, int]]:
        """Return where the backward pass reads a cast: nodes, and the places of their inputs."""
        return [(node, idx) for node, idx in cast.outputs[0].uses() if self._index.get(node, 0) >= self._border]

    def _is_better_again(self, cast: ir.Node) -> bool:
        value, later = cast.outputs[0], self._later(cast)
        if not later or value.is_graph_output() or cast.inputs[0] is None:
            return False
        held = self._held(cast.inputs[0])
        first = min(self._index[node] for node, _ in later)
        return value.dtype == _FLOAT or (self._last.get(held, -1) >= first and not _is_moderate(held))

    def _spared(self, casts: Sequence[ir.Node]) -> set[ir.Node]:
        """Return the casts whose results are so small that they are kept all the same."""
        budget = sum(filter(None, map(_bytes_of, self._inputs))) // _SPARE
        spared: set[ir.Node] = set()
        for size, cast in sorted(((_bytes_of(cast.outputs[0]), cast) for cast in casts), key=lambda pair: pair[0] or 0):
            if size is not None and size <= budget:
                spared.add(cast)
                budget -= size
        return spared

    def _cast_again(self, cast: ir.Node) -> None:
        assert cast.inputs[0] is not None
        later, held = self._later(cast), self._held(cast.inputs[0])
        first = min(self._index[node] for node, _ in later)
        again = self._copy(cast, self._nodes[first])
        for node, index in later:
            node.replace_input_with(index, again)
        self._last[held] = max(self._last.get(held, -1), first)

    def _copy(self, cast: ir.Node, reader: ir.Node) -> ir.Value:
        """Return the result of a copy of `cast`, put before `reader`."""
        value = cast.outputs[0]
        result = ir.Value(name=self._names.fresh(f"{value.name}__again"), type=value.type, shape=value.shape)
        node = ir.Node(
            "",
            "Cast",
            cast.inputs,
            list(cast.attributes.values()),
            outputs=[result],
            name=self._names.fresh(f"{cast.name}__again"),
            metadata_props=dict(reader.metadata_props),
        )
        reader.prepend(node)
        return result


def _is_moderate(value: ir.Value) -> bool:
    """Whether a value is an input that two casts would cost more than its low copy, kept in between."""
    return value.is_graph_input() and is_static(value) and math.prod(shape_of(value)) < _LARGE


def _bytes_of(value: ir.Value) -> int | None:
    if value.dtype is None or not is_static(value):
        return None
    return int(math.prod(shape_of(value)) * element_bytes(value.dtype))


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node and its bodies read."""
    yield from (value for value in node.inputs if value is not None)
    for _, body in bodies(node):
        for inner in body:
            yield from _reads(inner)
