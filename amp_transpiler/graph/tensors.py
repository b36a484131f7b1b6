"""The tensors stored in a model: initializers and tensor attributes of every scope."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.graph.walk import GRAPHS, scopes
from amp_transpiler.ops.dtype_attributes import tensor_of

__all__ = ["content_of", "element_bytes", "initializer_tensors", "stored_tensors", "tensor_bytes"]

_TEXT_BYTES = 32
"""Of a text in memory: a C++ string, without what it points to."""


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


def content_of(tensor: ir.TensorProtocol) -> bytes:
    """Return the content of a tensor as bytes, equal for equal content: of texts, each after its length.

    `tobytes` of `onnx_ir` knows no texts. Neither type nor shape is part of it.
    """
    if tensor.dtype != ir.DataType.STRING:
        return tensor.tobytes()
    held = tensor.string_data() if isinstance(tensor, ir.StringTensor) else tensor.numpy().ravel().tolist()
    texts = [text.encode() if isinstance(text, str) else bytes(text) for text in held]
    return b"".join(len(text).to_bytes(8, "little") + text for text in texts)


def element_bytes(dtype: ir.DataType) -> float:
    """Return the bytes that an element takes in memory, half a byte of a 4-bit number; the handle of a text."""
    return _TEXT_BYTES if dtype == ir.DataType.STRING else float(dtype.itemsize)


def tensor_bytes(model: ir.Model) -> Iterator[int]:
    """Yield the size in bytes of every initializer and tensor attribute of the model."""
    for tensor in stored_tensors(model):
        yield tensor.nbytes
