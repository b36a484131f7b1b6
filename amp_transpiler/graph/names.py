"""Names that are unique across every scope of a model, and values by name."""

from __future__ import annotations

from collections.abc import Iterable, Set

import onnx_ir as ir

from amp_transpiler.graph.walk import bodies, has_bodies, scopes

__all__ = ["NameAllocator", "adopt_initializers", "name_nodes", "values_by_name"]


class NameAllocator:
    """Hands out names for values and nodes that no scope of the model uses yet.

    ONNX allows sibling bodies to use the same name, but not nested ones. One pool for the whole model satisfies both.

    Args:
        model: the model.
        reserved: further names that are not handed out.
    """

    def __init__(self, model: ir.Model, reserved: Iterable[str] = ()) -> None:
        self._reserved = frozenset(reserved)
        self._next: dict[str, int] = {}
        self._model: ir.Model | None = model  # until its names are collected: most passes find nothing to name
        self._names: set[str] = set()

    @property
    def taken(self) -> Set[str]:
        """Every name in use, reserved or handed out."""
        return self._taken()

    def fresh(self, hint: str) -> str:
        """Return `hint`, or `hint_1`, `hint_2`, ... and mark it as taken."""
        taken = self._taken()
        name, count = hint, self._next.get(hint, 0)
        while name in taken:
            count += 1
            name = f"{hint}_{count}"
        self._next[hint] = count
        taken.add(name)
        return name

    def _taken(self) -> set[str]:
        if self._model is not None:
            self._collect(self._model)
            self._model = None
        return self._names

    def _collect(self, model: ir.Model) -> None:
        add = self._names.add
        graphs = [model.graph]
        for graph in graphs:
            self._names.update(graph.initializers)
            for value in graph.inputs:
                add(value.name or "")
            for node in graph:
                add(node.name or "")
                for value in node.outputs:
                    add(value.name or "")
                if has_bodies(node):
                    graphs += [body for _, body in bodies(node)]
        self._names.discard("")
        self._names |= self._reserved


def adopt_initializers(graph: ir.Graph, values: Iterable[ir.Value]) -> None:
    """Make initializers that were taken out of a body those of `graph`, under another name where theirs is taken.

    Names count per body: a sibling, or a graph around, may have an initializer of the same name.
    """
    for value in values:
        name, count = str(value.name), 0
        while graph.initializers.get(str(value.name), value) is not value:
            count += 1
            value.name = f"{name}_{count}"
        graph.register_initializer(value)


def name_nodes(model: ir.Model, names: NameAllocator) -> None:
    """Give every node that has no name, or shares one, a name of its own, so that decisions can refer to it."""
    seen: set[str] = set()
    for scope in scopes(model):
        for node in scope.graph:
            if not node.name:
                node.name = names.fresh(f"{node.op_type}_{_first_output(node)}")
            elif node.name in seen:
                node.name = names.fresh(node.name)
            seen.add(node.name)


def _first_output(node: ir.Node) -> str:
    return next((value.name for value in node.outputs if value.name), "0")


def values_by_name(graph: ir.Graph) -> dict[str, ir.Value]:
    """Return the named values of one graph: inputs, initializers and node outputs, in this order."""
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    return {str(value.name): value for value in values if value.name}
