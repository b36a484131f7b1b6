"""Float32 constants limited to a range, as the float16 converters do it: zero, infinity and NaN stay what they are."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from amp_transpiler.compat.blocked import every_node
from amp_transpiler.graph.constants import read

__all__ = ["clip_constants", "clipped"]

logger = logging.getLogger(__name__)

_TENSORS = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)


def clipped(array: np.ndarray, least: float, most: float) -> np.ndarray:
    """Return `array` with every finite magnitude but zero moved into the range from `least` to `most`."""
    magnitude = np.abs(array)
    inside = np.where(magnitude > 0, np.clip(magnitude, least, most), magnitude)
    return np.where(np.isfinite(array), np.copysign(inside, array), array).astype(array.dtype)


def clip_constants(model: ir.Model, blocked: Collection[ir.Node], least: float, most: float) -> None:
    """Limit the float32 constants of a model in place, except those that only blocked nodes read.

    Args:
        model: the model.
        blocked: nodes that stay float32.
        least: the smallest magnitude other than zero.
        most: the largest finite magnitude.
    """
    for value in _constants(model):
        readers = [node for node, _ in value.uses()]
        tensor = value.const_value
        if tensor is None or not readers or all(node in blocked for node in readers):
            continue
        if (changed := _changed(tensor, str(value.name), least, most)) is not None:
            value.const_value = changed
    for node in every_node(model):
        if node not in blocked:
            _clip_attributes(node, least, most)


def _constants(model: ir.Model) -> Iterator[ir.Value]:
    for graph in {node.graph for node in every_node(model)} | {model.graph}:
        if isinstance(graph, ir.Graph):
            yield from graph.initializers.values()


def _clip_attributes(node: ir.Node, least: float, most: float) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.type not in _TENSORS or attribute.is_ref():
            continue
        is_single = attribute.type is ir.AttributeType.TENSOR
        tensors = [attribute.as_tensor()] if is_single else list(attribute.as_tensors())
        changed = [_changed(tensor, str(node.name or name), least, most) for tensor in tensors]
        if any(tensor is not None for tensor in changed):
            after = [new if new is not None else old for new, old in zip(changed, tensors, strict=True)]
            node.attributes[name] = ir.AttrTensor(name, after[0]) if is_single else ir.AttrTensors(name, after)


def _changed(tensor: ir.TensorProtocol, name: str, least: float, most: float) -> ir.TensorProtocol | None:
    """Return what a tensor becomes; None if it stays as it is."""
    if tensor.dtype != ir.DataType.FLOAT or tensor.size == 0:
        return None
    before = read(tensor, np.array)
    after = clipped(before, least, most)
    if np.array_equal(before, after, equal_nan=True):
        return None
    logger.warning("constant '%s': %d elements clipped to %g ... %g", name, int((before != after).sum()), least, most)
    return ir.tensor(after, name=tensor.name)
