"""The size of the table that an integer input indexes: the bound of its values."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

__all__ = ["table_size"]

# Operators whose first output holds the integers of their first input, unchanged.
_PASSED_ON = {"Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Transpose", "Flatten", "Expand", "Slice", "Tile"}
# Operators whose output has the shape of their first input.
_SAME_SHAPE = {"Cast", "Identity", "DequantizeLinear"}
# com.microsoft::EmbedLayerNormalization: ids at this input index the table at that one.
_EMBED_LAYER_NORMALIZATION = {0: 2, 1: 4, 8: 3}


def table_size(value: ir.Value) -> int | None:
    """Return the number of rows of the smallest table that `value` indexes; None if no table is known.

    Integers are followed through operators that do not change them, and into bodies.
    """
    sizes: list[int] = []
    pending, seen = [value], {value}
    while pending:
        for node, index in pending.pop().uses():
            sizes += _indexed_sizes(node, index)
            if index == 0 and node.op_type in _PASSED_ON and node.outputs and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                pending.append(node.outputs[0])
    return min(sizes, default=None)


def _indexed_sizes(node: ir.Node, index: int) -> Iterator[int]:
    """Yield the number of rows of the table that input `index` of `node` indexes, if it indexes one."""
    if node.op_type in ("Gather", "GatherElements") and index == 1:
        size = _dimension(node.inputs[0], _int_attribute(node, "axis", 0))
    elif node.op_type == "EmbedLayerNormalization" and index in _EMBED_LAYER_NORMALIZATION:
        table = _EMBED_LAYER_NORMALIZATION[index]
        size = _dimension(node.inputs[table], 0) if table < len(node.inputs) else None
    elif node.op_type == "OneHot" and index == 0:
        depth = node.inputs[1].const_value if node.inputs[1] is not None else None
        size = int(depth.numpy().reshape(-1)[0]) if depth is not None and depth.size == 1 else None
    else:
        return
    if size is not None and size > 0:
        yield size


def _int_attribute(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.as_int()


def _dimension(table: ir.Value | None, axis: int) -> int | None:
    while table is not None:
        shape = table.const_value.shape if table.const_value is not None else table.shape
        if shape is not None:
            size = shape[axis] if -len(shape) <= axis < len(shape) else None
            return size if isinstance(size, int) else None
        producer = table.producer()
        table = producer.inputs[0] if producer is not None and producer.op_type in _SAME_SHAPE else None
    return None
