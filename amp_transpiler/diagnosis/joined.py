"""Joins a float32 program and a low one into one program, and adds each low node a second time, on the right inputs.

So one run shows three things of every result: what it should be, what the low program makes of it, and what the low
node alone makes of what the float32 node reads. The last is the node's own error; the second has all errors before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

import onnx_ir as ir

from amp_transpiler.diagnosis.pairs import Pairs
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.walk import all_nodes, reads_of, scopes
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.convert_opset import ConvertOpset
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.passes.standard_opset import OpsetConversionError
from amp_transpiler.program.program import Program
from amp_transpiler.verification.low_twins import replicate

__all__ = ["Joined", "Triple", "join"]

_LOW, _OWN = "low/", "own/"


@dataclasses.dataclass(frozen=True, slots=True)
class Triple:
    """Names of a result in the joined program.

    Attributes:
        reference: what it should be; its name in the float32 program, too.
        low: what the low program has.
        own: what the low node makes of the float32 node's inputs.
        precision: the type that the low program has it in.
    """

    reference: str
    low: str
    own: str
    precision: ir.DataType

    @property
    def names(self) -> tuple[str, str, str]:
        """The three of them."""
        return self.reference, self.low, self.own


@dataclasses.dataclass(frozen=True, slots=True)
class Joined:
    """Both programs in one.

    Attributes:
        program: it. Its inputs are those of the float32 program.
        triples: the results that both programs have, in the order of the float32 program.
    """

    program: Program
    triples: tuple[Triple, ...]


def join(reference: Program, low: Program, pairs: Pairs) -> Joined:
    """Join two programs.

    Args:
        reference: the float32 program; not changed.
        low: the low program; not changed. Its nodes have names, each a name of its own; the float32 program has its
            inputs.
        pairs: their results.

    Raises:
        ModelError: they are of different opsets, and neither can be raised to the other's.
    """
    places = {str(value.name): (str(node.name), index) for value, node, index in _results(low)}
    paired = {str(its.name): places[str(mine.name)] for its, mine in pairs.low.items()}
    precisions = {str(its.name): mine.dtype for its, mine in pairs.low.items()}
    joined, emulated = _of_one_opset(reference, low)
    return _Joining(joined, emulated, {str(node.name) for node in all_nodes(low.model)}).run(paired, precisions)


def _results(program: Program) -> Iterator[tuple[ir.Value, ir.Node, int]]:
    for node in program.model.graph:
        for index, value in enumerate(node.outputs):
            yield value, node, index


def _of_one_opset(reference: Program, low: Program) -> tuple[Program, Program]:
    """Return copies of both in the higher of their opsets, the low one emulated."""
    copies = reference.clone(), low.clone()
    target = max(opset_of(copy.model, "") for copy in copies)
    for copy in copies:
        copy.source = None
        if opset_of(copy.model, "") < target:
            try:
                ConvertOpset(target)(copy.model)
            except OpsetConversionError as error:
                raise ModelError(
                    f"the two models cannot be run side by side: one is of opset {target}, the other cannot be "
                    f"raised to it: {error}"
                ) from error
    return copies[0], emulate(copies[1])


class _Joining:
    """Adds an emulated program to a float32 one.

    Args:
        joined: the float32 program; edited.
        emulated: the low program, emulated; its parts are moved.
        written: names of the nodes that the low program had before it was emulated.
    """

    def __init__(self, joined: Program, emulated: Program, written: Collection[str]) -> None:
        self._joined, self._emulated = joined, emulated
        self._graph = joined.model.graph
        self._by_node = {str(node.name): node for node in emulated.model.graph}
        self._added = {node for node in emulated.model.graph if node.name not in written}
        self._references = {str(value.name): value for value, _, _ in _results(joined)}
        self._order = {node: index for index, node in enumerate(self._graph)}
        self._known: dict[ir.Value, ir.Value] = {}  # value of the low program -> what it is on the right inputs

    def run(self, paired: Mapping[str, tuple[str, int]], precisions: Mapping[str, ir.DataType | None]) -> Joined:
        """Join; see `join`.

        Args:
            paired: result of the float32 program -> node of the low program, and the number of its output.
            precisions: result of the float32 program -> its type in the low program.
        """
        self._read_inputs()
        raw = {name: self._by_node[node].outputs[index] for name, (node, index) in paired.items()}
        seen = {name: self._as_read(value) for name, value in raw.items()}
        nodes = list(self._emulated.model.graph)
        keys = dict(self._order)
        keys |= self._keys_of_low(nodes, {value: self._position(name) for name, value in raw.items()})
        self._move(nodes)
        for name, value in seen.items():
            self._known[value] = self._references[name]
        builder = GraphBuilder(self._joined.model, prefix=_OWN)
        again = {name: self._again(builder, raw[name], seen[name], keys) for name in paired}
        self._arrange(keys)
        triples = [
            Triple(name, str(seen[name].name), str(again[name].name), precision)
            for name, precision in precisions.items()
            if precision is not None and isinstance(self._references[name].type, ir.TensorType)
        ]
        triples.sort(key=lambda triple: self._position(triple.reference))
        self._joined.touch()
        return Joined(self._joined, tuple(triples))

    def _position(self, name: str) -> int:
        producer = self._references[name].producer()
        assert producer is not None
        return self._order[producer]

    def _as_read(self, value: ir.Value) -> ir.Value:
        """Return what readers of a result read: the result rounded, where the low program has it in the low format."""
        for use in value.uses():
            cast = use.node
            if cast in self._added and cast.outputs[0].dtype in LOW_DTYPES:
                back = [u.node for u in cast.outputs[0].uses() if u.node in self._added]
                return back[0].outputs[0] if back else cast.outputs[0]
        return value

    def _keys_of_low(self, nodes: list[ir.Node], positions: Mapping[ir.Value, int]) -> dict[ir.Node, int]:
        """Give every low node the place behind the float32 node whose result it makes, or makes it for."""
        keys, latest = {}, 0
        for node in nodes:
            latest = max([latest, *(positions[value] for value in node.outputs if value in positions)])
            keys[node] = latest
        return keys

    def _move(self, nodes: list[ir.Node]) -> None:
        """Move the low program's nodes, constants and inputs into the joined program, under names of their own."""
        model, graph = self._emulated.model, self._emulated.model.graph
        graph.outputs.clear()
        for scope in scopes(model):
            for value in scope.graph.inputs if scope.owner is not None else ():
                value.name = f"{_LOW}{value.name}"
            for value in list(scope.graph.initializers.values()) if scope.owner is not None else ():
                value.name = f"{_LOW}{value.name}"
            for node in scope.graph:
                node.name = f"{_LOW}{node.name}"
                for value in node.outputs:
                    value.name = f"{_LOW}{value.name}" if value.name else value.name
        constants = [value for value in graph.initializers.values() if value.uses()]
        graph.inputs.clear()
        graph.initializers.clear()
        graph.remove(nodes)
        self._graph.extend(nodes)
        for value in constants:
            value.name = f"{_LOW}{value.name}"
            self._graph.register_initializer(value)
        for domain, version in model.opset_imports.items():
            self._joined.model.opset_imports.setdefault(domain, version)

    def _read_inputs(self) -> None:
        """Let the low program read the inputs of the float32 one, in the types that it takes."""
        inputs = {str(value.name): value for value in self._graph.inputs}
        for value in list(self._emulated.model.graph.inputs):
            shared = inputs.get(str(value.name))
            if shared is None:
                assert value.is_initializer(), value.name
                continue
            if value.dtype != shared.dtype:
                result = ir.Value(name=f"{_LOW}{value.name}", type=value.type, shape=value.shape)
                to = ir.AttrInt64("to", int(value.dtype or 0))
                cast = ir.Node("", "Cast", [shared], [to], outputs=[result], name=f"{_LOW}cast of {value.name}")
                self._emulated.model.graph.insert_before(self._emulated.model.graph[0], cast)
                shared = result
            value.replace_all_uses_with(shared)

    def _again(self, builder: GraphBuilder, raw: ir.Value, seen: ir.Value, keys: dict[ir.Node, int]) -> ir.Value:
        """Return a result as its low node makes it of the right inputs, rounded as the low program rounds it."""
        node = raw.producer()
        assert node is not None
        place = keys[node]
        copied = self._copy(builder, node, place, keys)[node.outputs.index(raw)]
        for cast in self._casts_between(raw, seen):
            read = cast.inputs[0]
            assert read is not None
            copied = replicate(builder, cast, {read: copied})[0]
            keys[_maker(copied)] = place
        return copied

    def _casts_between(self, raw: ir.Value, seen: ir.Value) -> list[ir.Node]:
        casts: list[ir.Node] = []
        while seen is not raw:
            cast = seen.producer()
            assert cast is not None
            casts.insert(0, cast)
            read = cast.inputs[0]
            assert read is not None
            seen = read
        return casts

    def _copy(self, builder: GraphBuilder, node: ir.Node, place: int, keys: dict[ir.Node, int]) -> list[ir.Value]:
        """Append a copy of a low node that reads what is right, and copies of the nodes on the way to that."""
        inputs = {value: self._right(builder, value, keys) for value in dict.fromkeys(reads_of(node))}
        makers = [maker for value in inputs.values() if (maker := value.producer()) is not None]
        results = replicate(builder, node, inputs)
        keys[_maker(results[0])] = max([place, *(keys[maker] for maker in makers if maker in keys)])
        return results

    def _right(self, builder: GraphBuilder, value: ir.Value, keys: dict[ir.Node, int]) -> ir.Value:
        """Return the value that a low node should read: the float32 program's, passed through what lies between."""
        pending = [value]
        while pending:  # chains of unpaired nodes may be long: no recursion
            current = pending[-1]
            node = current.producer()
            if current in self._known or node is None or node in self._order:
                self._known.setdefault(current, current)
                pending.pop()
                continue
            missing = [read for read in reads_of(node) if read not in self._known]
            if missing:
                pending += missing
                continue
            for result, copied in zip(node.outputs, self._copy(builder, node, keys[node], keys), strict=True):
                self._known.setdefault(result, copied)
            pending.pop()
        return self._known[value]

    def _arrange(self, keys: Mapping[ir.Node, int]) -> None:
        """Put nodes that compute the same result next to each other, so that few values are alive at a time."""
        nodes = sorted(self._graph, key=lambda node: keys[node])  # stable: each program stays in order
        self._graph.remove(nodes)
        self._graph.extend(nodes)


def _maker(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node
