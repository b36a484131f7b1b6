"""The tensors stored in a model: initializers and tensor attributes of every scope."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.graph.walk import GRAPHS, scopes
from amp_transpiler.ops.dtype_attributes import tensor_of

__all__ = ["initializer_tensors", "stored_tensors", "tensor_bytes"]


def initializer_tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield the tensor of every initializer."""
    for scope in scopes(model):
        for value in scope.graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value


def stored_tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield the tensor of every initializer, and of every attribute that holds one."""
    pending = [model.graph]
    while pending:  # one walk of its own: every conversion asks several times
        graph = pending.pop()
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
        for node in graph:
            for attribute in node.attributes.data.values():  # the plain dict: its walk is several times faster
                kind = attribute.type
                if kind is ir.AttributeType.TENSOR and not attribute.is_ref():
                    yield tensor_of(attribute)
                elif kind in GRAPHS and not attribute.is_ref():
                    pending += attribute.as_graphs() if kind is ir.AttributeType.GRAPHS else [attribute.as_graph()]


def tensor_bytes(model: ir.Model) -> Iterator[int]:
    """Yield the size in bytes of every initializer and tensor attribute of the model."""
    for tensor in stored_tensors(model):
        yield tensor.nbytes
