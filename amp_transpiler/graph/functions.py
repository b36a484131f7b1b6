"""Calls of model-local functions: who calls whom, and how much a model grows when all are inlined."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from amp_transpiler.errors import ModelError, visible

__all__ = ["CallGraph", "call_graph", "check_expansion"]

_MOST_NODES = 100_000  # of a model with all functions inlined, and calls on the way there


@dataclasses.dataclass(frozen=True, slots=True)
class CallGraph:
    """The model-local functions that a model uses.

    Attributes:
        order: the functions that are called, each after all that it calls itself.
        calls: the number of calls, those inside of a function counted once for each time that it is called.
        nodes: the number of nodes once every call is replaced by its function's nodes.
    """

    order: tuple[ir.OperatorIdentifier, ...]
    calls: int
    nodes: int


def check_expansion(model: ir.Model, name: str) -> None:
    """Raise ModelError if functions call themselves, or the model with all of them inlined is too large."""
    graph = call_graph(model, name)
    size = graph.nodes if graph.nodes > _MOST_NODES else graph.calls  # functions without nodes are called all the same
    if size > _MOST_NODES:
        count = size if size < 10**12 else f"10^{len(str(size)) - 1}"
        raise ModelError(
            f"{visible(name, 120)}: its functions, such as '{visible('::'.join(graph.order[-1][:2]), 60)}', call each "
            f"other so often that {count} nodes would take their place; at most {_MOST_NODES} are written out"
        )


def call_graph(model: ir.Model, name: str) -> CallGraph:
    """Return which functions are called, how often, and how many nodes they stand for.

    Raises:
        ModelError: a function calls itself, directly or through others.
    """
    counts = {identifier: _count(function.all_nodes(), model) for identifier, function in model.functions.items()}
    size, calls = _count(model.graph.all_nodes(), model)
    order = _callees_first(calls, {identifier: inner for identifier, (_, inner) in counts.items()}, name)
    totals: dict[ir.OperatorIdentifier, tuple[int, int]] = {}  # nodes and calls of a function, all inlined
    for identifier in order:
        totals[identifier] = _total(*counts[identifier], totals)
    nodes, count = _total(size, calls, totals)
    return CallGraph(tuple(order), count, nodes)


_Calls = Counter[ir.OperatorIdentifier]


def _count(nodes: Iterable[ir.Node], model: ir.Model) -> tuple[int, _Calls]:
    """Return the number of nodes, and how often each function is called among them."""
    size, calls = 0, _Calls()
    for node in nodes:
        size += 1
        if (identifier := node.op_identifier()) in model.functions:
            calls[identifier] += 1
    return size, calls


def _total(size: int, calls: _Calls, totals: Mapping[ir.OperatorIdentifier, tuple[int, int]]) -> tuple[int, int]:
    nodes = size + sum(count * (totals[callee][0] - 1) for callee, count in calls.items())
    return nodes, sum(count * (totals[callee][1] + 1) for callee, count in calls.items())


def _callees_first(
    roots: Iterable[ir.OperatorIdentifier], calls: Mapping[ir.OperatorIdentifier, _Calls], name: str
) -> list[ir.OperatorIdentifier]:
    """Sort the functions that are reached from `roots`, without recursion: calls may be nested by the thousand."""
    done: dict[ir.OperatorIdentifier, None] = {}
    for root in roots:
        path = {root: iter(calls[root])} if root not in done else {}
        while path:
            caller = next(reversed(path))
            callee = next((callee for callee in path[caller] if callee not in done), None)
            if callee is None:
                done[caller] = None
                del path[caller]
            elif callee in path:
                circle = [*path][[*path].index(callee) :]
                words = " -> ".join(f"{domain}::{function}" for domain, function, _ in [*circle, callee])
                raise ModelError(f"{visible(name, 120)}: functions call each other in a circle: {visible(words, 120)}")
            else:
                path[callee] = iter(calls[callee])
    return list(done)
