"""Fuses sums before a normalisation, and the bias before them, to ONNX Runtime's SkipLayerNormalization."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import onnx_ir as ir

from amp_transpiler.fusion.biases import Biased, biased
from amp_transpiler.fusion.restrictions import Restrictions
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.graph.walk import is_used
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.removal import Removal

__all__ = ["FuseSkipNorms"]

logger = logging.getLogger(__name__)

_DOMAIN = "com.microsoft"
_LONGEST_WALK = 16  # nodes
_RANKS = (2, 3)  # of what SkipLayerNormalization takes
_FUSED: Mapping[str, str] = MappingProxyType(
    {
        "LayerNormalization": "SkipLayerNormalization",
        "RMSNormalization": "SkipSimplifiedLayerNormalization",
        "SimplifiedLayerNormalization": "SkipSimplifiedLayerNormalization",
    }
)
"""Normalisation -> the operator that it becomes with the sum before it."""


class FuseSkipNorms(Pass[PassResult]):
    """Writes an Add and the normalisation behind it as one operator; counts them.

    ONNX Runtime does so too, but not where the sum is read elsewhere, as the backward pass does, and what is normalised
    first (GPT-2, ViT).

    1. Both terms have the shape of the sum, or one is the same for a whole batch, as positions are. The normalization
       is over the last axis. Open sizes may be in the shapes: `graph/sizes.py` says which of them are the same.
    2. A vector that was added to one term, and to nothing else, is given as the bias: one operator less, and the
       product before it needs no rows of biases written first.
    3. Where others read the sum, the operator hands it out.

    Only the main graph is edited.

    Args:
        operators: which operators may be written.
        sizes_of: returns the sizes of a graph; they stay up to date.
        gemms: the bias of a Gemm before a term counts as a vector that was added.
        restrictions: which nodes may become one; None for all.
    """

    def __init__(
        self,
        operators: Collection[str] = ("SkipLayerNormalization",),
        sizes_of: Callable[[ir.Graph], Sizes] = Sizes,
        *,
        gemms: bool = False,
        restrictions: Restrictions | None = None,
    ) -> None:
        self._norms = frozenset(norm for norm, operator in _FUSED.items() if operator in operators)
        self._sizes_of = sizes_of
        self._gemms = gemms
        self._restrictions = restrictions

    def call(self, model: ir.Model) -> PassResult:
        norms = [node for node in model.graph if node.op_type in self._norms and _of_sum(node)]
        if not norms:
            return PassResult(model, modified=False)
        names, sizes, count = NameAllocator(model), self._sizes_of(model.graph), 0
        with Removal() as removal:
            for node in norms:
                pattern = _Pattern.of(node, sizes, self._restrictions, gemms=self._gemms)
                if pattern is not None and self._allow(pattern):
                    pattern.fuse(names, sizes, removal)
                    count += 1
        if count:
            model.graph.opset_imports.setdefault(_DOMAIN, 1)
            model.graph.sort()  # what reads a sum may stand before its normalization
            logger.info("%d sums fused with the normalisation behind them", count)
        return PassResult(model, modified=bool(count), count=count)

    def _allow(self, pattern: _Pattern) -> bool:
        fusion, nodes = _FUSED[pattern.norm.op_type], (pattern.norm, pattern.total)
        return self._restrictions is None or self._restrictions.allow(fusion, pattern.norm, nodes)


def _of_sum(norm: ir.Node) -> bool:
    """Whether a node normalises a sum that may be fused with it."""
    if not is_standard(norm) or any(map(is_used, norm.outputs[1:])):
        return False
    summed = norm.inputs[0]
    total = None if summed is None else summed.producer()
    if summed is None or total is None or not _is_add(total) or summed.is_graph_output():
        return False
    return summed.dtype != ir.DataType.DOUBLE and not any(_reads(value, total) for value in norm.inputs[1:])


def _reads(value: ir.Value | None, node: ir.Node) -> bool:
    """Whether a value is, or may be, computed from the result of a node: a longer way to it is not walked."""
    remaining, seen = [value], 0
    while remaining:
        maker = None if (value := remaining.pop()) is None else value.producer()
        if maker is node or seen > _LONGEST_WALK:
            return True
        if maker is not None:
            remaining += maker.inputs
            seen += 1
    return False


def _is_add(node: ir.Node) -> bool:
    return node.op_type == "Add" and is_standard(node)


@dataclasses.dataclass(frozen=True)
class _Pattern:
    """A normalization of a sum.

    Attributes:
        norm: the normalisation.
        total: the Add before it.
        terms: the terms of the sum, one of them without its bias; the first has the shape of the sum.
        bias: the vector added to one term, None without one.
    """

    norm: ir.Node
    total: ir.Node
    terms: tuple[ir.Value, ir.Value]
    bias: Biased | None

    @classmethod
    def of(cls, norm: ir.Node, sizes: Sizes, restrictions: Restrictions | None, *, gemms: bool) -> _Pattern | None:
        """Return the pattern that ends in a node, None if none does; without a bias that may not become part of it."""
        summed, scale = norm.inputs[0], norm.inputs[1]
        total = None if summed is None else summed.producer()
        if summed is None or scale is None or total is None or not _is_add(total):
            return None
        a, b = total.inputs
        shape = sizes.shape(summed)
        if a is None or b is None or shape is None or not _is_over_last_axis(norm, sizes):
            return None
        if sizes.shape(a) != shape:
            a, b = b, a
        if sizes.shape(a) != shape or not (sizes.shape(b) == shape or _repeats(b, summed, sizes)):
            return None
        for first, second in ((a, b), (b, a)):
            bias = biased(first, sizes, gemms=gemms)
            if bias is None or _reads(bias.vector, total):
                continue
            if restrictions is None or restrictions.fit((norm, total, bias.node)):
                whole = sizes.shape(first) == shape
                return cls(norm, total, (bias.rest, second) if whole else (second, bias.rest), bias)
        return cls(norm, total, (a, b), None)

    def fuse(self, names: NameAllocator, sizes: Sizes, removal: Removal) -> None:
        """Replace the nodes by one."""
        summed, result = self.total.outputs[0], self.norm.outputs[0]
        outputs = [ir.Value(name=names.fresh(f"{result.name}__fused"), type=result.type, shape=result.shape)]
        sizes.copy(outputs[0], result)
        if len(summed.uses()) > 1:
            total = ir.Value(name=names.fresh(f"{summed.name}__sum"), type=summed.type, shape=summed.shape)
            sizes.copy(total, summed)
            summed.replace_all_uses_with(total)
            outputs += [ir.Value(name=""), ir.Value(name=""), total]
        self.norm.prepend(self._node(outputs, names))
        if result.is_graph_output():  # it is fetched by its name
            result.name, outputs[0].name = outputs[0].name, result.name
        result.replace_all_uses_with(outputs[0], replace_graph_outputs=True)
        for old in (self.norm, self.total):
            removal.add(old)
        if self.bias is not None:
            self.bias.drop(removal)

    def _node(self, outputs: list[ir.Value], names: NameAllocator) -> ir.Node:
        operator, epsilon = _FUSED[self.norm.op_type], self.norm.attributes.get_float("epsilon", 1e-5)
        affine = [*self.norm.inputs[1:3], None][: 2 if operator == "SkipLayerNormalization" else 1]
        return ir.Node(
            _DOMAIN,
            operator,
            [*self.terms, *affine, *([] if self.bias is None else [self.bias.vector])],
            [ir.AttrFloat32("epsilon", epsilon)],
            outputs=outputs,
            name=names.fresh(f"{self.norm.name}__fused"),
            metadata_props=dict(self.norm.metadata_props),
        )


def _repeats(value: ir.Value, summed: ir.Value, sizes: Sizes) -> bool:
    """Whether a value is repeated for every sample of a batch [batch, length, size]."""
    shape = sizes.shape(summed) or ()
    return len(shape) == 3 and sizes.shape(value) in (shape[1:], (1, *shape[1:]))


def _is_over_last_axis(norm: ir.Node, sizes: Sizes) -> bool:
    shape, scale = sizes.shape(norm.inputs[0]) or (), sizes.shape(norm.inputs[1])
    last = norm.attributes.get_int("axis", -1) in (-1, len(shape) - 1)
    return last and len(shape) in _RANKS and isinstance(shape[-1], int) and scale == shape[-1:]
