"""Merges equal computations of a training step, where that keeps nothing large for the backward pass."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from amp_transpiler.graph.builder import elements_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.tensors import content_of
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.ops.kinds import RANDOM
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["MergeEqual"]

_SHORT = 64  # elements: axes, shapes and factors, which several builders may have written
_SHARE = 64  # of the program's largest value: statistics of channels or rows are smaller, activations are not


class MergeEqual(Pass[PassResult]):
    """Lets the first of equal nodes stand for the others; counts the nodes that this removes.

    ONNX Runtime does so too, but whatever a result's size. The backward pass computes the centred input of a
    BatchNormalization again, in float32, from a 16-bit value: a result that is merged with the forward pass's stays in
    memory between the two, in twice the size. So sessions of training steps leave this to the pass.

    1. Nodes with equal operators, attributes and inputs are equal, those whose inputs are computed equally included.
    2. Within the forward pass, and within what follows it, all of them are merged.
    3. A node of the backward pass takes the result of one of the forward pass if that is small.

    Random operators, operators with bodies or several outputs, and what makes an output of the program stay. Only the
    main graph is edited. A program without a backward pass is not.

    Args:
        share: a value counts as small if it has at most this part of the elements of the largest one.
    """

    def __init__(self, share: int = _SHARE) -> None:
        self._share = share

    def call(self, model: ir.Model) -> PassResult:
        nodes = list(model.graph)
        border = next((index for index, node in enumerate(nodes) if role_of(node) == "backward"), None)
        if border is None:
            return PassResult(model, modified=False)
        values = (*model.graph.inputs, *(value for node in nodes for value in node.outputs))
        most = max(elements_of(value) or 0 for value in values)
        twins: dict[ir.Value, ir.Value] = {}  # value -> the first one that is computed equally
        merged = False
        computed: dict[
            tuple[Hashable, bool], ir.Value
        ] = {}  # what a node computes, on which side of the border -> result
        for index, node in enumerate(nodes):
            if len(node.outputs) != 1 or node.op_type in RANDOM or has_bodies(node):
                continue
            value, key, after = node.outputs[0], _key(node, twins), index >= border
            before = computed.get((key, False))
            same = computed.get((key, True)) if after else before
            if same is None and after and before is not None:
                size = elements_of(before)
                same = before if size is not None and size * self._share <= most else None
            computed.setdefault((key, after), value)
            twins[value] = before or same or value
            if same is not None and not value.is_graph_output():
                value.replace_all_uses_with(same)
                merged = True
        count = _remove_unused(nodes) if merged else 0
        return PassResult(model, modified=bool(count), count=count)


def _key(node: ir.Node, twins: dict[ir.Value, ir.Value]) -> Hashable:
    inputs = tuple(None if value is None else _identity(value, twins) for value in node.inputs)
    attributes = tuple(sorted((name, _content(attribute)) for name, attribute in node.attributes.items()))
    dtype = node.outputs[0].dtype
    return node.domain, node.op_type, node.overload, inputs, attributes, None if dtype is None else int(dtype)


def _identity(value: ir.Value, twins: dict[ir.Value, ir.Value]) -> Hashable:
    """Return what is the same for equal values: the content of a short constant, else the first of its twins."""
    tensor = constant_of(value)
    if tensor is not None and tensor.size <= _SHORT:
        return _of_tensor(tensor)
    return id(twins.get(value, value))


def _of_tensor(tensor: ir.TensorProtocol) -> str:
    return f"{tensor.dtype} {tensor.shape} {content_of(tensor).hex()}"


def _content(attribute: ir.Attr) -> str:
    return _of_tensor(attribute.value) if attribute.type is ir.AttributeType.TENSOR else repr(attribute.value)


def _remove_unused(nodes: list[ir.Node]) -> int:
    """Remove the nodes whose results nobody reads any more; return how many. The graph takes them out in one go."""
    gone: list[ir.Node] = []
    unread: set[ir.Node] = set()
    for node in reversed(nodes):
        values = node.outputs
        if not any(value.is_graph_output() or any(use.node not in unread for use in value.uses()) for value in values):
            gone.append(node)
            unread.add(node)
    if gone:
        graph = gone[0].graph
        assert graph is not None
        graph.remove(gone, safe=True)
    return len(gone)
