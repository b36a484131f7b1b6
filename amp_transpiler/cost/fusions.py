"""Predicts what ONNX Runtime's CUDA provider makes of a model before it runs: fused operators, and nodes that vanish.

At its default level of optimization. Fused operators are rows: the forms in which exporters write an operator, and
what an operator takes in from its neighbours. They were counted on the models of the corpus.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal

import onnx_ir as ir

from amp_transpiler.cost.fused_patterns import LAYER_NORM, PATTERNS, RMS_NORM, RMS_NORM_BY_RECIPROCAL
from amp_transpiler.cost.shapes import Sizes
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.match import Call, match_at, only_read_within, parse_form
from amp_transpiler.graph.tensors import content_of
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.ops.kinds import RANDOM
from amp_transpiler.ops.names import is_standard

__all__ = ["NO_PLAN", "Fused", "Plan", "joined", "plan_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Fused:
    """Describes nodes that become one operator.

    Attributes:
        name: the operator.
        nodes: all of them.
        anchor: the one that computes most: a product, or the last.
        last: the one whose results are those of the whole.
    """

    name: str
    nodes: frozenset[ir.Node]
    anchor: ir.Node
    last: ir.Node


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Says what becomes of the nodes of a model.

    Attributes:
        gone: nodes that never run: computed only from constants, computed twice, or without effect.
        fused: groups of nodes that run as one; no node is in two.
        constants: values that are computed only from constants.
    """

    gone: frozenset[ir.Node]
    fused: tuple[Fused, ...]
    constants: frozenset[ir.Value] = frozenset()


NO_PLAN = Plan(frozenset(), ())


# ---- operators that are written as several nodes ----
_GELUS = {"a tanh GELU": "FastGelu", "a GELU": "Gelu", "a SiLU": "QuickGelu"}
_FORMS: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("LayerNormalization", LAYER_NORM, False),
    ("SimplifiedLayerNormalization", RMS_NORM, False),
    ("SimplifiedLayerNormalization", RMS_NORM_BY_RECIPROCAL, True),
    *((_GELUS[pattern.name], pattern.forms, False) for pattern in PATTERNS if pattern.name in _GELUS),
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """A form of an operator.

    Attributes:
        name: the operator.
        term: the form.
        makers: operators that make the inputs of its last node.
        written: it is fused only in files that this package writes.
    """

    name: str
    term: Call
    makers: frozenset[str]
    written: bool


_ENDS: dict[str, list[_Form]] = {}
for _name, _texts, _written in _FORMS:
    for _term in map(parse_form, _texts):
        _makers = frozenset(term.op_type for term in _term.arguments if isinstance(term, Call))
        _ENDS.setdefault(_term.op_type, []).append(_Form(_name, _term, _makers, _written))


