"""Writes BatchNormalization in training mode with operators that ONNX Runtime can train with."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.batch_statistics import mark_batch_statistic
from amp_transpiler.graph.builder import GraphBuilder, is_static, rank_of, shape_of
from amp_transpiler.graph.marked_gradients import GRADIENT_KEY, MarkedGradient, marked_gradients
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.graph.walk import is_used, scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.training_passes.batch_norm_forms import NormalizedBatch
from amp_transpiler.training_passes.batch_norm_rows import can_be_rows
from amp_transpiler.training_passes.cheapest_batch_norm import cheapest_form
from amp_transpiler.training_passes.dead_biases import take_dead_bias
from amp_transpiler.training_passes.normalized_convolution import NormalizedConvolution

__all__ = ["LowerBatchNorm"]

_INPUTS = 5  # X, scale, B, running mean, running variance
_MOST = 16  # layers whose two running statistics are updated together: kernels take 32 inputs without an index table
_NUM_OUTPUTS = 18  # the opset that made Split want its sizes or their number


class LowerBatchNorm(Pass[PassResult]):
    """Writes every BatchNormalization with `training_mode=1` as plain operators, in any scope; counts them.

    ONNX Runtime's CUDA provider refuses a session with the operator itself.

    1. Y is the normalised X in X's element type, whatever the types of scale and statistics.
    2. Statistics are taken in float32 (float64 for float64 data) from differences with the mean: the mean of squares
       minus the square of the mean cancels.
    3. Running statistics are `running * momentum + batch * (1 - momentum)`, with the population variance, in the types
       declared for them; those of layers of one size are updated together. The bias of a convolution in front is left
       out of it (see `dead_biases`), and added to the mean here.
    4. Where all sizes of X are known, it is normalised by rows (see `batch_norm_rows`), and so is the gradient in the
       backward pass, as far as the rule of BatchNormalization has written that and nothing has been put between.
    5. Where only the gradients of a convolution read that of X, they are rewritten with it if that is faster (see
       `batch_norm_forms`); and a convolution of one tap, whose result is not read otherwise, with the node.
    6. Otherwise mean and inverse deviation come from the node sequence that the backward pass uses too, so that ONNX
       Runtime merges both.

    The values of the model must be typed and the rank of every normalised X known.

    Args:
        by_rows: False for the second form everywhere. Its statistics are means over the batch, which processes that
            share a batch can average.
        with_convolutions: False to leave the convolutions and their gradients as they are.

    Raises:
        ModelError: the rank is not known, or an input is missing.
    """

    def __init__(self, *, by_rows: bool = True, with_convolutions: bool = True) -> None:
        self._by_rows = by_rows
        self._with_convolutions = with_convolutions

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for scope in scopes(model):
            count += _Scope(model, scope.graph, names, self._by_rows, self._with_convolutions).run()
        return PassResult(model, modified=bool(count), count=count)


@dataclasses.dataclass(frozen=True, slots=True)
class _Running:
    """The share of one layer in its running statistics.

    Attributes:
        node: the BatchNormalization.
        mean: of the batch, one number a channel.
        spread: the variance, or 1 over the deviation.
    """

    node: ir.Node
    mean: ir.Value
    spread: ir.Value


class _Scope:
    """The nodes of one graph."""

    def __init__(
        self, model: ir.Model, graph: ir.Graph, names: NameAllocator, by_rows: bool, with_convolutions: bool
    ) -> None:
        self._model = model
        self._graph = graph
        self._names = names
        self._by_rows = by_rows
        self._with_convolutions = with_convolutions
        self._gradients: list[MarkedGradient] = []

    def run(self) -> int:
        nodes = [n for n in self._graph if n.op_type == "BatchNormalization" and is_standard(n)]
        nodes = [node for node in nodes if _int(node, "training_mode")]
        self._gradients = marked_gradients(self._graph) if nodes else []
        groups: dict[Hashable, list[_Running]] = {}
        for node in nodes:
            x = _inputs(node)[0]
            builder = self._builder(node)
            bias = take_dead_bias(node, self._gradients, self._builder)
            if self._by_rows and can_be_rows(x, builder.opset):
                running = self._as_rows(node, builder, bias)
                groups.setdefault(_likeness(node), []).append(running)
            else:
                _lower(node, builder, bias)
        for group in groups.values():
            for start in range(0, len(group), _MOST):
                members = group[start : start + _MOST]
                _update_together(members, self._builder(members[-1].node))
        for node in nodes:
            x = _inputs(node)[0]
            self._graph.remove(node, safe=True)
            convolution = x.producer()
            if convolution is not None and not any(map(is_used, convolution.outputs)):
                self._graph.remove(convolution, safe=True)
        return len(nodes)

    def _builder(self, node: ir.Node | None, like: ir.Node | None = None) -> GraphBuilder:
        """Write before a node, or at the end, in the name of another."""
        like = like or node
        assert like is not None, "a name is wanted"
        metadata = dict((node or like).metadata_props)
        metadata.pop(GRADIENT_KEY, None)
        return GraphBuilder(
            self._model,
            graph=self._graph,
            before=node,
            names=self._names,
            metadata=metadata,
            prefix=f"{like.name or like.op_type}/",
        )

    def _as_rows(self, node: ir.Node, builder: GraphBuilder, left_out: ir.Value | None) -> _Running:
        x, scale, bias, _, _ = _inputs(node)
        assert x.dtype is not None
        gradients = {gradient: g for gradient in self._gradients if (g := _own_gradient(node, gradient)) is not None}
        layer = self._layer(x, gradients)
        sizes = None if layer is None else layer.sizes
        form = cheapest_form(shape_of(x), x.dtype, builder.opset, sizes)
        operands = () if layer is None else (layer.data, layer.weight)
        normalized = form.normalise(builder, x, _float(node, "epsilon", 1e-5), operands)
        if is_used(node.outputs[0]):
            take_over(node.outputs[0], normalized.affine(builder, scale, bias), builder.names)
        for gradient, g in gradients.items():
            self._gradient(node, gradient, g, normalized, layer)
        return _Running(node, _with_bias(builder, normalized.batch.mean, left_out), normalized.batch.inverse)

    def _layer(self, x: ir.Value, gradients: Mapping[MarkedGradient, ir.Value]) -> NormalizedConvolution | None:
        """Return the convolution in front, if its gradients are computed with those of the node."""
        if not self._with_convolutions or len(gradients) != 1:
            return None
        gradient = next(iter(gradients))
        to_x = gradient.results.get(0)
        return None if to_x is None else NormalizedConvolution.of(x, to_x, self._gradients)

    def _gradient(
        self,
        node: ir.Node,
        gradient: MarkedGradient,
        g: ir.Value,
        normalized: NormalizedBatch,
        layer: NormalizedConvolution | None,
    ) -> None:
        """Rewrite a gradient of the node."""
        scale = _inputs(node)[1]
        builder = self._builder(gradient.before(g), node)
        if layer is not None and normalized.moments is not None:
            results = self._layer_gradients(builder, g, scale, normalized, layer)
        else:
            results = normalized.gradients(builder, g, scale, gradient.results)
        if layer is not None and normalized.form.way == "slope":
            layer.apply_slope(normalized.slope(builder, scale), self._builder)
        for index, old in gradient.results.items():
            if index in results:
                _stand_for(old, results[index], builder)
        self._remove(gradient)

    def _layer_gradients(
        self,
        builder: GraphBuilder,
        g: ir.Value,
        scale: ir.Value,
        normalized: NormalizedBatch,
        layer: NormalizedConvolution,
    ) -> dict[int, ir.Value]:
        """Rewrite the gradients of the convolution in front, and return those of scale and bias."""
        assert normalized.moments is not None, "the form was chosen for both"
        new = normalized.moments.gradients(builder, g, scale, with_data=layer.to_data is not None)
        if layer.to_data is not None and new.data is not None:
            take_over(layer.to_data.outputs[0], new.data, builder.names)
            layer.remove_to_data()
        if layer.to_weight is not None:
            (old,) = layer.to_weight.results.values()
            _stand_for(old, new.weight, builder)
            self._remove(layer.to_weight)
        cast = layer.to_result.producer()
        if cast is not None and cast.op_type == "Cast":
            self._graph.remove(cast, safe=True)
        return {1: new.scale, 2: new.bias}

    def _remove(self, gradient: MarkedGradient) -> None:
        for node in reversed(gradient.nodes):
            self._graph.remove(node, safe=True)
        self._gradients = [other for other in self._gradients if other is not gradient]


def _own_gradient(node: ir.Node, gradient: MarkedGradient) -> ir.Value | None:
    """Return what a gradient of the node reads besides its data and scale; None if it is another's, or is not typed."""
    x, scale = _inputs(node)[:2]
    if not {x, scale} <= gradient.reads | {scale} or len(gradient.reads - {x, scale}) != 1:
        return None
    (g,) = gradient.reads - {x, scale}
    if g.dtype != x.dtype or (g.shape is not None and is_static(g) and shape_of(g) != shape_of(x)):
        return None
    return g


