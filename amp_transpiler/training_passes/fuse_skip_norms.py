"""Fuses sums before a LayerNormalization, and the bias before them, to ONNX Runtime's SkipLayerNormalization."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.graph.builder import is_static, shape_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import is_used
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.removal import Removal

__all__ = ["FuseSkipNorms"]

_DOMAIN = "com.microsoft"
_RANKS = (2, 3)  # of what SkipLayerNormalization takes


class FuseSkipNorms(Pass[PassResult]):
    """Writes an Add and the LayerNormalization behind it as SkipLayerNormalization; counts them.

    ONNX Runtime does so too, but not where the sum is read elsewhere, as the backward pass does.

    1. Both terms have the shape of the sum, or one is the same for a whole batch, as positions are. The normalization
       is over the last axis.
    2. A vector that was added to one term, and to nothing else, is given as the bias: one operator less, and the
       product before it needs no rows of biases written first.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        with Removal() as removal:
            for node in list(model.graph):
                pattern = None if node in removal else _Pattern.of(node)
                if pattern is not None:
                    pattern.fuse(names, removal)
                    count += 1
        if count:
            model.graph.opset_imports.setdefault(_DOMAIN, 1)
            model.graph.sort()  # what reads a sum may stand before its normalization
        return PassResult(model, modified=bool(count), count=count)


@dataclasses.dataclass(frozen=True)
class _Pattern:
    """A normalization of a sum.

    Attributes:
        norm: the LayerNormalization.
        total: the Add before it.
        terms: the terms of the sum, one of them without its bias; the first has the shape of the sum.
        bias: the vector added to one term, None without one.
        makers: the Add of the bias, if there is one.
    """

    norm: ir.Node
    total: ir.Node
    terms: tuple[ir.Value, ir.Value]
    bias: ir.Value | None
    makers: tuple[ir.Node, ...]

    @classmethod
    def of(cls, norm: ir.Node) -> _Pattern | None:
        """Return the pattern that ends in a node, None if none does."""
        if norm.op_type != "LayerNormalization" or not is_standard(norm) or any(map(is_used, norm.outputs[1:])):
            return None
        summed, scale = norm.inputs[0], norm.inputs[1]
        total = None if summed is None else summed.producer()
        if summed is None or total is None or total.op_type != "Add" or not is_standard(total):
            return None
        a, b = total.inputs
        if a is None or b is None or scale is None or not _is_over_last_axis(norm, summed, scale):
            return None
        if summed.is_graph_output():
            return None
        if not _same_shape(a, summed):
            a, b = b, a
        if not (_same_shape(a, summed) and (_same_shape(b, summed) or _repeats(b, summed))):
            return None
        for first, second in ((a, b), (b, a)):
            biased = _biased(first)
            if biased is not None:
                terms = (biased[1], second) if _same_shape(first, summed) else (second, biased[1])
                return cls(norm, total, terms, biased[2], (biased[0],))
        return cls(norm, total, (a, b), None, ())

    def fuse(self, names: NameAllocator, removal: Removal) -> None:
        """Replace the nodes by one."""
        summed, result = self.total.outputs[0], self.norm.outputs[0]
        new_sum = ir.Value(name=names.fresh(f"{summed.name}__sum"), type=summed.type, shape=summed.shape)
        new_result = ir.Value(name=names.fresh(f"{result.name}__fused"), type=result.type, shape=result.shape)
        affine = [*self.norm.inputs[1:3], None][:2]
        epsilon = self.norm.attributes.get("epsilon")
        node = ir.Node(
            _DOMAIN,
            "SkipLayerNormalization",
            [*self.terms, *affine, *([] if self.bias is None else [self.bias])],
            [ir.AttrFloat32("epsilon", 1e-5 if epsilon is None else epsilon.as_float())],
            outputs=[new_result, ir.Value(name=""), ir.Value(name=""), new_sum],
            name=names.fresh(f"{self.norm.name}__fused"),
            metadata_props=dict(self.norm.metadata_props),
        )
        self.norm.prepend(node)
        if result.is_graph_output():  # it is fetched by its name
            result.name, new_result.name = new_result.name, result.name
        result.replace_all_uses_with(new_result, replace_graph_outputs=True)
        summed.replace_all_uses_with(new_sum)
        for old in (self.norm, self.total, *self.makers):
            removal.add(old)


def _same_shape(value: ir.Value, other: ir.Value) -> bool:
    return is_static(value) and is_static(other) and shape_of(value) == shape_of(other)


def _repeats(value: ir.Value, summed: ir.Value) -> bool:
    """Whether a value is repeated for every sample of a batch [batch, length, size]."""
    shape = shape_of(summed) if is_static(summed) else ()
    return len(shape) == 3 and is_static(value) and shape_of(value) in (shape[1:], (1, *shape[1:]))


def _is_over_last_axis(norm: ir.Node, summed: ir.Value, scale: ir.Value) -> bool:
    axis = norm.attributes.get("axis")
    rank = len(summed.shape) if summed.shape is not None else 0
    last = axis is None or axis.as_int() in (-1, rank - 1)
    return (
        last and rank in _RANKS and is_static(scale) and is_static(summed) and shape_of(scale) == shape_of(summed)[-1:]
    )


def _biased(term: ir.Value) -> tuple[ir.Node, ir.Value, ir.Value] | None:
    """Return (node, rest, vector) of a term that only adds a vector, and that only one node reads; None otherwise."""
    node = term.producer()
    if node is None or node.op_type != "Add" or not is_standard(node) or len(term.uses()) != 1:
        return None
    if term.is_graph_output():
        return None
    for rest, vector in (node.inputs, tuple(reversed(node.inputs))):
        if rest is None or vector is None or not is_static(vector) or not _same_shape(rest, term):
            continue
        if shape_of(vector) == shape_of(term)[-1:]:
            return node, rest, vector
    return None
