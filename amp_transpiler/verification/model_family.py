"""Recognises the family of a transformer by its graph: an encoder of text, a decoder, an encoder of images or sound."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

import onnx_ir as ir

from amp_transpiler.ops.names import is_standard

__all__ = ["Attention", "Family", "ModelFamily", "family_of"]

Family = Literal["bert", "gpt2", "llama", "vit", "clip", "speech", "bart", "t5"]

_BELOW = 4000  # nodes that are looked at on the way up from a mask
_COMPARISONS = ("LessOrEqual", "Less", "GreaterOrEqual", "Greater", "Trilu")


@dataclasses.dataclass(frozen=True, slots=True)
class Attention:
    """The facts that tell a family.

    Attributes:
        query: the value that attends.
        key: the value that is attended to.
        masks: what the scores meet.
        heads: how many.
        width: of all heads together.
    """

    query: ir.Value
    key: ir.Value
    masks: tuple[ir.Value, ...]
    heads: int
    width: int


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFamily:
    """A transformer.

    Attributes:
        name: its family.
        heads: heads of an attention, the most frequent number.
        width: of all heads together.
        layers: attentions.
    """

    name: Family
    heads: int
    width: int
    layers: int


def family_of(graph: ir.Graph, attentions: Sequence[Attention]) -> ModelFamily | None:
    """Return the family of a transformer; None if it has no attention.

    Args:
        graph: the graph.
        attentions: its attentions.
    """
    if not attentions:
        return None
    sizes = [(attention.heads, attention.width) for attention in attentions]
    heads, width = max(sorted(set(sizes)), key=sizes.count)
    return ModelFamily(_name(graph, attentions), heads, width, len(attentions))


def _name(graph: ir.Graph, attentions: Sequence[Attention]) -> Family:
    ids = any(value.dtype is not None and value.dtype.is_integer() for value in graph.inputs)
    images = any(_rank(value) == 4 and _is_float(value) for value in graph.inputs)
    operators = {node.op_type for node in graph if is_standard(node)}
    crossed = any(set(_sources(attention.query)).isdisjoint(_sources(attention.key)) for attention in attentions)
    normalised_by_squares = "LayerNormalization" not in operators
    if images:
        return "clip" if ids else "vit"
    if not ids and "Conv" in operators:
        return "speech"
    if "Cos" in operators and "Sin" in operators and normalised_by_squares:
        return "llama"
    if "Log" in operators and normalised_by_squares:  # distances between tokens in buckets
        return "t5"
    if crossed:
        return "bart"
    return "gpt2" if _is_causal(attentions) else "bert"


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else value.shape.rank()


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _sources(value: ir.Value) -> Iterator[ir.Value]:
    """Yield what a projection is made of: the values behind products, sums with constants and changes of shape."""
    current: ir.Value | None = value
    for _ in range(16):
        if current is None:
            return
        node = current.producer()
        yield current
        if node is None or node.op_type in ("LayerNormalization", "RMSNormalization", "SkipLayerNormalization"):
            return
        inputs = [part for part in node.inputs if part is not None and part.const_value is None]
        current = inputs[0] if inputs else None


def _is_causal(attentions: Sequence[Attention]) -> bool:
    """Whether a mask compares positions with positions, or is cut from a triangle."""
    masks = [mask for attention in attentions for mask in attention.masks]
    return any(_compares_positions(node) for node in _above(masks))


def _compares_positions(node: ir.Node) -> bool:
    if node.op_type == "Trilu":
        return True
    if node.op_type in _COMPARISONS and len(node.inputs) == 2:
        return all(
            any(above.op_type == "Range" for above in _above([part], 12)) for part in node.inputs if part is not None
        )
    shape = None if node.op_type != "Slice" or node.inputs[0] is None else node.inputs[0].shape
    held = None if shape is None or node.inputs[0] is None else node.inputs[0].const_value
    return held is not None and shape is not None and shape.rank() == 4 and shape[2] == shape[3] and shape[3] != 1


def _above(values: Sequence[ir.Value], most: int = _BELOW) -> Iterator[ir.Node]:
    """Yield the nodes that values are computed by, nearest first."""
    seen: set[ir.Node] = set()
    ahead = list(values)
    while ahead and len(seen) < most:
        node = ahead.pop(0).producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        ahead += [part for part in node.inputs if part is not None]
