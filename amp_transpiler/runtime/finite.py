"""Whether a step makes infinity or NaN, and which node made it first: probes that a session computes along the way."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_float_tensor
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.names import values_by_name
from amp_transpiler.graph.origins import scope_of
from amp_transpiler.graph.regions import region_of
from amp_transpiler.graph.roles import ROLE_KEY, role_of
from amp_transpiler.phrases import first_few, quoted
from amp_transpiler.program.assemble import Assembled

__all__ = ["Compute", "Probes", "add_finite_check", "add_probes", "describe"]

_SHOWN = 3
_TRIES = 20


def add_finite_check(assembled: Assembled, losses: Collection[str]) -> str:
    """Add an output that says whether something that a step hands out is not finite; return its name, or nothing.

    What counts: the values that replace persistable ones, the program's outputs such as its loss, and what is fetched
    of the forward pass. Gradients do not: loss scaling lets scaled ones overflow, and leaves such a step out.
    """
    checked = list(_handed_out(assembled, losses))
    if not checked:
        return ""
    builder = GraphBuilder(assembled.model, metadata={ROLE_KEY: "optimize"})
    sums = _sums(builder, checked, lambda wide: builder.sub(wide, wide))
    not_finite = builder.op("IsNaN", [builder.op("Sum", sums) if len(sums) > 1 else sums[0]])
    assembled.model.graph.outputs.append(not_finite)
    return str(not_finite.name)


def _handed_out(assembled: Assembled, losses: Collection[str]) -> Iterator[ir.Value]:
    values = values_by_name(assembled.model.graph)
    forward = [values[name] for name in (*assembled.fetches.values(), *losses) if name in values]
    fetched = [value for value in forward if (node := value.producer()) is None or role_of(node) == "forward"]
    for value in dict.fromkeys([*(values[name] for name in assembled.updates.values()), *fetched]):
        if is_float_tensor(value):
            yield value


def _sums(builder: GraphBuilder, values: Sequence[ir.Value], prepare: Callable[[ir.Value], ir.Value]) -> list[ir.Value]:
    """Return the sum of each value after `prepare`, a float32 scalar, computed right behind the value.

    `x - x` has the sum 0, or NaN where an element is infinite or NaN; the sum of `x` itself may also overflow.
    The place matters: passes let all readers of a value share a cast.
    """
    nodes = list(builder.graph)
    behind = dict(itertools.pairwise(nodes))
    sums = []
    for value in values:
        node = value.producer()
        builder.before = next(iter(nodes), None) if node is None else behind.get(node)
        total = builder.sum(prepare(builder.high(value)), keepdims=False)
        sums.append(builder.cast(total, ir.DataType.FLOAT))
    builder.before = None
    return sums


@dataclasses.dataclass(frozen=True, slots=True)
class Probes:
    """The probes of a model, one sum for each float value of its main graph. A sum may be infinite by itself.

    Attributes:
        sums: name of each value -> output with its sum.
        handed_out: names of the values that the step hands out.
    """

    sums: Mapping[str, str]
    handed_out: tuple[str, ...]


def add_probes(assembled: Assembled, losses: Collection[str]) -> Probes:
    """Add outputs that tell which float values of the main graph may not be finite."""
    graph = assembled.model.graph
    handed_out = tuple(str(value.name) for value in _handed_out(assembled, losses))
    computed = [value for node in graph for value in node.outputs if value.name]
    values = [value for value in (*graph.inputs, *computed) if is_float_tensor(value)]
    builder = GraphBuilder(assembled.model, metadata={ROLE_KEY: "optimize"})
    sums = _sums(builder, values, lambda wide: wide)
    for total in sums:
        if not total.is_graph_output():
            graph.outputs.append(total)
    return Probes({str(v.name): str(s.name) for v, s in zip(values, sums, strict=True)}, handed_out)


# ---- telling ----

Compute: TypeAlias = Callable[[Sequence[str]], Mapping[str, np.ndarray]]
"""Names of values -> their numbers in this run; empty if they cannot be computed."""


def describe(
    graph: ir.Graph,
    probes: Probes,
    sums: Mapping[str, float],
    inputs: Mapping[str, np.ndarray],
    compute: Compute,
) -> str:
    """Return which input or node is the first that is not finite.

    Args:
        graph: the main graph of the step, without probes and not lowered.
        probes: the probes.
        sums: their outputs.
        inputs: feeds and persistable values by name.
        compute: see `Compute`.
    """
    bad = {name for name, output in probes.sums.items() if not np.isfinite(sums[output])}
    for name in [name for name in inputs if name in bad]:
        if not _is_finite(inputs[name]):
            return f"'{name}' is not finite before the run: {_where(inputs[name])}"
        bad.discard(name)
    for _ in range(_TRIES):
        origins = _origins(graph, probes.handed_out, bad)
        if not origins:
            break
        output = next(str(value.name) for value in origins[0].outputs if value.name in bad)
        known = compute([output])
        if output not in known or not _is_finite(known[output]):
            return _made_by(origins[0], output, compute)
        bad.discard(output)  # only its sum overflowed
    some = first_few(quoted(probes.handed_out), _SHOWN)
    return f"one of {some} is not finite, and no node of the main graph was found that made it out of finite numbers"


def _is_finite(array: np.ndarray) -> bool:
    return bool(np.isfinite(np.asarray(array).astype(np.float64)).all())


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


def _made_by(node: ir.Node, output: str, compute: Compute) -> str:
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
        return "no such number when only it is computed"
    first = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
    return f"{int(bad.sum())} of {bad.size} numbers, the first {wide[first]} at {list(first)}"


def _range(array: np.ndarray) -> str:
    wide = np.asarray(array).astype(np.float64)
    return f"from {wide.min():.4g} to {wide.max():.4g}" if wide.size else "without elements"
