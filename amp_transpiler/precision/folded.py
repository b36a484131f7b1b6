"""Finds nodes that compute only from constants. ONNX Runtime folds them: it runs them once, when it loads a model.

They stay float32, since ONNX Runtime folds on the CPU, which has float32 kernels for all of them but few float16
kernels. A node that it could not fold would run every time. Some could not even be loaded: networks that standardise
their weights by a BatchNormalization in training mode, which the CUDA provider refuses.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.walk import bodies
from amp_transpiler.ops.kinds import MOVEMENT, RANDOM
from amp_transpiler.ops.names import is_standard

__all__ = ["folded_nodes"]


def folded_nodes(nodes: Iterable[ir.Node]) -> set[ir.Node]:
    """Return the nodes that compute only from constants, and those that move constants to such nodes.

    Nodes that only move constants to other readers are not among them: they may be low, and their constants too.

    Args:
        nodes: in the order of execution.
    """
    constant: dict[ir.Value, ir.Node] = {}
    folded: set[ir.Node] = set()
    order: list[ir.Node] = []
    for node in nodes:
        inputs = [value for value in node.inputs if value is not None]
        if not inputs or node.op_type in RANDOM or any(True for _ in bodies(node)):
            continue
        if node.op_type == "DequantizeLinear":  # kept as it is, so that quantized weights stay small
            continue
        if all(value in constant or constant_of(value) is not None for value in inputs):
            constant.update(dict.fromkeys(node.outputs, node))
            order.append(node)
    for node in reversed(order):
        if node in folded or not (is_standard(node) and node.op_type in MOVEMENT):
            folded.add(node)
            folded.update(constant[value] for value in node.inputs if value in constant)
    return folded
