"""A training step cut into parts, between which several processes add up their values.

The gradients of a data-parallel step are sums over the samples of all ranks. So the step is cut where the optimizer
reads them: the part before makes this rank's gradients, the values are added up over the ranks, and the part behind
checks, unscales and updates. With `statistics`, it is also cut at the means over the batch that are marked
(`batch_statistics`), such as those of BatchNormalization, forward and backward.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.batch_statistics import BATCH_STATISTIC, is_batch_statistic, mark_batch_statistic
from amp_transpiler.graph.builder import GraphBuilder, is_float_tensor, is_static, shape_of
from amp_transpiler.graph.roles import ROLE_KEY, role_of
from amp_transpiler.graph.tensors import element_bytes
from amp_transpiler.graph.walk import bodies, reads_of
from amp_transpiler.ops.kinds import RANDOM
from amp_transpiler.program.assemble import Assembled

__all__ = ["Cut", "StepPart", "cut_step", "loss_scales"]

_MOVES = frozenset({"Concat", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a step is cut.

    Attributes:
        gradient_factor: gradients are multiplied by it, so that their sum over ranks and micro-batches is their mean.
        statistics_factor: likewise for marked statistics; None leaves these as they are.
        scales: names of states that are loss scales. The backward pass reads them times `gradient_factor`, so that what
            it computes is as large as in one process with the whole batch; gradients that do not depend on one are
            multiplied themselves.
        local: names of states that differ between ranks.
        counters: names of states whose updates belong to the first part.
        bucket_bytes: smaller gradients of the same type are joined up to this size.
    """

    gradient_factor: float = 1.0
    statistics_factor: float | None = None
    scales: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    bucket_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class StepPart:
    """A stretch of a step.

    Attributes:
        assembled: its model, with the feeds, states, updates and fetches that are its own.
        takes: values of earlier parts that it reads; inputs of the model.
        gives: values that later parts read; outputs of the model.
        summed: those of `gives` that are added up over the ranks before another part reads them.
    """

    assembled: Assembled
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    summed: tuple[str, ...]


def loss_scales(assembled: Assembled, states: Iterable[str]) -> tuple[str, ...]:
    """Return the loss scales among `states`: single float32 numbers that the backward pass and the optimizer read."""
    known, scales = set(states), []
    for value in assembled.model.graph.inputs:
        if value.name in known and value.dtype == ir.DataType.FLOAT and _is_one_number(value):
            roles = {role_of(use.node) for use in value.uses()}
            if {"backward", "optimize"} <= roles:
                scales.append(str(value.name))
    return tuple(scales)


def _is_one_number(value: ir.Value) -> bool:
    return is_static(value) and all(size == 1 for size in shape_of(value))


def cut_step(assembled: Assembled, cut: Cut) -> tuple[StepPart, ...]:
    """Cut the model of a step, which is changed, into parts; the last one is the optimizer.

    Returns:
        The parts in their order; none if the optimizer reads nothing that depends on the feeds.

    Raises:
        ModelError: the optimizer reads something else than gradients that differs between ranks.
    """
    return _Cutter(assembled, cut).parts()


