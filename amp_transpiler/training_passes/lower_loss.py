"""Writes classification losses with operators that do not move the scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.cross_entropy import narrow_scores, sample_losses
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.graph.tensors import content_of
from amp_transpiler.graph.walk import is_used, scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["LowerLoss"]

_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
_SHORT = 1 << 20  # elements of constants that are compared: axes, numbers, ones for each class
_LOG_SOFTMAX = 13  # the opset from which LogSoftmax has one axis


class LowerLoss(Pass[PassResult]):
    """Writes SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss as plain operators, in any scope; counts them.

    ONNX Runtime has no kernel for them. It takes ONNX's definition instead, which moves the scores to another order of
    axes and back: two more tensors of their size, the largest of many a program.

    1. The loss of scores is that of `graph.cross_entropy.sample_losses`, from which the gradient is made, too. Of
       log probabilities, and of scores whose log probabilities are wanted, the label's is picked where it is.
    2. Samples that are ignored count as class 0 and have the weight 0.
    3. What computes the same, once: the gradient and other losses over the same labels read it, too.
    4. The mean of no sample that counts is 0, as in Paddle; ONNX's definition divides 0 by 0.
    5. Numbers of single samples are float32 for 16-bit scores; results have their declared types.

    The values of the model must be typed. Before opset 13 nothing is done.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for scope in scopes(model) if opset_of(model, "") >= _LOG_SOFTMAX else ():
            losses = [node for node in scope.graph if node.op_type in _LOSSES and is_standard(node)]
            for node in losses:
                builder = _Recorder(
                    model,
                    graph=scope.graph,
                    before=node,
                    names=names,
                    metadata=node.metadata_props,
                    prefix=f"{node.name or node.op_type}/",
                )
                rows = _lower(node, builder)
                scope.graph.remove(node, safe=True)
                if rows is not None:
                    _leave_out_rows(builder, *rows)
            if losses:
                scope.graph.sort()  # a node that stands for an earlier one, or is read earlier, is behind its readers
            count += len(losses)
        return PassResult(model, modified=bool(count), count=count)


class _Recorder(GraphBuilder):
    """Builds nodes and remembers them."""

    created: list[ir.Node]

    def on_created(self, values: Sequence[ir.Value]) -> None:
        node = values[0].producer()
        if node is not None:  # no constant
            self.__dict__.setdefault("created", []).append(node)


@dataclasses.dataclass(frozen=True, slots=True)
class _Samples:
    """The samples of a loss, with size 1 where the classes are.

    Attributes:
        labels: the class of each, 0 for ignored ones.
        ignored: whether each is ignored; None if none is.
        weight: the weight of each; None if all that count weigh the same.
        left_out: whether each has the weight 0; None if none has.
    """

    labels: ir.Value
    ignored: ir.Value | None
    weight: ir.Value | None
    left_out: ir.Value | None

    @classmethod
    def of(cls, node: ir.Node, builder: GraphBuilder, dtype: ir.DataType | None) -> _Samples:
        """Read the labels of a loss that is computed in an element type. The gradient rule writes the same nodes."""
        labels, weights = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
        assert labels is not None
        labels = builder.unsqueeze(labels, [1])
        ignore_index = node.attributes.get("ignore_index")
        ignored = None
        if ignore_index is not None:
            ignored = builder.compare("Equal", labels, ignore_index.as_int())
            labels = builder.where(ignored, 0, labels)
        if weights is not None:
            weight = builder.op("Gather", [builder.cast(weights, dtype), labels])
            if ignored is not None:
                weight = builder.where(ignored, 0.0, weight)
            return cls(labels, ignored, weight, builder.compare("Equal", weight, 0.0))
        if ignored is None:
            return cls(labels, None, None, None)
        nothing, full = builder.constant(0.0, dtype), builder.constant(1.0, dtype)
        return cls(labels, ignored, builder.where(ignored, nothing, full), ignored)

    def reduced(self, node: ir.Node, builder: GraphBuilder, losses: ir.Value) -> ir.Value:
        """Return the result of the loss, from the unweighted losses of the samples."""
        if len(node.inputs) > 2 and self.weight is not None:
            losses = builder.mul(losses, self.weight)
        if self.left_out is not None:
            losses = builder.where(self.left_out, 0.0, losses)  # no product: that of such a sample may not be finite
        attribute = node.attributes.get("reduction")
        reduction = "mean" if attribute is None else attribute.as_string()
        if reduction == "none":
            return builder.squeeze(losses, [1])
        if reduction == "mean" and self.weight is None:
            return builder.mean(losses, keepdims=False)
        total = builder.sum(losses, keepdims=False)
        if reduction == "sum" or self.weight is None:
            return total
        return builder.div(total, self._count(builder, self.weight, counts=len(node.inputs) < 3))

    @staticmethod
    def _count(builder: GraphBuilder, weight: ir.Value, *, counts: bool) -> ir.Value:
        """Return the sum of the weights, or 1 if no sample counts. The gradient rule writes the same nodes."""
        count = builder.sum(weight, keepdims=False)
        if counts:  # every weight is 0 or 1
            return builder.maximum(count, 1.0)
        return builder.where(builder.compare("Equal", count, 0.0), 1.0, count)