def _stand_for(old: ir.Value, new: ir.Value, builder: GraphBuilder) -> None:
    """Let `new` take the readers of `old`, whose type may be wider."""
    for use in list(old.uses()):
        cast = use.node.outputs[0]
        if use.node.op_type == "Cast" and cast.dtype == new.dtype and not cast.is_graph_output():
            cast.replace_all_uses_with(new)
            assert use.node.graph is not None
            use.node.graph.remove(use.node, safe=True)
    if is_used(old):
        take_over(old, builder.cast(new, old.dtype), builder.names)


def _likeness(node: ir.Node) -> Hashable:
    """Return the facts that running statistics share if they are updated together."""
    kinds = [(value.dtype, None if value.shape is None else str(value.shape)) for value in _inputs(node)[3:]]
    is_read = any(value.uses() for value in node.outputs[1:])  # read before the last layer of the group, perhaps
    return id(node) if is_read else 0, *kinds, _float(node, "momentum", 0.9), _float(node, "epsilon", 1e-5)


def _update_together(members: Sequence[_Running], builder: GraphBuilder) -> None:
    """Update the running statistics of layers of one size, whose `spread` is 1 over the deviation."""
    first = members[0].node
    updated = [(member, index) for member in members for index in (1, 2) if _has_output(member.node, index)]
    if not updated:
        return
    spread = builder.concat([member.spread for member in members], 0)
    var = builder.sub(builder.div(1.0, builder.mul(spread, spread)), _float(first, "epsilon", 1e-5))
    channels = shape_of(members[0].mean)[0]
    batch = builder.concat([*(member.mean for member in members), var], 0)
    olds = [_inputs(member.node)[3 + which] for which in (0, 1) for member in members]
    dtype = olds[0].dtype
    old = builder.reshape(builder.cast(builder.concat(olds, 0), batch.dtype), [-1, 1])
    momentum = _float(first, "momentum", 0.9)
    new = builder.add(builder.mul(old, momentum), builder.mul(batch, 1.0 - momentum))
    new = builder.reshape(builder.cast(new, dtype), [-1])
    count = len(olds)
    parts = builder.nodes("Split", [new], {"axis": 0, **_parts(builder, count)}, outputs=count)
    for part in parts:
        part.shape = ir.Shape([channels])
    for member, index in updated:
        part = parts[(index - 1) * len(members) + members.index(member)]
        take_over(member.node.outputs[index], part, builder.names)