class _Cutter:
    def __init__(self, assembled: Assembled, cut: Cut) -> None:
        self._whole, self._cut = assembled, cut
        self._graph = assembled.model.graph
        self._builder = GraphBuilder(assembled.model, metadata={ROLE_KEY: "backward"}, prefix="exchange/")
        self._fetches = dict(assembled.fetches)
        self._local = self._find_local()
        self._late = self._find_late()
        self._scaled = self._find_scaled()
        self._level: dict[ir.Node, int] = {}  # how many exchanges lie before a node that is not late
        inner = (
            (node, inner_node) for node in self._graph for _, body in bodies(node) for inner_node in body.all_nodes()
        )
        self._owners = {inner_node: node for node, inner_node in inner}

    def parts(self) -> tuple[StepPart, ...]:
        gradients = self._gradients()
        if not gradients:
            return ()
        self._hoist_joins(gradients)
        self._scale_statistics()
        self._set_levels()
        summed = self._join([self._exchanged(value) for value in self._gradients()])
        self._graph.sort()
        return self._extract(summed)

    # ---- what depends on what ----

    def _find_local(self) -> set[ir.Value]:
        """Return the values that differ between ranks."""
        names = {*self._whole.feeds, *self._cut.local}
        return self._behind({value for value in self._graph.inputs if value.name in names}, RANDOM)

    def _find_scaled(self) -> set[ir.Value]:
        """Return the values that depend on a loss scale."""
        return self._behind({value for value in self._graph.inputs if value.name in self._cut.scales})

    def _behind(self, values: set[ir.Value], operators: Collection[str] = ()) -> set[ir.Value]:
        for node in self._graph:
            if node.op_type in operators or any(value in values for value in reads_of(node)):
                values.update(node.outputs)
        return values

    def _find_late(self) -> set[ir.Node]:
        """Return the optimizer's nodes among those whose results differ between ranks."""
        late: set[ir.Node] = set()
        for node in self._graph:
            reads = [value for value in reads_of(node) if value in self._local]
            passes_on = node.op_type == "Identity" and bool(reads) and reads[0].producer() is None  # a feed, fetched
            is_late = bool(reads) and role_of(node) == "optimize" and not passes_on
            if is_late or any(value.producer() in late for value in reads):
                late.add(node)
        return late

    def _gradients(self) -> list[ir.Value]:
        """Return what the optimizer reads of the rest, in the order of the graph.

        Raises:
            ModelError: that is no gradient.
        """
        after: set[ir.Value] = set()  # values of, and behind, the backward pass
        gradients: dict[ir.Value, None] = {}
        for node in self._graph:
            reads = reads_of(node)
            if role_of(node) == "backward" or any(value in after for value in reads):
                after.update(node.outputs)
            if node in self._late:
                for value in reads:
                    if value in self._local and value.producer() not in self._late:
                        _check_gradient(node, value, value in after)
                        gradients[value] = None
        return list(gradients)

    def _hoist_joins(self, gradients: Sequence[ir.Value]) -> None:
        """Count Concats of gradients, and what only moves these before, as part of the backward pass.

        So a group of gradients that the optimizer joins is exchanged in one piece.
        """
        moved = set(gradients)  # gradients, and what was only moved
        for node in self._graph:
            if node not in self._late or node.op_type not in _MOVES:
                continue
            if not all(value in moved for value in (node.inputs if node.op_type == "Concat" else node.inputs[:1])):
                continue
            moved.update(node.outputs)
            group = self._movers(node)
            read = {value for mover in group for value in mover.inputs if value in moved}
            if node.op_type == "Concat" and all(self._late_readers(value) <= group for value in read):
                self._late -= group

    def _movers(self, node: ir.Node) -> set[ir.Node]:
        """Return a node that moves gradients, and those of the optimizer before it."""
        movers = {node}
        for value in node.inputs:
            maker = None if value is None else value.producer()
            if maker in self._late:
                movers |= self._movers(maker)
        return movers

    def _late_readers(self, value: ir.Value) -> set[ir.Node]:
        return {node for node in self._readers(value) if node in self._late}

    def _readers(self, value: ir.Value) -> Iterator[ir.Node]:
        """Yield the nodes of the main graph that read a value, themselves or in their bodies."""
        return (self._owners.get(use.node, use.node) for use in value.uses())

    def _set_levels(self) -> None:
        for node in self._graph:
            reads = [value for value in reads_of(node) if value in self._local]
            if node not in self._late and any(value in self._local for value in node.outputs):
                self._level[node] = max((self._level_behind(value) for value in reads), default=0)

    def _level_behind(self, value: ir.Value) -> int:
        """Return how many exchanges lie before the readers of a value."""
        node = value.producer()
        return 0 if node is None else self._level[node] + self._is_statistic(value)

    def _is_statistic(self, value: ir.Value) -> bool:
        return self._cut.statistics_factor is not None and value in self._local and is_batch_statistic(value)

    # ---- what is exchanged ----

    def _scale_statistics(self) -> None:
        """Multiply every statistic, so that the sum over the ranks is its mean."""
        factor = self._cut.statistics_factor
        if factor is None or factor == 1.0:
            return
        for node in list(self._graph):
            for value in node.outputs:
                if node not in self._late and self._is_statistic(value):
                    readers = [use for use in value.uses() if use.node not in self._late]
                    scaled = self._insert("Mul", [value, self._builder.constant(factor, value.dtype)], like=node)
                    del node.metadata_props[BATCH_STATISTIC]
                    mark_batch_statistic(scaled)
                    _redirect(readers, scaled)
        self._graph.sort()

    def _exchanged(self, value: ir.Value) -> ir.Value:
        """Return a gradient as it is exchanged, and let the optimizer read it."""
        node, level = _maker(value), self._level_behind(value)
        if self._cut.gradient_factor != 1.0 and value not in self._scaled:
            factor = self._builder.constant(self._cut.gradient_factor, value.dtype)
            new = self._insert("Mul", [value, factor], like=node)
        elif any(self._level.get(reader, level) > self._level[node] for reader in self._readers(value)):
            new = self._insert("Identity", [value], like=node)  # another part reads this rank's own
        else:
            return value
        self._level[_maker(new)] = level
        self._replace_late(value, new)
        for name, output in self._fetches.items():
            if output == value.name:
                self._fetches[name] = str(new.name)
        if value.is_graph_output():
            outputs = self._graph.outputs
            outputs[list(outputs).index(value)] = new
        return new

    def _join(self, gradients: Sequence[ir.Value]) -> dict[ir.Value, None]:
        """Join small gradients to buckets; return what is exchanged."""
        exchanged: dict[ir.Value, None] = {}
        buckets: dict[tuple[int, ir.DataType | None], list[ir.Value]] = {}
        for value in gradients:
            if not is_static(value) or value.is_graph_output() or _bytes(value) >= self._cut.bucket_bytes:
                exchanged[value] = None
                continue
            bucket = buckets.setdefault((self._level_behind(value), value.dtype), [])
            if sum(map(_bytes, bucket)) + _bytes(value) > self._cut.bucket_bytes:
                exchanged[self._joined(bucket)] = None
                bucket.clear()
            bucket.append(value)
        exchanged.update((self._joined(bucket), None) for bucket in buckets.values() if bucket)
        return exchanged

    def _joined(self, bucket: Sequence[ir.Value]) -> ir.Value:
        if len(bucket) == 1:
            return bucket[0]
        builder, level = self._builder, self._level_behind(bucket[0])
        builder.metadata = {ROLE_KEY: "backward"}
        flat = [builder.reshape(value, [-1]) for value in bucket]
        joined = builder.concat(flat, 0)
        for value in (*flat, joined):
            self._level[_maker(value)] = level
            self._local.add(value)
        builder.metadata = {ROLE_KEY: "optimize"}
        sizes = builder.constant(np.array([math.prod(shape_of(value)) for value in bucket], np.int64))
        pieces = builder.nodes("Split", [joined, sizes], {"axis": 0}, outputs=len(bucket))
        for value, piece in zip(bucket, pieces, strict=True):
            shaped = builder.reshape(piece, shape_of(value))
            for part in (piece, shaped):
                self._late.add(_maker(part))
                self._local.add(part)
            self._replace_late(value, shaped)
        return joined

    def _insert(self, op_type: str, inputs: Sequence[ir.Value], like: ir.Node) -> ir.Value:
        self._builder.metadata = {k: v for k, v in like.metadata_props.items() if k != BATCH_STATISTIC}
        new = self._builder.op(op_type, inputs)
        new.shape = inputs[0].shape
        self._local.add(new)
        return new

    def _replace_late(self, old: ir.Value, new: ir.Value) -> None:
        _redirect([use for use in old.uses() if self._owners.get(use.node, use.node) in self._late], new)

    # ---- the parts ----

    def _extract(self, summed: Collection[ir.Value]) -> tuple[StepPart, ...]:
        last = 1 + max(self._level.values())
        wanted: list[dict[ir.Value, None]] = [{} for _ in range(last + 1)]
        for value in self._graph.outputs:
            wanted[self._part_of(value, last)][value] = None
        handed_on: list[dict[ir.Value, None]] = [{} for _ in wanted]
        parts = []
        for index in range(last, -1, -1):
            if not wanted[index]:
                continue
            taken, inputs = self._needs(wanted[index], index, last)
            for value in taken:
                wanted[self._part_of(value, last)][value] = None
                handed_on[self._part_of(value, last)][value] = None
            exchanged = [value for value in handed_on[index] if value in summed or self._is_statistic(value)]
            model = self._model([*inputs, *taken], list(wanted[index]), with_scales=index == last)
            parts.append(
                StepPart(self._assembled(model, taken), _names(taken), _names(handed_on[index]), _names(exchanged))
            )
        return tuple(reversed(parts))

    def _part_of(self, value: ir.Value, last: int) -> int:
        node = value.producer()
        if node in self._level:
            return self._level[node]
        counters = {self._whole.updates.get(name) for name in self._cut.counters}
        return 0 if value not in self._local and value.name in counters else last

    def _needs(self, wanted: Iterable[ir.Value], index: int, last: int) -> tuple[list[ir.Value], list[ir.Value]]:
        """Return what a part takes of earlier ones, and the inputs of the step that it reads."""
        taken: dict[ir.Value, None] = {}
        inputs: set[ir.Value] = set()
        pending, seen = list(wanted), set(wanted)
        while pending:
            value = pending.pop()
            node = value.producer()
            if node is None:
                inputs.add(value)
            elif value in self._local and self._part_of(value, last) < index:
                taken[value] = None
            else:
                new = [read for read in reads_of(node) if read not in seen]
                seen.update(new)
                pending.extend(new)
        return sorted(taken, key=_name), [value for value in self._graph.inputs if value in inputs]

    def _model(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], *, with_scales: bool) -> ir.Model:
        whole = self._whole.model
        graph = ir.convenience.extract(self._graph, list(inputs), list(outputs))
        model = ir.Model(graph, ir_version=whole.ir_version, functions=list(whole.functions.values()))
        if not with_scales and self._cut.gradient_factor != 1.0:
            first = next(iter(graph), None)
            builder = GraphBuilder(model, before=first, metadata={ROLE_KEY: "backward"}, prefix="exchange/")
            for value in graph.inputs:
                if value.name in self._cut.scales:
                    readers = list(value.uses())
                    _redirect(readers, builder.mul(value, self._cut.gradient_factor))
        return model

    def _assembled(self, model: ir.Model, taken: Collection[ir.Value]) -> Assembled:
        names = {str(value.name) for value in model.graph.inputs} - {str(value.name) for value in taken}
        outputs = {value.name for value in model.graph.outputs}
        whole = self._whole
        return dataclasses.replace(
            whole,
            model=model,
            feeds=tuple(name for name in whole.feeds if name in names),
            state=tuple(name for name in whole.state if name in names),
            updates={name: output for name, output in whole.updates.items() if output in outputs},
            fetches={name: output for name, output in self._fetches.items() if output in outputs},
        )


def _check_gradient(node: ir.Node, value: ir.Value, is_behind: bool) -> None:
    if is_behind and is_float_tensor(value):
        return
    raise ModelError(
        f"node '{node.name}' ({node.op_type}) of the optimizer reads '{value.name}', which differs between ranks and "
        "is no gradient: ranks would drift apart; let the update depend on gradients and on values of the scope only"
    )


def _maker(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None  # callers have no inputs of the graph
    return node


def _redirect(uses: Iterable[Any], new: ir.Value) -> None:
    for use in list(uses):
        use.node.replace_input_with(use.idx, new)


def _bytes(value: ir.Value) -> int:
    return int(math.prod(shape_of(value)) * element_bytes(value.dtype or ir.DataType.FLOAT))


def _name(value: ir.Value) -> str:
    return str(value.name)


def _names(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(map(_name, values))
