"""Puts the attributes of a node into words, long values cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

from amp_transpiler.graph.dtypes import dtype_name

__all__ = ["attribute_words"]

_LONGEST = 60  # characters of a value
_MOST = 8  # numbers of a list or tensor that are shown
_ELLIPSIS = "…"
_IN_A_WORD = {
    ir.AttributeType.SPARSE_TENSOR: "a sparse tensor",
    ir.AttributeType.SPARSE_TENSORS: "sparse tensors",
}


def attribute_words(node: ir.Node) -> dict[str, str]:
    """Return attribute -> its value as text: `kernel_shape` -> `[3, 3]`. A body has its name.

    Args:
        node: the node.
    """
    # `data` is the plain dict behind a UserDict, whose own items() takes ten times as long.
    return {name: _cut(_value(attribute)) for name, attribute in node.attributes.data.items()}


def _value(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    kind, value = attribute.type, attribute.value
    if kind is ir.AttributeType.GRAPH:
        return _body(value)
    if kind is ir.AttributeType.GRAPHS:
        return _list(map(_body, value), len(value))
    if kind is ir.AttributeType.TENSOR:
        return _tensor(value)
    if kind is ir.AttributeType.TENSORS:
        return _list(map(_tensor, value), len(value))
    if kind in _IN_A_WORD:
        return _IN_A_WORD[kind]
    if isinstance(value, (list, tuple)):
        return _list(map(_plain, value[:_MOST]), len(value))
    return _plain(value)


def _body(graph: ir.Graph) -> str:
    return f"body {graph.name}" if graph.name else "a body"


def _tensor(tensor: ir.TensorProtocol) -> str:
    """Return the numbers of a small tensor, and the type and shape of any other one; files are not read."""
    shape = ",".join(map(str, tensor.shape.numpy()))
    words = f"{dtype_name(tensor.dtype)}[{shape}]"
    if tensor.size > _MOST or tensor.dtype is ir.DataType.STRING or isinstance(tensor, ir.ExternalTensor):
        return words
    numbers = tensor.numpy()
    return f"{words} {_list(map(_plain, numbers.reshape(-1).tolist()), numbers.size)}"


def _list(items: Iterable[str], count: int) -> str:
    shown = [item for item, _ in zip(items, range(_MOST), strict=False)]
    rest = f", {_ELLIPSIS} {count} in all" if count > len(shown) else ""
    return f"[{', '.join(shown)}{rest}]"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (str, bytes)):
        return f'"{value if isinstance(value, str) else value.decode("utf-8", "replace")}"'
    return " ".join(str(value).split())


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}{_ELLIPSIS}"