def _parts(builder: GraphBuilder, count: int) -> dict[str, int]:
    return {"num_outputs": count} if builder.opset >= _NUM_OUTPUTS else {}


def _has_output(node: ir.Node, index: int) -> bool:
    return index < len(node.outputs) and is_used(node.outputs[index])


def _with_bias(builder: GraphBuilder, mean: ir.Value, bias: ir.Value | None) -> ir.Value:
    """Return the mean of the data with the bias that was left out of them: [C, 1] or [C]."""
    if bias is None:
        return mean
    wide = builder.cast(bias, mean.dtype)
    return builder.add(mean, builder.reshape(wide, [-1, 1]) if rank_of(mean) > 1 else wide)


def _lower(node: ir.Node, builder: GraphBuilder, left_out: ir.Value | None) -> None:
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
            decayed = builder.mul(builder.cast(running, high.dtype), momentum)
            share = _with_bias(builder, builder.reshape(batch, [-1]), left_out if batch is mean else None)
            new = builder.add(decayed, builder.mul(share, 1.0 - momentum))
            take_over(old, builder.cast(new, old.dtype or running.dtype), builder.names)


def _inputs(node: ir.Node) -> list[ir.Value]:
    inputs = [value for value in node.inputs if value is not None]
    if len(inputs) != _INPUTS:
        raise ModelError(f"node '{node.name}' (BatchNormalization) must have {_INPUTS} inputs, got {len(inputs)}")
    return inputs


def _column(builder: GraphBuilder, vector: ir.Value, data: ir.Value) -> ir.Value:
    """Return one number a channel, in the element type of `data` and laid along its channels."""
    spatial = rank_of(data) - 2
    wide = builder.cast(vector, data.dtype)
    return builder.reshape(wide, [-1, *[1] * spatial]) if spatial > 0 else wide


def _int(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    return 0 if attribute is None else attribute.as_int()


def _float(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()