def _lower(node: ir.Node, builder: _Recorder) -> tuple[ir.Value, ir.Value] | None:
    """Write what computes a loss; return the scores and which samples do not count, where that replaces scores."""
    scores = node.inputs[0]
    assert scores is not None  # it is there in a valid model
    narrow = None if node.op_type != "SoftmaxCrossEntropyLoss" else narrow_scores(scores)
    wide = ir.DataType.FLOAT if scores.dtype in LOW_DTYPES else scores.dtype
    samples = _Samples.of(node, builder, wide)
    log_is_read = len(node.outputs) > 1 and is_used(node.outputs[1])
    if log_is_read or _has_log_softmax(scores):
        narrow = None
    if narrow is not None:
        computed = sample_losses(builder, narrow, samples.labels, samples.left_out)
        results = [samples.reduced(node, builder, computed.value)]
    else:
        likely = scores
        if node.op_type == "SoftmaxCrossEntropyLoss" and samples.left_out is not None and not log_is_read:
            scores = _chosen_scores(scores)
            likely = builder.where(samples.left_out, 0.0, scores)
        likely = builder.high(likely)
        if node.op_type == "SoftmaxCrossEntropyLoss":
            likely = builder.op("LogSoftmax", [likely], {"axis": 1})
        losses = builder.neg(builder.op("GatherElements", [likely, samples.labels], {"axis": 1}))
        results = [samples.reduced(node, builder, losses), likely]
    for created in builder.created:
        _share(created)
    for old, new in zip(node.outputs, results, strict=False):
        if is_used(old):
            take_over(old, builder.cast(new, old.dtype or scores.dtype), builder.names)
    if samples.left_out is None or log_is_read or node.op_type != "SoftmaxCrossEntropyLoss":
        return None
    return narrow or scores, samples.left_out


def _has_log_softmax(scores: ir.Value) -> bool:
    """Whether something reads float32 log probabilities: a gradient that was made before the scores were low."""
    values = [scores, *filter(None, [_cast_source(scores)])]
    for value in values:  # which grows
        values += [use.node.outputs[0] for use in value.uses() if use.node.op_type in ("Cast", "Where")]
    wide = [value for value in values if value.dtype not in LOW_DTYPES]
    return any(use.node.op_type == "LogSoftmax" for value in wide for use in value.uses())


def _chosen_scores(scores: ir.Value) -> ir.Value:
    """Return the scores among which the gradient leaves samples out: float32, or 16-bit ones that they are cast from.

    The loss reads the same node then.
    """
    source = _cast_source(scores)
    chooses = [use for use in scores.uses() if use.node.op_type == "Where"]
    return scores if source is None or chooses else source


def _cast_source(value: ir.Value) -> ir.Value | None:
    node = value.producer()
    return node.inputs[0] if node is not None and node.op_type == "Cast" and is_standard(node) else None


def _leave_out_rows(builder: _Recorder, scores: ir.Value, left_out: ir.Value) -> None:
    """Take the inputs of the last layer as 0 for samples that do not count, instead of its results.

    Their scores are then the biases, which are finite: that is all that the loss asks for. There are far more scores
    than inputs.
    """
    uses = [use for use in scores.uses() if any(map(is_used, use.node.outputs))]
    if len(uses) != 1 or uses[0].node.op_type != "Where" or scores.is_graph_output():
        return
    product = scores.producer()
    if product is not None and product.op_type == "Add" and is_standard(product):
        product = next((node for value in product.inputs if (node := _product(value)) is not None), None)
    else:
        product = _product(scores)
    if product is None or product.inputs[0] is None:
        return
    builder.before = product
    rows = builder.where(left_out, 0.0, product.inputs[0])
    product.replace_input_with(0, rows)
    uses[0].node.outputs[0].replace_all_uses_with(scores)
    assert builder.graph is not None
    builder.graph.remove(uses[0].node, safe=True)


def _product(value: ir.Value | None) -> ir.Node | None:
    """Return the product of a matrix's rows that makes a value for one reader, None if there is none."""
    node = None if value is None or len(value.uses()) != 1 or value.is_graph_output() else value.producer()
    if node is None or node.op_type not in ("MatMul", "Gemm") or not is_standard(node) or len(node.inputs) != 2:
        return None
    turned, rows = node.attributes.get("transA"), node.inputs[0]
    is_matrix = rows is not None and rows.shape is not None and len(rows.shape) == 2
    return node if is_matrix and (turned is None or not turned.as_int()) else None


def _share(original: ir.Node) -> None:
    """Let a node stand for those that compute the same from the same values; the graph is to be sorted afterwards.

    As their inputs are the same, this makes no cycle.
    """
    first = next((value for value in original.inputs if value is not None and constant_of(value) is None), None)
    for node in [] if first is None else [use.node for use in first.uses()]:
        result = node.outputs[0]
        if (
            node is original
            or node.graph is not original.graph
            or result.is_graph_output()
            or not _is_equal(original, node)
        ):
            continue
        result.replace_all_uses_with(original.outputs[0])
        assert node.graph is not None
        node.graph.remove(node, safe=True)


def _is_equal(a: ir.Node, b: ir.Node) -> bool:
    if (a.domain, a.op_type, len(a.inputs), len(b.outputs)) != (b.domain, b.op_type, len(b.inputs), 1):
        return False
    if {name: repr(each.value) for name, each in a.attributes.items()} != {
        name: repr(each.value) for name, each in b.attributes.items()
    }:
        return False
    return all(map(_is_same, a.inputs, b.inputs))


def _is_same(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Whether two values are one, or equal constants, or computed equally of such."""
    if a is b or a is None or b is None:
        return a is b
    left, right = constant_of(a), constant_of(b)
    if left is not None and right is not None:
        if left.size > _SHORT or (left.dtype, left.shape) != (right.dtype, right.shape):
            return False
        return content_of(left) == content_of(right)
    first, second = a.producer(), b.producer()
    if first is None or second is None or not (_is_of_constants(first) and _is_of_constants(second)):
        return False
    return _is_equal(first, second)


def _is_of_constants(node: ir.Node) -> bool:
    return all(value is not None and constant_of(value) is not None for value in node.inputs)
