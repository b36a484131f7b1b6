"""Whether a step makes infinity or NaN, and which node made it first: probes that a session computes along the way."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.assemble import Assembled
from amp_transpiler.graph.builder import GraphBuilder, is_float_tensor
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.names import values_by_name
from amp_transpiler.graph.origins import scope_of
from amp_transpiler.graph.regions import region_of
from amp_transpiler.graph.roles import ROLE_KEY, role_of

__all__ = ["Compute", "Probes", "add_finite_check", "add_probes", "describe"]

_SHOWN = 3


def add_finite_check(assembled: Assembled, losses: Collection[str]) -> str:
    """Add an output that says whether something that a step hands out is not finite; return its name, or nothing.

    What counts: the values that replace persistable ones, the program's outputs such as its loss, and what is fetched
    of the forward pass. Gradients do not: loss scaling lets scaled ones overflow, and leaves such a step out.
    """
    checked = list(_handed_out(assembled, losses))
    if not checked:
        return ""
    builder = GraphBuilder(assembled.model, metadata={ROLE_KEY: "optimize"})
    sums = _zeros_or_nan(builder, checked)
    found = builder.op("IsNaN", [builder.op("Sum", sums) if len(sums) > 1 else sums[0]])
    assembled.model.graph.outputs.append(found)
    return str(found.name)


def _handed_out(assembled: Assembled, losses: Collection[str]) -> Iterator[ir.Value]:
    values = values_by_name(assembled.model.graph)
    forward = [values[name] for name in (*assembled.fetches.values(), *losses) if name in values]
    fetched = [value for value in forward if (node := value.producer()) is None or role_of(node) == "forward"]
    for value in dict.fromkeys([*(values[name] for name in assembled.updates.values()), *fetched]):
        if is_float_tensor(value):
            yield value


def _zeros_or_nan(builder: GraphBuilder, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Return for each value 0 if all elements are finite, else NaN, computed right behind the value.

    `x - x` is NaN for infinity too, and no sum of 0 overflows. The place matters: passes use a cast for all readers.
    """
    nodes = list(builder.graph)
    behind = dict(itertools.pairwise(nodes))
    found = []
    for value in values:
        node = value.producer()
        builder.before = next(iter(nodes), None) if node is None else behind.get(node)
        wide = builder.high(value)
        found.append(builder.cast(builder.sum(builder.sub(wide, wide), keepdims=False), ir.DataType.FLOAT))
    builder.before = None
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Probes:
    """The probes of a model: for each float value of its main graph, whether it is finite.

    Attributes:
        output: the output with 0 or NaN for each value; empty for a model without float values.
        values: names of the values, in that order.
        handed_out: names of those that the step hands out.
    """

    output: str
    values: tuple[str, ...]
    handed_out: tuple[str, ...]


def add_probes(assembled: Assembled, losses: Collection[str]) -> Probes:
    """Add one output that tells for each float value of the main graph whether it is finite."""
    graph = assembled.model.graph
    handed_out = tuple(str(value.name) for value in _handed_out(assembled, losses))
    inputs = [value for value in graph.inputs if is_float_tensor(value)]
    made = [value for node in graph for value in node.outputs if value.name and is_float_tensor(value)]
    if not inputs and not made:
        return Probes("", (), handed_out)
    builder = GraphBuilder(assembled.model, metadata={ROLE_KEY: "optimize"})
    sums = [builder.reshape(value, [1]) for value in _zeros_or_nan(builder, (*inputs, *made))]
    joined = builder.concat(sums, 0) if len(sums) > 1 else sums[0]
    graph.outputs.append(joined)
    return Probes(str(joined.name), tuple(str(value.name) for value in (*inputs, *made)), handed_out)


# ---- telling ----

Compute: TypeAlias = Callable[[Sequence[str]], Mapping[str, np.ndarray]]
"""Names of values -> their numbers in this run; empty if they cannot be computed."""


def describe(
    graph: ir.Graph,
    probes: Probes,
    flags: Sequence[float] | np.ndarray,
    given: Mapping[str, np.ndarray],
    compute: Compute,
) -> str:
    """Return which input or node is the first that is not finite.

    Args:
        graph: the main graph of the step, without probes and not lowered.
        probes: the probes.
        flags: their output.
        given: feeds and persistable values by name.
        compute: see `Compute`.
    """
    bad = {name for name, flag in zip(probes.values, flags, strict=True) if not np.isfinite(flag)}
    reached = [name for name in probes.handed_out if name in bad]
    for name in given:
        if name in bad:
            return f"'{name}' is not finite before the run: {_where(given[name])}"
    origins = _origins(graph, probes.handed_out, bad)
    if not origins:
        some = ", ".join(f"'{name}'" for name in reached[:_SHOWN])
        return f"{some or 'a value'} is not finite, and no node of the main graph made it out of finite numbers"
    return _made_by(origins[0], bad, compute)


def _origins(graph: ir.Graph, handed_out: Collection[str], bad: Collection[str]) -> list[ir.Node]:
    """Return the nodes that made what is not finite out of what is, in order; likely culprits first."""
    makers = {str(value.name): node for node in graph for value in node.outputs}
    stack = [name for name in handed_out if name in bad]
    seen: set[str] = set()
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack.extend(read for read in _reads(makers.get(name)) if read in bad)
    first = [
        node
        for node in graph
        if any(value.name in seen for value in node.outputs) and not any(name in bad for name in _reads(node))
    ]
    return sorted(first, key=_has_infinite_constant)


def _reads(node: ir.Node | None) -> Iterator[str]:
    for value in () if node is None else node.inputs:
        if value is not None:
            yield str(value.name)


def _has_infinite_constant(node: ir.Node) -> bool:
    """Whether a node may make infinity on purpose, as masks do."""
    arrays = [constant_array(value) for value in node.inputs if is_float_tensor(value)]
    return any(array is not None and not np.isfinite(array.astype(np.float64)).all() for array in arrays)


def _made_by(node: ir.Node, bad: Collection[str], compute: Compute) -> str:
    output = next(str(value.name) for value in node.outputs if value.name in bad)
    inputs = [value for value in node.inputs if value is not None and is_float_tensor(value)]
    constants = {str(value.name): array for value in inputs if (array := constant_array(value)) is not None}
    known = {**constants, **compute([output, *(str(v.name) for v in inputs if str(v.name) not in constants)])}
    reads = [f"'{v.name}'{f' {_range(known[str(v.name)])}' if str(v.name) in known else ''}" for v in inputs]
    facts = f"'{output}'{f' has {_where(known[output])}' if output in known else ''}"
    origin = [text for text in (scope_of(node), *sorted(region_of(node)), _part(node)) if text]
    text = f"the first node that makes infinity or NaN is {node.op_type} '{node.name}' ({', '.join(origin)}): {facts}"
    return f"{text}; it reads {', '.join(reads)}" if reads else text


def _part(node: ir.Node) -> str:
    return {"forward": "forward pass", "backward": "backward pass", "optimize": "optimizer"}[role_of(node)]


def _where(array: np.ndarray) -> str:
    wide = np.asarray(array).astype(np.float64)
    bad = ~np.isfinite(wide)
    if not bad.any():
        return "no such number when it is computed alone"
    first = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
    return f"{int(bad.sum())} of {bad.size} numbers, the first {wide[first]} at {list(first)}"


def _range(array: np.ndarray) -> str:
    wide = np.asarray(array).astype(np.float64)
    return f"from {wide.min():.4g} to {wide.max():.4g}" if wide.size else "without elements"
