"""Bytes, FLOPs and launches of every node of a model, from its shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes, has_bodies
from amp_transpiler.precision.cost.devices import Rate
from amp_transpiler.precision.cost.operators import (
    ALIASES,
    FLOPS,
    HOST,
    LAUNCHES,
    ONLY_SHAPES,
    READS_WHAT_IT_WRITES,
    SCATTERS,
    SCRATCH,
    adds_bias,
    copied_bytes,
    in_place,
)
from amp_transpiler.precision.cost.shapes import Sizes, sizes_of

__all__ = ["NodeCost", "traffic"]

RATES: Mapping[ir.DataType | None, Rate] = {ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16"}
INDICES = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})


@dataclasses.dataclass(frozen=True, slots=True)
class NodeCost:
    """The work of one run of a node on a GPU.

    Attributes:
        node: the node.
        launches: kernels and library calls.
        read: bytes that its kernels read, each input once.
        written: bytes that they write.
        copied: bytes among `written` that the device copies without a kernel.
        flops: floating-point operations of matrix products and convolutions; 0 for what memory bounds anyway.
        rate: the format in which the device multiplies.
    """

    node: ir.Node
    launches: int
    read: int
    written: int
    copied: int
    flops: int
    rate: Rate

    @property
    def bytes(self) -> int:
        """Bytes that move between the device's memory and its kernels."""
        return self.read + self.written


def traffic(
    model: ir.Model, dims: Mapping[str, int] | None = None, *, tf32: bool = True, fuse_conv_bias: bool = True
) -> list[NodeCost]:
    """Return the cost of every node, bodies' nodes included, in the model's order.

    A body counts as if it ran once, and both branches of an `If` do. Reshape and its like are free, and so is what
    computes sizes from sizes, which ONNX Runtime leaves on the CPU. Values of unknown rank count as nothing.

    Args:
        model: a model as ONNX Runtime runs it: what it would fuse is counted as it stands.
        dims: name of an open dimension of the inputs -> its size. Others count as 1.
        tf32: whether the device multiplies float32 in TF32, as ONNX Runtime does unless told otherwise.
        fuse_conv_bias: whether a convolution adds its bias itself: the CUDA provider's option of this name, which
            this package sets.
    """
    sizes = sizes_of(model, dims)
    on_host: set[ir.Value] = set()
    costs = []
    for node in all_nodes(model):
        if _is_on_host(node, on_host, sizes):
            on_host.update(node.outputs)
            costs.append(NodeCost(node, 0, 0, 0, 0, 0, "float32"))
        else:
            cost = _cost(node, sizes, "tf32" if tf32 else "float32")
            alone = adds_bias(node) and not fuse_conv_bias
            costs.append(dataclasses.replace(cost, launches=2) if alone else cost)
    return costs


def _is_on_host(node: ir.Node, on_host: set[ir.Value], sizes: Sizes) -> bool:
    """Whether a node computes with sizes alone."""
    if node.op_type in HOST:
        return True
    inputs = [value for value in node.inputs if value is not None]
    return (
        any(value in on_host for value in inputs)
        and all(value in on_host or value.const_value is not None for value in inputs)
        and all(sizes.dtype(value) in INDICES for value in node.outputs)
    )


def _cost(node: ir.Node, sizes: Sizes, wide: Rate) -> NodeCost:
    op = node.op_type
    if op in ALIASES or op == "Constant" or has_bodies(node):
        return NodeCost(node, 0, 0, 0, 0, 0, wide)
    written = sum(map(sizes.bytes, node.inputs[2:] if op in SCATTERS and in_place(node) else node.outputs))
    launches = LAUNCHES[op](node, sizes) if op in LAUNCHES else 1
    flops = FLOPS[op](node, sizes) if op in FLOPS else 0
    read, scratch = _read(node, sizes, written), SCRATCH[op](node, sizes) if op in SCRATCH else 0
    types = map(sizes.dtype, node.inputs)
    rate = next((RATES[dtype] for dtype in types if dtype in RATES), wide)
    copied = copied_bytes(node, sizes)
    return NodeCost(node, launches, read + scratch, written + scratch, copied, flops, rate)


def _read(node: ir.Node, sizes: Sizes, written: int) -> int:
    if node.op_type in ONLY_SHAPES:
        return 0
    inputs = list(dict.fromkeys(value for value in node.inputs if value is not None))
    if node.op_type in SCATTERS and in_place(node):
        inputs = inputs[1:]
    if node.op_type in READS_WHAT_IT_WRITES:
        indices = 0 if node.op_type == "Slice" else sum(map(sizes.bytes, inputs[1:]))
        return min(written, sizes.bytes(inputs[0])) + indices
    if node.op_type == "EmbedLayerNormalization":
        return 3 * written
    return sum(map(sizes.bytes, inputs))
