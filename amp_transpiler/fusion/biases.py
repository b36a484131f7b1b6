"""Vectors that are added to a value last, and can be given to the operator that reads it."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.removal import Removal

__all__ = ["Biased", "biased"]

_BIAS = 2  # the input of Gemm


@dataclasses.dataclass(frozen=True, slots=True)
class Biased:
    """A value to which a vector was added last.

    Attributes:
        rest: what the vector was added to; of a Gemm the value itself, which is without it once the Gemm is.
        vector: of the size of the last axis.
        node: the Add, or the Gemm.
    """

    rest: ir.Value
    vector: ir.Value
    node: ir.Node

    def drop(self, removal: Removal) -> None:
        """Let the node add it no more; an Add goes. Whoever read the value must read `rest` by now."""
        if self.node.op_type == "Gemm":
            self.node.resize_inputs(_BIAS)
        else:
            removal.add(self.node)


def biased(value: ir.Value, sizes: Sizes, *, gemms: bool) -> Biased | None:
    """Return how a value was made by adding a vector; None if it was not, or if others read it or what is between.

    Args:
        value: the value, of which one node reads.
        sizes: of the graph.
        gemms: the bias of a Gemm counts, also behind Reshapes that keep the last axis.
    """
    node, shape = value.producer(), sizes.shape(value)
    if node is None or not shape or not _is_read_once(value) or not is_standard(node):
        return None
    if node.op_type != "Add":
        return _of_gemm(value, sizes) if gemms else None
    for rest, vector in (tuple(node.inputs), tuple(reversed(node.inputs))):
        if rest is None or vector is None or not isinstance(shape[-1], int):
            continue
        if sizes.shape(rest) == shape and sizes.shape(vector) == shape[-1:]:
            return Biased(rest, vector, node)
    return None


def _of_gemm(value: ir.Value, sizes: Sizes) -> Biased | None:
    width = (sizes.shape(value) or ("",))[-1:]
    product: ir.Value | None = value
    while product is not None and _is_read_once(product) and (sizes.shape(product) or ())[-1:] == width:
        node = product.producer()
        if node is None or not is_standard(node):
            return None
        if node.op_type == "Gemm":
            vector = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
            is_plain = node.attributes.get_float("beta", 1.0) == 1.0 and isinstance(width[0], int)
            return Biased(value, vector, node) if vector and sizes.shape(vector) == width and is_plain else None
        product = node.inputs[0] if node.op_type == "Reshape" else None
    return None


def _is_read_once(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()
