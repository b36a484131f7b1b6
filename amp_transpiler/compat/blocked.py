"""Nodes that another tool's arguments keep in float32."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from amp_transpiler.graph.regions import DISABLE_AMP, enter
from amp_transpiler.graph.walk import bodies

__all__ = ["block", "every_node"]


def every_node(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of a model in every scope, model-local functions included."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def block(model: ir.Model, is_blocked: Callable[[ir.Node], bool]) -> frozenset[ir.Node]:
    """Put nodes into a `disable_amp` region, those in their bodies too, and return them."""
    top = itertools.chain(model.graph, *model.functions.values())
    blocked = frozenset(_blocked(top, is_blocked, inside=False))
    for node in blocked:
        enter(node, DISABLE_AMP)
    return blocked


def _blocked(nodes: Iterable[ir.Node], is_blocked: Callable[[ir.Node], bool], *, inside: bool) -> Iterator[ir.Node]:
    for node in nodes:
        hit = inside or is_blocked(node)
        if hit:
            yield node
        for _, body in bodies(node):
            yield from _blocked(body, is_blocked, inside=hit)
