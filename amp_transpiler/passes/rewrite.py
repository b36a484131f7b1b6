"""Rewriting by rows: a pattern and what is written in its place, both expressions of `graph.match`.

A row suits an edit that one node and what it is computed from decide. Where sizes, all readers of a value or a walk of
any length decide, a pass is plainer by hand; it may still ask `graph.match.bindings` for the fixed part.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.match import Binding, Call, Operand, Term, bindings, parse_form, parse_term
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.passes.node_builder import NodeBuilder

__all__ = ["Rewrite", "rewrite"]


@dataclasses.dataclass(frozen=True, slots=True)
class Rewrite:
    """A pattern and its replacement.

    The last node of the pattern turns into the last one of the replacement, so its result keeps name, readers and place
    among the graph outputs. The others of the replacement stand before it, with its metadata and names that begin with
    its own. Nodes of the pattern that nothing reads any more go, and what only they read from; shared ones stay.

    Attributes:
        pattern: what is replaced.
        replacement: an expression of names of the pattern and of numbers, which are constants of the result's type; or
            a function that gives the value which the readers of the result read instead. In this case, as where the
            expression is only a name, results that the graph hands out stay.
        applies: whether a match is replaced; None for always. It is asked for each way of matching, and edits nothing.
        attributes: those of the replacement's last node; None for none.
        domain: that of the replacement's last node.
        constants: those that the replacement reads by other names than the pattern's; None for none.
    """

    pattern: str
    replacement: str | Callable[[Binding], ir.Value]
    applies: Callable[[Binding], bool] | None = None
    attributes: Callable[[Binding], Mapping[str, object]] | None = None
    domain: str = ""
    constants: Callable[[Binding], Mapping[str, np.ndarray]] | None = None


def rewrite(model: ir.Model, rows: Iterable[Rewrite], nodes: Iterable[ir.Node] | None = None) -> int:
    """Replace the patterns of rows where they match, and return how many were replaced.

    Nodes are asked one by one in their order, so that each sees what became of those before it.

    Args:
        model: the model, edited in place.
        rows: the first that matches a node is used.
        nodes: where patterns may end; every node of the model, bodies included, unless given.
    """
    tried: dict[str, list[tuple[Call, Rewrite]]] = {}
    for row in rows:
        form = parse_form(row.pattern)
        tried.setdefault(form.op_type, []).append((form, row))
    names = functools.cache(lambda: NameAllocator(model))  # collected only if something is named
    count = 0
    for node in [node for node in (all_nodes(model) if nodes is None else nodes) if node.op_type in tried]:
        if node.graph is None:
            continue  # it was a part of what is replaced
        match = _first_match(node, tried[node.op_type])
        if match is not None:
            _replace(*match, names)
            count += 1
    return count


def _first_match(node: ir.Node, tried: Iterable[tuple[Call, Rewrite]]) -> tuple[Rewrite, Binding] | None:
    for form, row in tried:
        for binding in bindings(form, node):
            if _may_replace(row, node.outputs[0]) and (row.applies is None or row.applies(binding)):
                return row, binding
    return None


def _last_call(row: Rewrite) -> Call | None:
    """Return the replacement; None if readers read another value in place of the result."""
    term = parse_term(row.replacement) if isinstance(row.replacement, str) else None
    return term if isinstance(term, Call) else None


def _may_replace(row: Rewrite, result: ir.Value) -> bool:
    """Whether a row can replace what makes a result: an output of a graph needs a node, and numbers need its type."""
    call = _last_call(row)
    if call is None:
        return not result.is_graph_output()
    return result.dtype is not None or not _has_numbers(call)


def _has_numbers(term: Term) -> bool:
    if isinstance(term, Operand):
        return term.number is not None
    return any(map(_has_numbers, term.arguments))


def _replace(row: Rewrite, binding: Binding, names: Callable[[], NameAllocator]) -> None:
    last, call, unread = binding.last, _last_call(row), set(binding.nodes)
    if call is not None:
        builder = NodeBuilder(last, names())
        constants = {} if row.constants is None else row.constants(binding)
        values = {**binding.values, **{name: builder.constant(array) for name, array in constants.items()}}
        inputs = [_write(argument, values, builder) for argument in call.arguments]
        attributes = None if row.attributes is None else row.attributes(binding)
        builder.become(call.op_type, inputs, attributes, row.domain)
        unread.remove(last)
    else:
        written = row.replacement
        value = binding[written] if isinstance(written, str) else written(binding)
        last.outputs[0].replace_all_uses_with(value)
    for node in unread:
        remove_unread(node)


def _write(term: Term, values: Mapping[str, ir.Value], builder: NodeBuilder) -> ir.Value:
    """Return the value of a part of a replacement, new unless it is a name."""
    if isinstance(term, Call):
        return builder.node(term.op_type, [_write(argument, values, builder) for argument in term.arguments])
    if term.number is None:
        return values[term.name]
    dtype = builder.anchor.outputs[0].dtype
    assert dtype is not None  # it was asked for
    return builder.constant(np.asarray(term.number).astype(dtype.numpy()), dtype)