class _Planner:
    """Works out a plan, graph by graph."""

    def __init__(self, sizes: Sizes, *, written: bool, spreads_biases: bool) -> None:
        self.sizes, self.written, self.spreads_biases = sizes, written, spreads_biases
        self.gone: set[ir.Node] = set()
        self.constants: set[ir.Value] = set()
        self.fused: dict[ir.Node, Fused] = {}  # by each of its nodes

    def is_constant(self, value: ir.Value) -> bool:
        return value in self.constants or constant_of(value) is not None

    def kind_of(self, value: ir.Value) -> Literal["number", "constant", ""]:
        if not self.is_constant(value):
            return ""
        return "number" if self.sizes.elements(value) == 1 else "constant"

    def plan(self, nodes: Iterable[ir.Node]) -> None:
        nodes = list(nodes)
        self._vanish(nodes)
        remaining = [node for node in nodes if node not in self.gone]
        for node in reversed(remaining):  # what ends later may hold what ends before
            self._find_form(node)
        for node in remaining:
            tried: set[_TakesIn] = set()
            while rows := [row for row in _TAKES_IN.get(self._name(node), ()) if row not in tried]:
                tried.add(rows[0])
                self._take_in(node, rows[0])

    # ---- nodes that vanish ----
    def _vanish(self, nodes: list[ir.Node]) -> None:
        seen: dict[object, ir.Node] = {}
        same = _Same()
        for node in nodes:
            inputs = [value for value in node.inputs if value is not None]
            if node.op_type == "Shape" and self._is_fixed(inputs[0]):
                self.constants.update(node.outputs)
            if _has_no_effect(node, self.sizes):
                self.gone.add(node)
                same.join(node.outputs[0], inputs[0])
                if self.is_constant(inputs[0]):
                    self.constants.add(node.outputs[0])
                continue
            if has_bodies(node) or node.op_type in RANDOM or node.op_type in _QUANTIZED:
                continue
            if inputs and all(map(self.is_constant, inputs)):
                self.constants.update(node.outputs)
                self.gone.add(node)
                continue
            key = _key(node, same)
            first = None if key is None else seen.setdefault(key, node)
            if first is not None and first is not node and not any(value.is_graph_output() for value in node.outputs):
                self.gone.add(node)
                for mine, other in zip(node.outputs, first.outputs, strict=False):
                    same.join(mine, other)

    def _is_fixed(self, value: ir.Value) -> bool:
        """Whether the shape of a value is the same in every run, and ONNX Runtime knows it: as of sizes themselves."""
        if value.shape is not None:
            return all(isinstance(size, int) for size in value.shape)
        sizes = self.sizes.shape(value)
        if self.written and not self.sizes.is_open and sizes is not None:
            return True
        return (
            self.sizes.dtype(value) == ir.DataType.INT64
            and sizes is not None
            and len(sizes) == 1
            and sizes[0] <= _MOST_DIMENSIONS
        )

    # ---- nodes that become one ----
    def _name(self, node: ir.Node) -> str:
        """Return the operator that a node is, or is the main part of."""
        fused = self.fused.get(node)
        if fused is None:
            return node.op_type
        return fused.name if fused.anchor is node else ""

    def _find_form(self, node: ir.Node) -> None:
        if node.op_type not in _ENDS or not is_standard(node):
            return
        makers = {maker.op_type for value in node.inputs if value is not None and (maker := value.producer())}
        for form in _ENDS[node.op_type]:
            if not form.makers <= makers or (form.written and not self.written):
                continue
            matched = match_at(form.term, node, self.kind_of)
            if matched is not None and not any(member in self.fused for member in matched):
                self._join(Fused(form.name, matched, node, node))
                return

    def _take_in(self, node: ir.Node, row: _TakesIn) -> None:
        fused = self.fused.get(node, Fused(node.op_type, frozenset((node,)), node, node))
        for other in row.neighbours(self, fused):
            if other in self.fused or other in self.gone or not is_standard(other):
                continue
            nodes = fused.nodes | {other}
            last = other if row.after else fused.last
            if only_read_within(nodes, last):
                fused = Fused(row.becomes, nodes, fused.anchor, last)
        if len(fused.nodes) > 1:
            self._join(fused)

    def _join(self, fused: Fused) -> None:
        self.fused.update(dict.fromkeys(fused.nodes, fused))


