"""Says which shapes nodes read: as far as they are the same in every run, and the sizes to count with."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.walk import all_nodes

if TYPE_CHECKING:
    from amp_transpiler.cost.shapes import Sizes
    from amp_transpiler.graph.sizes import Sizes as Symbols

__all__ = ["KnownShapes", "OpenShape"]

OpenShape: TypeAlias = tuple[int | None, ...]
"""Sizes; None for a dimension that may be another in the next run."""

_TYPICAL = 32  # the size of an open dimension that no input has
_SHARED = "amp_transpiler.known_shapes"  # key in `Node.meta`: the shapes of the model that this one is a clone of


class KnownShapes:
    """The shapes of what the nodes of a model read. They are worked out when they are first asked for.

    Args:
        model: a typed model, its nodes named.
        dims: name of an open dimension of the inputs -> its size.
    """

    def __init__(self, model: ir.Model, dims: Mapping[str, int]) -> None:
        self._model, self._dims = model, dims

    def share(self, nodes: Iterable[ir.Node]) -> None:
        """Let the clones of these nodes, in clones of the model, ask here, so that shapes are worked out once."""
        for node in nodes:
            node.meta[_SHARED] = self

    def known(self, node: ir.Node, index: int, *, infers: bool = True) -> OpenShape | None:
        """Return the shape that a node reads, open dimensions left open; None where its rank is not known.

        Shapes are followed from node to node in the main graph. Else the whole model's are inferred, if `infers`.
        """
        if (shared := self._shared(node)) is not None:
            return shared.known(node, index, infers=infers)
        dims = self._symbols(self._value(node, index), infers=infers)
        if dims is None:
            return None
        return tuple(dim if isinstance(dim, int) else None for dim in dims)

    def counted(self, node: ir.Node, index: int) -> tuple[int, ...] | None:
        """Return the sizes to count with: those of a run with the given or usual sizes of open dimensions."""
        if (shared := self._shared(node)) is not None:
            return shared.counted(node, index)
        value = self._value(node, index)
        dims = self._symbols(value, infers=True)
        if dims is None:
            return self._sizes.shape(value)
        return tuple(dim if isinstance(dim, int) else self._usual.get(dim, _TYPICAL) for dim in dims)

    def _shared(self, node: ir.Node) -> KnownShapes | None:
        """Return the shapes of the model that this one is a clone of."""
        shared: KnownShapes | None = node.meta.get(_SHARED)
        return None if shared is self else shared

    def _symbols(self, value: ir.Value | None, *, infers: bool) -> tuple[int | str, ...] | None:
        if value is None:
            return None
        declared = _dims(value.shape) if value.shape is not None else ("?",)
        if all(isinstance(dim, int) for dim in declared):
            return declared
        dims = self._main.shape(value)
        if dims is None:
            return self._inferred.get(str(value.name)) if infers else None
        return tuple(dim or "?" for dim in dims)  # nothing is computed where a size is 0: it is another in other runs

    def _value(self, node: ir.Node, index: int) -> ir.Value | None:
        counterpart = self._nodes.get(str(node.name), node)
        return counterpart.inputs[index] if index < len(counterpart.inputs) else None

    @functools.cached_property
    def _nodes(self) -> Mapping[str, ir.Node]:
        return {str(node.name): node for node in all_nodes(self._model)}

    @functools.cached_property
    def _main(self) -> Symbols:
        from amp_transpiler.graph.sizes import Sizes as Symbols  # only rows that depend on shapes ask

        return Symbols(self._model.graph)

    @functools.cached_property
    def _inferred(self) -> Mapping[str, tuple[int | str, ...]]:
        copy = self._model.clone()
        infer_shapes(copy)
        values = (value for node in all_nodes(copy) for value in node.outputs)
        return {str(value.name): _dims(value.shape) for value in values if value.shape is not None}

    @functools.cached_property
    def _usual(self) -> Mapping[str, int]:
        from amp_transpiler.cost.shapes import open_dims

        return {**open_dims(self._model), **self._dims}

    @functools.cached_property
    def _sizes(self) -> Sizes:
        from amp_transpiler.cost.shapes import sizes_of

        return sizes_of(self._model, self._dims)


def _dims(shape: ir.Shape) -> tuple[int | str, ...]:
    return tuple(size if isinstance(size, int) else str(size.value or "?") for size in shape)
