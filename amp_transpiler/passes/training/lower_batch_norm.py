"""BatchNormalization in training mode, written with operators that ONNX Runtime can train with."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.batch_statistics import mark_batch_statistic
from amp_transpiler.graph.builder import GraphBuilder, rank_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import is_used, scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.training.take_over import take_over

__all__ = ["LowerBatchNorm"]

_INPUTS = 5  # X, scale, B, running mean, running variance


class LowerBatchNorm(Pass[PassResult]):
    """Writes every BatchNormalization with `training_mode=1` as plain operators, in any scope; counts them.

    ONNX Runtime's CUDA provider refuses a session with the operator itself.

    1. Y is the normalised X in X's element type, whatever the types of scale and statistics.
    2. Statistics are taken in float32 (float64 for float64 data) in two passes: the mean of squares minus the square of
       the mean cancels.
    3. Running statistics are `running * momentum + batch * (1 - momentum)`, with the population variance, in the types
       declared for them.
    4. Mean and inverse deviation come from the node sequence that the backward pass uses too, so that ONNX Runtime
       merges both.

    The values of the model must be typed and the rank of every normalised X known.

    Raises:
        ModelError: the rank is not known, or an input is missing.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for scope in scopes(model):
            for node in list(scope.graph):
                if node.op_type == "BatchNormalization" and is_standard(node) and _int(node, "training_mode"):
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
    x, scale, bias, running_mean, running_var = _inputs(node)
    axes = [axis for axis in range(rank_of(x)) if axis != 1]
    high = builder.high(x)
    mean = builder.mean(high, axes)
    centred = builder.sub(high, mean)
    var = builder.mean(builder.mul(centred, centred), axes)
    for statistic in (mean, var):
        mark_batch_statistic(statistic)
    if is_used(node.outputs[0]):
        inv = builder.div(1.0, builder.op("Sqrt", [builder.add(var, _float(node, "epsilon", 1e-5))]))
        normal = builder.mul(centred, inv)
        y = builder.add(builder.mul(normal, _column(builder, scale, high)), _column(builder, bias, high))
        take_over(node.outputs[0], builder.cast(y, x.dtype), builder.names)
    momentum = _float(node, "momentum", 0.9)
    for old, running, batch in zip(node.outputs[1:], (running_mean, running_var), (mean, var), strict=False):
        if is_used(old):
            kept = builder.mul(builder.cast(running, high.dtype), momentum)
            new = builder.add(kept, builder.mul(builder.reshape(batch, [-1]), 1.0 - momentum))
            take_over(old, builder.cast(new, old.dtype or running.dtype), builder.names)


def _inputs(node: ir.Node) -> list[ir.Value]:
    given = [value for value in node.inputs if value is not None]
    if len(given) != _INPUTS:
        raise ModelError(f"node '{node.name}' (BatchNormalization) must have {_INPUTS} inputs, got {len(given)}")
    return given


def _column(builder: GraphBuilder, vector: ir.Value, data: ir.Value) -> ir.Value:
    """One number a channel, in the element type of `data` and laid along its channels."""
    spatial = rank_of(data) - 2
    wide = builder.cast(vector, data.dtype)
    return builder.reshape(wide, [-1, *[1] * spatial]) if spatial > 0 else wide


def _int(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    return 0 if attribute is None else attribute.as_int()


def _float(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()