_MOST_DIMENSIONS = 8
_SMALL = 64  # elements of constants that are compared
_QUANTIZED = frozenset({"QuantizeLinear", "DequantizeLinear"})
_NEUTRAL: Mapping[str, float] = MappingProxyType({"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0})


def _has_no_effect(node: ir.Node, sizes: Sizes) -> bool:
    """Whether a node hands on its first input as it is."""
    if not is_standard(node) or not node.inputs or node.inputs[0] is None or node.outputs[0].is_graph_output():
        return False
    shape = sizes.shape(node.outputs[0])
    if node.op_type == "Dropout":
        return len(node.inputs) < 3 and not (len(node.outputs) > 1 and node.outputs[1].uses())
    if node.op_type == "Cast":
        return sizes.dtype(node.inputs[0]) == ir.DataType(node.attributes.get_int("to", 0))
    if node.op_type in ("Expand", "Slice", "Tile"):
        is_fixed = all(constant_of(value) is not None for value in node.inputs[1:] if value is not None)
        return is_fixed and shape is not None and shape == sizes.shape(node.inputs[0])
    if node.op_type in _NEUTRAL and len(node.inputs) == 2:
        tensor = constant_of(node.inputs[1])
        is_number = tensor is not None and tensor.size == 1 and shape == sizes.shape(node.inputs[0])
        return is_number and tensor is not None and float(tensor.numpy().reshape(())) == _NEUTRAL[node.op_type]
    return False


class _Same:
    """Knows which values are equal: results of equal nodes, and small constants with the same numbers."""

    def __init__(self) -> None:
        self._first: dict[ir.Value, object] = {}

    def join(self, value: ir.Value, other: ir.Value) -> None:
        self._first[value] = self.of(other)

    def of(self, value: ir.Value | None) -> object:
        """Return what stands for a value and all that equal it."""
        if value is None:
            return None
        if value not in self._first:
            tensor = constant_of(value)
            is_small = tensor is not None and tensor.size <= _SMALL
            self._first[value] = (
                (tensor.dtype, tuple(tensor.shape), content_of(tensor)) if tensor is not None and is_small else value
            )
        return self._first[value]


def _key(node: ir.Node, same: _Same) -> object | None:
    """Return what two nodes that compute the same have in common; None for one that is not compared."""
    attributes = []
    for name, attribute in node.attributes.items():
        if not isinstance(attribute.value, str | int | float | tuple | list):
            return None
        attributes.append((name, str(attribute.value)))
    inputs = tuple(map(same.of, node.inputs))
    return (node.domain, node.op_type, inputs, tuple(sorted(attributes)), len(node.outputs)) if inputs else None


# ---- what operators take in from their neighbours ----
@dataclasses.dataclass(frozen=True, slots=True)
class _TakesIn:
    """Names, as a row, operators that take in a neighbour.

    Attributes:
        becomes: the operator that comes of it.
        neighbours: yields the nodes that may be taken in.
        after: the neighbour reads the operator's result, instead of making what it reads.
    """

    becomes: str
    neighbours: Callable[[_Planner, Fused], Iterator[ir.Node]]
    after: bool = False


def _outside(fused: Fused) -> Iterator[ir.Value]:
    """Yield what a group reads from others."""
    for node in (fused.anchor, *fused.nodes):
        for value in node.inputs:
            if value is not None and value.producer() not in fused.nodes:
                yield value


def _producers(fused: Fused, *op_types: str) -> Iterator[ir.Node]:
    for value in dict.fromkeys(_outside(fused)):
        producer = value.producer()
        if producer is not None and producer.op_type in op_types:
            yield producer


def _reader(fused: Fused, *op_types: str) -> Iterator[ir.Node]:
    """Yield the only node that reads the result of a group."""
    value = fused.last.outputs[0]
    readers = {use.node for use in value.uses()}
    if len(readers) == 1 and not value.is_graph_output():
        yield from (reader for reader in readers if reader.op_type in op_types)


def _bias(planner: _Planner, fused: Fused) -> Iterator[ir.Node]:
    """Yield an addition of a vector of constants."""
    for node in _producers(fused, "Add"):
        for value in node.inputs:
            if value is not None and planner.is_constant(value) and len(planner.sizes.shape(value) or ()) == 1:
                yield node


def _sum(planner: _Planner, fused: Fused) -> Iterator[ir.Node]:
    """Yield an addition of two tensors of one shape, of three dimensions."""
    for node in _producers(fused, "Add"):
        if not (planner.written or all(map(planner.sizes.is_inferred, node.inputs))):
            continue
        shapes = {planner.sizes.shape(value) for value in node.inputs}
        if len(shapes) == 1 and len(next(iter(shapes)) or ()) == 3:
            yield node
            return


def _cast(_: _Planner, fused: Fused) -> Iterator[ir.Node]:
    """Yield a cast of what a normalisation reads, which is written as several nodes."""
    return _producers(fused, "Cast") if len(fused.nodes) > 1 else iter(())


def _turned(planner: _Planner, fused: Fused) -> Iterator[ir.Node]:
    """Yield a transposition of the last two dimensions."""
    for node in _producers(fused, "Transpose"):
        rank = len(planner.sizes.shape(node.inputs[0]) or ())
        order = list(node.attributes.get_ints("perm", range(rank - 1, -1, -1)))
        if rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2]:
            yield node


def _by_number(planner: _Planner, nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield the nodes that multiply by a constant number, or divide by one."""
    for node in nodes:
        operands = node.inputs if node.op_type == "Mul" else node.inputs[1:]
        if any(value is not None and planner.kind_of(value) == "number" for value in operands):
            yield node


def _scaled(planner: _Planner, fused: Fused) -> Iterator[ir.Node]:
    return _by_number(planner, _producers(fused, "Mul", "Div"))


def _then_scaled(planner: _Planner, fused: Fused) -> Iterator[ir.Node]:
    return _by_number(planner, _reader(fused, "Mul", "Div"))


def _then_biased(planner: _Planner, fused: Fused) -> Iterator[ir.Node]:
    """Yield an addition to the product of two matrices; also of a matrix and a batch, where that is asked for."""
    rank = len(planner.sizes.shape(fused.last.outputs[0]) or ())
    is_batch = planner.spreads_biases and rank == 3 and _is_batch_of_rows(planner, fused.anchor)
    if (rank == 2 or is_batch) and len(fused.nodes) == 1:
        for node in _reader(fused, "Add"):
            if any(value is not None and planner.is_constant(value) for value in node.inputs):
                yield node


def _is_batch_of_rows(planner: _Planner, product: ir.Node) -> bool:
    """Whether a product multiplies a batch of rows, whose sizes ONNX Runtime knows, by one matrix."""
    batch, matrix = product.inputs[:2]
    return (
        not planner.sizes.is_open
        and planner.sizes.is_inferred(batch)
        and len(planner.sizes.shape(batch) or ()) == 3
        and len(planner.sizes.shape(matrix) or ()) == 2
    )


def _folded(planner: _Planner, fused: Fused) -> Iterator[ir.Node]:
    """Yield what becomes part of a convolution's weights: a normalisation, or constant scales and shifts a channel."""
    for node in _reader(fused, "BatchNormalization"):
        if all(value is not None and constant_of(value) is not None for value in node.inputs[1:]):
            yield node
    shape = planner.sizes.shape(fused.last.outputs[0]) or ()
    for node in _reader(fused, "Mul", "Add"):
        for value in node.inputs:
            sizes = planner.sizes.shape(value) if value is not None and planner.is_constant(value) else None
            channels = (1, shape[1], *(1,) * (len(shape) - 2)) if len(shape) > 2 else ()
            if sizes is not None and channels and (1, *sizes)[-len(shape) :] == channels:
                yield node


_TAKES_IN: Mapping[str, tuple[_TakesIn, ...]] = MappingProxyType(
    {
        "Gelu": (_TakesIn("BiasGelu", _bias),),
        "FastGelu": (_TakesIn("FastGelu", _bias),),
        "LayerNormalization": (
            _TakesIn("LayerNormalization", _cast),
            _TakesIn("SkipLayerNormalization", _sum),
        ),
        "SkipLayerNormalization": (_TakesIn("SkipLayerNormalization", _bias),),
        "SimplifiedLayerNormalization": (
            _TakesIn("SimplifiedLayerNormalization", _cast),
            _TakesIn("SkipSimplifiedLayerNormalization", _sum),
        ),
        "MatMul": (
            _TakesIn("FusedMatMul", _turned),
            _TakesIn("FusedMatMul", _scaled),
            _TakesIn("FusedMatMul", _then_scaled, after=True),
            _TakesIn("Gemm", _then_biased, after=True),
        ),
        "Conv": (_TakesIn("Conv", _folded, after=True),),
    }
)


def plan_of(graphs: Iterable[ir.Graph], sizes: Sizes, *, written: bool = False, spreads_biases: bool = False) -> Plan:
    """Return what becomes of the nodes of some graphs.

    Args:
        graphs: the graphs of a model.
        sizes: of all its values.
        written: the nodes are those of a file that this package will write: with all shapes, and with normalisations in
            the form that ONNX Runtime knows.
        spreads_biases: a batch of rows times a matrix, and its bias, become a Gemm, too. MatMulAddFusion makes most
            of them one where sizes are fixed; that it makes none is what sessions with `amp.session_options` do.
    """
    planner = _Planner(sizes, written=written, spreads_biases=spreads_biases)
    for graph in graphs:
        planner.plan(graph)
    return Plan(frozenset(planner.gone), tuple(dict.fromkeys(planner.fused.values())), frozenset(planner.constants))


def joined(plan: Plan, together: Iterable[Collection[ir.Node]]) -> Plan:
    """Return the plan with more groups of nodes, of which none may be in a group of the plan."""
    taken = {node for fused in plan.fused for node in fused.nodes}
    more = []
    for nodes in map(frozenset, together):
        last = next((node for node in nodes if not _is_read_in(node, nodes)), None)
        if len(nodes) > 1 and last is not None and not nodes & taken:
            more.append(Fused("", nodes, last, last))
            taken |= nodes
    return dataclasses.replace(plan, fused=(*plan.fused, *more))


def _is_read_in(node: ir.Node, nodes: Collection[ir.Node]) -> bool:
    return any(use.node in nodes for value in node.outputs for use in value.uses())
