"""The shapes of values as far as they are the same in every run, and the sizes to count with where they are not."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.precision.cost.shapes import Sizes, sizes_of

__all__ = ["KnownShapes", "OpenShape"]

OpenShape: TypeAlias = tuple[int | None, ...]
"""Sizes; None for a dimension that may be another in the next run."""

_NOTED = "amp_transpiler.known_shapes"  # key in `Node.meta`: shapes inferred for its clones, too; not written to files


class KnownShapes:
    """The shapes of a model's values. What is declared is taken; the rest is inferred when it is first asked for.

    Args:
        model: a typed model.
        dims: name of an open dimension of the inputs -> its size.
    """

    def __init__(self, model: ir.Model, dims: Mapping[str, int]) -> None:
        self._model, self._dims = model, dims

    def known(self, node: ir.Node, index: int) -> OpenShape | None:
        """Return the shape that a node reads, open dimensions left open; None where its rank is not known."""
        noted = node.meta.get(_NOTED)
        return self._known(_input(node, index)) if noted is None else noted[index].known

    def counted(self, node: ir.Node, index: int) -> tuple[int, ...] | None:
        """Return the sizes to count with: those of a run with the given or usual sizes of open dimensions."""
        noted = node.meta.get(_NOTED)
        return self._counted(_input(node, index)) if noted is None else noted[index].counted

    def rank(self, node: ir.Node) -> int | None:
        """Return the rank of what an elementwise operator computes; None where it is not known."""
        shapes = [self.known(node, index) for index in range(len(node.inputs))]
        ranks = [len(shape) for shape in shapes if shape is not None]
        return max(ranks) if len(ranks) == len(shapes) else None

    def note(self, nodes: Iterable[ir.Node]) -> None:
        """Infer what nodes read now, for the decisions about clones of the model."""
        for node in nodes:
            node.meta[_NOTED] = [_Noted(self._known(value), self._counted(value)) for value in node.inputs]

    def _known(self, value: ir.Value | None) -> OpenShape | None:
        if value is None:
            return None
        declared = _open(value.shape)
        return self._inferred.get(str(value.name), declared) if declared is None or None in declared else declared

    def _counted(self, value: ir.Value | None) -> tuple[int, ...] | None:
        known = self._known(value)
        if known is None or None in known:
            return self._sizes.shape(value)
        return tuple(size for size in known if size is not None)

    @functools.cached_property
    def _inferred(self) -> Mapping[str, OpenShape | None]:
        copy = self._model.clone()
        infer_shapes(copy)
        values = [*copy.graph.inputs, *(value for node in all_nodes(copy) for value in node.outputs)]
        return {str(value.name): _open(value.shape) for value in values}

    @functools.cached_property
    def _sizes(self) -> Sizes:
        return sizes_of(self._model, self._dims)


class _Noted(NamedTuple):
    """A shape that was inferred before."""

    known: OpenShape | None
    counted: tuple[int, ...] | None


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _open(shape: ir.Shape | None) -> OpenShape | None:
    return None if shape is None else tuple(size if isinstance(size, int) else None for size in shape)
