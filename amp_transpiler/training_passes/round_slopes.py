"""Computes a float32 cross entropy of 16-bit scores by kernels of 16 bits, which compute in float32 inside."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.cost.form_prices import seconds_of_form
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.cross_entropy import label_logarithms
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.match import bindings, parse_form
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["RoundSlopes"]

_OPSET = 17  # any from which the operators have these attributes
_UPDATES = 2  # the input of ScatterElements that is written
_MANY = 256  # samples, from which the roundings of their losses are small in the mean
_ROWWISE = frozenset({"Cast", "Div", "Exp", "Mul", "Neg", "Reshape", "Squeeze", "Sub", "Unsqueeze", "Where"})
_SLOPES = parse_form("ScatterElements(shares:Exp(likely:LogSoftmax(Cast(scores))), labels, numbers)")


class RoundSlopes(Pass[PassResult]):
    """Computes shares of classes by a Softmax of the 16-bit scores, if only 16-bit readers need them; counts them.

    A policy that computes losses in float32 casts 16-bit scores to float32, and the gradient back: three float32
    passes over the largest tensor of a step, for numbers that are rounded. A kernel's Softmax of 16 bits computes in
    float32 as well, and rounds once, where the cast did.

    1. All readers cast the gradient to the type of the scores, or are products of a row of weights with it. Such a
       product, the gradient of a bias, reads rounded numbers, as the weight's does; it sums in float32.
    2. The loss is made of the labels' log probabilities in 16 bits, too, if it is a sum over many samples, and the
       scores are float16: see `graph.cross_entropy.label_logarithms` for the error of a sample, which is rounded either
       way by chance. Losses that are read one by one stay as they are.
    3. The price list says that it takes less time.

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
        likely: the log probabilities, float32.
        scores: what they are computed of, before the cast to float32.
        casts: the readers that cast the gradient to 16 bits.
        sums: the readers that sum its weighted rows.
    """

    node: ir.Node
    likely: ir.Value
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
                return cls(node, matched["likely"], scores, casts, sums)
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
        if self._may_round_losses() and self._losses_save_time():
            self._rewrite_losses(build, shares)

    # ---- the loss ----
    def _may_round_losses(self) -> bool:
        """Return whether log probabilities are read only for one label of each sample, and of these only sums."""
        if self.scores.dtype != ir.DataType.FLOAT16 or shape_of(self.scores)[0] < _MANY:
            return False
        picks = [use.node for use in self.likely.uses()]
        if self.likely.is_graph_output() or any(each.op_type != "GatherElements" for each in picks):
            return False
        is_by_class = all(_axis(each) in (1, -1) for each in picks)
        is_one_label = len({each.inputs[1] for each in picks}) == 1
        return is_by_class and is_one_label and all(_is_only_summed(each.outputs[0]) for each in picks)

    def _losses_save_time(self) -> bool:
        """Return whether 16-bit log probabilities take less time by the price list than float32 ones."""
        dtype, sizes = self.scores.dtype, shape_of(self.scores)
        assert dtype is not None
        inputs = [(dtype, sizes), (ir.DataType.INT64, (sizes[0], 1))]
        low = seconds_of_form(lambda build, each: label_logarithms(build, each[0], each[0], each[1]), inputs, _OPSET)
        return low < seconds_of_form(_label_logarithms_in_float32, inputs, _OPSET)

    def _rewrite_losses(self, build: GraphBuilder, shares: ir.Value) -> None:
        picks = [use.node for use in self.likely.uses()]
        labels = picks[0].inputs[1]
        assert labels is not None
        build.before, build.metadata = picks[0], dict(picks[0].metadata_props)
        logarithms = label_logarithms(build, self.scores, shares, labels)
        for pick in picks:
            pick.outputs[0].replace_all_uses_with(logarithms)
            remove_unread(pick)


def _seconds_of_softmax(dtype: ir.DataType, sizes: tuple[int, ...]) -> float:
    return seconds_of_form(lambda build, inputs: build.op("Softmax", inputs, {"axis": 1}), [(dtype, sizes)], _OPSET)


def _label_logarithms_in_float32(build: GraphBuilder, inputs: Sequence[ir.Value]) -> ir.Value:
    scores, labels = inputs
    likely = build.op("LogSoftmax", [build.high(scores)], {"axis": 1})
    return build.op("GatherElements", [likely, labels], {"axis": 1})


def _is_only_summed(losses: ir.Value) -> bool:
    """Whether the numbers of samples end in sums over all of them, and among the 16-bit slopes."""
    if losses.is_graph_output():
        return False
    for use in losses.uses():
        node, result = use.node, use.node.outputs[0]
        if not is_standard(node) or not is_static(result):
            return False
        is_number = math.prod(shape_of(result)) == 1
        if node.op_type in ("ReduceSum", "ReduceMean") and is_number:
            continue
        if node.op_type == "ScatterElements" and use.idx == _UPDATES and result.dtype in LOW_DTYPES:
            continue
        if node.op_type not in _ROWWISE or not _is_only_summed(result):
            return False
    return True


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
