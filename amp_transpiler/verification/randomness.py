"""Finds outputs that differ from one run of the float32 program to the next: no comparison says anything about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.walk import bodies
from amp_transpiler.ops.kinds import RANDOM
from amp_transpiler.ops.names import is_standard

__all__ = ["differing", "random_upstream"]


def random_upstream(model: ir.Model) -> dict[str, list[ir.Node]]:
    """Return the random operators that each output of the model depends on; outputs without any are left out."""
    upstream = {str(output.name): list(dict.fromkeys(_random_above(model, output))) for output in model.graph.outputs}
    return {name: nodes for name, nodes in upstream.items() if nodes}


def _random_above(model: ir.Model, output: ir.Value) -> Iterator[ir.Node]:
    seen: set[ir.Node] = set()
    pending: list[ir.Value | None] = [output]
    while pending:
        value = pending.pop()
        node = None if value is None else value.producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        for inner in _with_inner(model, node):
            if _is_random(inner):
                yield inner
            pending += inner.inputs


def _with_inner(model: ir.Model, node: ir.Node) -> Iterator[ir.Node]:
    """Yield a node, those of its bodies, and those of the function that it calls."""
    yield node
    inside = [inner for _, body in bodies(node) for inner in body]
    function = model.functions.get((node.domain, node.op_type, node.overload))
    for inner in (*inside, *(function or ())):
        yield from _with_inner(model, inner)


def _is_random(node: ir.Node) -> bool:
    if not is_standard(node) or node.op_type not in RANDOM:
        return False
    # Dropout draws only in training mode, which its third input asks for.
    return node.op_type != "Dropout" or (len(node.inputs) > 2 and node.inputs[2] is not None)


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> set[str]:
    """Return the names of the outputs that differ between two runs; NaN equals NaN."""
    return {name for name, value in first.items() if not _is_same(value, second[name])}


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first == second
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(_is_same, first, second))
    if first is None or second is None:
        return first is second
    x, y = np.asarray(first), np.asarray(second)
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    return bool(((x == y) | ((x != x) & (y != y))).all())  # noqa: PLR0124  only NaN differs from itself
