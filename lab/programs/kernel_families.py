"""Families of kernels: of nodes of our steps, and of kernels of PyTorch by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx_ir as ir

from amp_transpiler.cost.shapes import Sizes

__all__ = ["FAMILIES", "family_of_kernel", "family_of_node", "updates_of"]

_OPERATORS: Mapping[str, frozenset[str]] = {
    "matrix products": frozenset({"MatMul", "FusedMatMul", "Gemm"}),
    "convolutions": frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool"}),
    "normalisation": frozenset(
        {"LayerNormalization", "SkipLayerNormalization", "BatchNormalization", "InstanceNormalization"}
    ),
    "loss": frozenset({"LogSoftmax", "Softmax", "GatherElements"}),
    "sums": frozenset({"ReduceSum", "ReduceMean"}),
    "casts": frozenset({"Cast"}),
    "look-ups and scatters": frozenset({"Gather", "GatherND", "ScatterND", "ScatterElements", "OneHot"}),
    "movement": frozenset({"Transpose", "Concat", "Split", "Slice", "Expand", "Pad", "Tile"}),
}
_KERNELS = (  # the first that the name of a kernel of PyTorch contains
    ("attention", "fmha|flash|sdpa|attention"),
    ("normalisation", "bn_fw|bn_bw|batch_norm|layer_norm|LayerNorm|GammaBeta"),
    ("loss", "SoftMax|softmax|nll_loss"),
    ("convolutions", "wgrad|dgrad|fprop|nchwToNhwc|nhwcToNchw|convolve|implicit_gemm|max_pool"),
    ("optimizer", "multi_tensor_apply"),
    ("casts", "copy_kernel|float16_copy"),
    ("look-ups and scatters", "embedding|index|gather|scatter"),
    ("sums", "reduce_kernel"),
    ("matrix products", "nvjet|cutlass|gemm|cublas"),
)
FAMILIES = (
    "matrix products", "convolutions", "attention", "normalisation", "loss", "elementwise", "casts", "movement", "sums",
    "look-ups and scatters", "optimizer",
)  # fmt: skip
"""In the order of the page's tables."""


def family_of_node(node: ir.Node, sizes: Sizes, *, is_update: bool) -> str:
    """Return the family of a node; `is_update` says that it serves nothing but new states."""
    if is_update:
        return "optimizer"
    operator = next((name for name, operators in _OPERATORS.items() if node.op_type in operators), "elementwise")
    rank = len(sizes.shape(node.outputs[0]) or ())
    if rank >= 4 and node.op_type in ("MatMul", "FusedMatMul", "Softmax"):
        return "attention"
    return operator


def family_of_kernel(name: str) -> str:
    """Return the family of a kernel of PyTorch."""
    return next((family for family, pattern in _KERNELS if re.search(pattern, name)), "elementwise")


def updates_of(graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes that serve nothing but results with elements: behind the last products, the optimizer's."""
    updates: set[ir.Node] = set()
    for node in reversed(graph):
        if node.op_type in _OPERATORS["matrix products"] | _OPERATORS["convolutions"] | {"ReduceSum"}:
            continue
        readers = [use.node for value in node.outputs for use in value.uses()]
        is_result = any(
            value.is_graph_output() and value.shape is not None and value.shape.rank() for value in node.outputs
        )
        if (readers or is_result) and all(reader in updates for reader in readers):
            updates.add(node)
    return updates
