"""Computes the gradient of a float32 cross entropy in 16 bits, where it is rounded to these anyway."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.match import bindings, parse_form
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.training_passes.form_prices import seconds_of_form

__all__ = ["RoundSlopes"]

_OPSET = 17  # any from which the operators have these attributes
_SLOPES = parse_form("ScatterElements(shares:Exp(likely:LogSoftmax(Cast(scores))), labels, numbers)")


class RoundSlopes(Pass[PassResult]):
    """Computes shares of classes by a Softmax of the 16-bit scores, if only 16-bit readers need them; counts them.

    A policy that computes losses in float32 casts 16-bit scores to float32, and the gradient back: three float32
    passes over the largest tensor of a step, for numbers that are rounded. A kernel's Softmax of 16 bits computes in
    float32 as well, and rounds once, where the cast did. The loss itself stays float32.

    1. All readers cast the gradient to the type of the scores, or are products of a row of weights with it. Such a
       product, the gradient of a bias, reads rounded numbers, as the weight's does; it sums in float32.
    2. The price list says that it takes less time.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        chosen = [slopes for node in model.graph if (slopes := _Slopes.of(node)) is not None and slopes.saves_time()]
        names = NameAllocator(model) if chosen else None
        for slopes in chosen:
            assert names is not None
            slopes.rewrite(model, names)
        if chosen:
            model.graph.sort()
        return PassResult(model, modified=bool(chosen), count=len(chosen))


@dataclasses.dataclass(frozen=True, slots=True)
class _Slopes:
    """The gradient of a cross entropy by scores, float32.

    Attributes:
        node: writes the labels' numbers among the shares.
        scores: what the shares are computed of, before the cast to float32.
        casts: the readers that cast the gradient to 16 bits.
        sums: the readers that sum its weighted rows.
    """

    node: ir.Node
    scores: ir.Value
    casts: tuple[ir.Node, ...]
    sums: tuple[ir.Node, ...]

    @classmethod
    def of(cls, node: ir.Node) -> _Slopes | None:
        """Return the gradient that a node makes; None if it is none, or is read in float32."""
        value = node.outputs[0]
        for matched in bindings(_SLOPES, node):
            scores, shares = matched["scores"], matched["shares"]
            if scores.dtype not in LOW_DTYPES or not is_static(scores) or len(shape_of(scores)) != 2:
                return None
            if value.is_graph_output() or shares.is_graph_output() or len(shares.uses()) > 1:
                return None
            readers = [use.node for use in value.uses()]
            casts = tuple(each for each in readers if _is_cast(each, scores.dtype))
            sums = tuple(each for each in readers if _sums_weighted_rows(each, value))
            is_along_classes = all(_axis(each) in (1, -1) for each in (node, matched.node("likely")))
            if casts and len(casts) + len(sums) == len(readers) and is_along_classes:
                return cls(node, scores, casts, sums)
        return None

    def saves_time(self) -> bool:
        """Return whether one Softmax in 16 bits takes less time by the price list than what it stands for."""
        dtype, sizes = self.scores.dtype, shape_of(self.scores)
        assert dtype is not None
        as_before = seconds_of_form(
            lambda build, inputs: build.cast(build.op("Exp", inputs), dtype), [(ir.DataType.FLOAT, sizes)], _OPSET
        )
        return _seconds_of_softmax(dtype, sizes) < as_before

    def rewrite(self, model: ir.Model, names: NameAllocator) -> None:
        """Edit the graph."""
        _, labels, numbers = self.node.inputs
        assert labels is not None
        assert numbers is not None
        build = GraphBuilder(model, before=self.node, names=names, metadata=self.node.metadata_props)
        shares = build.op("Softmax", [self.scores], {"axis": 1})
        low = build.op("ScatterElements", [shares, labels, build.cast(numbers, self.scores.dtype)], {"axis": 1})
        for cast in self.casts:
            cast.outputs[0].replace_all_uses_with(low)
        for product in self.sums:
            build.before, build.metadata = product, dict(product.metadata_props)
            total = build.op("MatMul", [_in_low(build, product.inputs[0], low.dtype), low])
            take_over(product.outputs[0], build.high(total), names)
        assert build.graph is not None
        build.graph.remove([*self.casts, *self.sums], safe=True)
        remove_unread(self.node)


def _seconds_of_softmax(dtype: ir.DataType, sizes: tuple[int, ...]) -> float:
    return seconds_of_form(lambda build, inputs: build.op("Softmax", inputs, {"axis": 1}), [(dtype, sizes)], _OPSET)


def _is_cast(node: ir.Node, dtype: ir.DataType | None) -> bool:
    result = node.outputs[0]
    return node.op_type == "Cast" and is_standard(node) and result.dtype == dtype and not result.is_graph_output()


def _sums_weighted_rows(node: ir.Node, matrix: ir.Value) -> bool:
    """Whether a node multiplies a row of weights with a matrix."""
    if node.op_type != "MatMul" or not is_standard(node) or node.outputs[0].is_graph_output():
        return False
    weights, other = node.inputs
    is_row = weights is not None and is_static(weights) and shape_of(weights) == (1, shape_of(matrix)[0])
    return is_row and other is matrix


def _axis(node: ir.Node) -> int:
    return node.attributes.get_int("axis", 0 if node.op_type == "ScatterElements" else -1)


def _in_low(build: GraphBuilder, weights: ir.Value | None, dtype: ir.DataType | None) -> ir.Value:
    """Return a row of weights in 16 bits, from a cast that is there for the column that it is a view of."""
    assert weights is not None
    view = weights.producer()
    column = view.inputs[0] if view is not None and view.op_type == "Reshape" else None
    casts = [] if column is None else [use.node for use in column.uses() if _is_cast(use.node, dtype)]
    if not casts:
        return build.cast(weights, dtype)
    return build.reshape(casts[0].outputs[0], list(shape_of(weights)))
