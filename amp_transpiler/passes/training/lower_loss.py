"""Classification losses, written with operators that do not move the scores."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import is_used, scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.training.take_over import take_over

__all__ = ["LowerLoss"]

_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
_LOG_SOFTMAX = 13  # the opset from which LogSoftmax has one axis


class LowerLoss(Pass[PassResult]):
    """Writes SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss as plain operators, in any scope; counts them.

    ONNX Runtime has no kernel for them. It takes ONNX's definition instead, which moves the scores to another order of
    axes and back: two more tensors of their size, the largest of many a program.

    1. The log probability of each label is picked where it is, by GatherElements.
    2. Samples that are ignored count as class 0 and have the weight 0.
    3. The gradient, if it is there, reads the same log probabilities.
    4. All is computed in float32 for 16-bit scores; results have their declared types.

    The values of the model must be typed. Before opset 13 nothing is done.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for scope in scopes(model) if opset_of(model, "") >= _LOG_SOFTMAX else ():
            for node in list(scope.graph):
                if node.op_type in _LOSSES and is_standard(node):
                    builder = GraphBuilder(
                        model,
                        graph=scope.graph,
                        before=node,
                        names=names,
                        metadata=node.metadata_props,
                        prefix=f"{node.name or node.op_type}/",
                    )
                    _lower(node, builder)
                    scope.graph.remove(node, safe=True)
                    count += 1
        return PassResult(model, modified=bool(count), count=count)


def _lower(node: ir.Node, builder: GraphBuilder) -> None:
    scores, labels = node.inputs[0], node.inputs[1]
    assert scores is not None  # both are there in a valid model
    assert labels is not None
    likely = builder.high(scores)
    if node.op_type == "SoftmaxCrossEntropyLoss":
        likely = builder.op("LogSoftmax", [likely], {"axis": 1})
        _share(scores, likely)
    weights = node.inputs[2] if len(node.inputs) > 2 else None
    results = [_loss(node, builder, likely, labels, weights), likely]
    for old, new in zip(node.outputs, results, strict=False):
        if is_used(old):
            take_over(old, builder.cast(new, old.dtype or scores.dtype), builder.names)


def _share(scores: ir.Value, likely: ir.Value) -> None:
    """Let `likely` stand for the log probabilities that others compute from the same scores, in float32 too."""
    wide = [use.node.outputs[0] for use in scores.uses() if use.node.op_type == "Cast"]
    for value in (scores, *wide):
        for node in [use.node for use in value.uses() if use.node.op_type == "LogSoftmax" and is_standard(use.node)]:
            result, axis = node.outputs[0], node.attributes.get("axis")
            equal = axis is not None and axis.as_int() == 1 and value.dtype == likely.dtype
            if equal and result is not likely and not result.is_graph_output():
                result.replace_all_uses_with(likely)
                assert node.graph is not None
                node.graph.remove(node, safe=True)


def _loss(
    node: ir.Node, builder: GraphBuilder, likely: ir.Value, labels: ir.Value, weights: ir.Value | None
) -> ir.Value:
    labels = builder.unsqueeze(labels, [1])
    ignore_index = node.attributes.get("ignore_index")
    ignored = None
    if ignore_index is not None:
        ignored = builder.compare("Equal", labels, ignore_index.as_int())
        labels = builder.where(ignored, 0, labels)
    losses = builder.neg(builder.op("GatherElements", [likely, labels], {"axis": 1}))
    weight = None
    if weights is not None:
        weight = builder.op("Gather", [builder.cast(weights, likely.dtype), labels])
        losses = builder.mul(losses, weight)
    if ignored is not None:
        losses = builder.where(ignored, 0.0, losses)  # no product: an ignored sample may have no finite score
        one = builder.constant(1.0, likely.dtype) if weight is None else weight
        weight = builder.where(ignored, 0.0, one)
    attribute = node.attributes.get("reduction")
    reduction = "mean" if attribute is None else attribute.as_string()
    if reduction == "none":
        return builder.squeeze(losses, [1])
    if reduction == "mean" and weight is None:
        return builder.mean(losses, keepdims=False)
    total = builder.sum(losses, keepdims=False)
    if reduction == "sum" or weight is None:
        return total
    return builder.div(total, builder.sum(weight, keepdims=False))
