"""`Executor.run(use_prune=True)`: only what is fetched is computed; the optimizer runs where it is fetched, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.walk import reads_of
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.lowering import RANDOM_STEP

__all__ = ["pruned", "without_optimizer"]


def without_optimizer(program: Program, fetch_list: Any) -> tuple[Any, bool]:
    """Take what `minimize` returned, or the first part of it, out of a fetch list; return whether it was there."""
    if not isinstance(fetch_list, (list, tuple)) or not any(isinstance(item, (list, tuple)) for item in fetch_list):
        return fetch_list, False
    names = {str(node.name) for node in program.model.graph if role_of(node) == "optimize"}
    fetched = [item for item in fetch_list if not _is_optimizer(item, names)]
    return fetched, len(fetched) < len(fetch_list)


def _is_optimizer(item: Any, names: set[str]) -> bool:
    """Whether something fetched is a list of the optimizer's nodes, or such a list with the gradients."""
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], list) and isinstance(item[1], list):  # a pair
        item = item[0]
    return isinstance(item, list) and bool(item) and all(isinstance(name, str) and name in names for name in item)


def pruned(program: Program, fetch: Iterable[str]) -> Program:
    """Return a copy of a program that leaves persistable values as they are.

    What the forward pass of the fetched values changes, such as running statistics, stays changed, as in Paddle; and
    the next run draws other random numbers.
    """
    needed = _needed(program.value(name) for name in fetch)
    copy = program.clone()
    for name, update in program.updates.items():
        maker = program.value(update).producer()
        is_forward = maker is not None and maker in needed and role_of(maker) == "forward"
        if name != RANDOM_STEP and not is_forward:
            del copy.updates[name]
    return copy


def _needed(values: Iterable[ir.Value]) -> set[ir.Node]:
    """Return the nodes that values are computed by."""
    stack, nodes = list(values), set[ir.Node]()
    while stack:
        node = stack.pop().producer()
        if node is not None and node not in nodes:
            nodes.add(node)
            stack.extend(reads_of(node))
    return nodes
