"""Writing what a kernel computes: float32 operators, with the roundings that the kernel makes in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.dtypes import LowFormat, float_format
from amp_transpiler.targets.kernel_conditions import ShapeOf

__all__ = ["STEP", "Rule", "Steps", "named"]

STEP = "amp_transpiler.step"
"""The mark of a node that is a step of a kernel, and no kernel itself."""

_SPLIT = 8193.0  # 2**13 + 1, which cuts 13 bits off


class Steps(GraphBuilder):
    """Inserts operators before a node, in float32.

    Args:
        model: the model.
        node: the node whose kernel is written.
        shape_of: the shapes of a run.
        draw: the input that says which draw it is; None where kernels are written without noise.
        shares: another builder of the model, to share names and constants with.
        tf32: the input that says whether float32 products are computed in TF32; None: they are.
        noise: half units in the last place by which the kernel may differ from its rule.
        place: a number for the node, so that no two have the same noise.

    Attributes:
        low: the format that the kernel rounds to.
    """

    def __init__(
        self,
        model: ir.Model,
        node: ir.Node,
        shape_of: ShapeOf,
        draw: ir.Value | None,
        shares: GraphBuilder,
        *,
        tf32: ir.Value | None = None,
        noise: float = 0.0,
        place: int = 0,
    ) -> None:
        super().__init__(model, graph=_graph_of(node), before=node, names=shares.names, prefix="device_", shares=shares)
        self.shape_in_run, self.draw, self.tf32, self.noise, self.place = shape_of, draw, tf32, noise, place
        dtype = next((value.dtype for value in node.outputs if value.dtype is not None), ir.DataType.FLOAT)
        self.low: LowFormat = float_format(dtype)

    def on_node(self, node: ir.Node) -> None:
        """Mark a node as a step: it is no kernel of the program."""
        node.meta[STEP] = True

    def rank_in_run(self, value: ir.Value | None) -> int:
        """Return the rank of a value; 0 where it is not known."""
        if value is not None and value.shape is not None:
            return len(value.shape)
        return len(self.shape_in_run(value) or ())

    def wide(self, value: ir.Value | None) -> ir.Value | None:
        """Return a value in float32 if it is low, else as it is."""
        return None if value is None else self.high(value)

    def rounded(self, value: ir.Value) -> ir.Value:
        """Return a float32 value rounded to the format, in float32."""
        return self.cast(self.cast(value, self.low.dtype), ir.DataType.FLOAT)

    def head(self, value: ir.Value) -> ir.Value:
        """Return the first 11 of the 24 bits of a float32 value, rounded to even: Veltkamp's split."""
        scaled = self.mul(value, _SPLIT)
        return self.sub(scaled, self.sub(scaled, value))

    def held(self, number: float) -> float:
        """Return a constant of the kernel as the format holds it."""
        return float(np.float32(number).astype(self.low.numpy))


Rule: TypeAlias = Callable[[ir.Node, Steps], "list[ir.Value] | ir.Value"]
"""Writes a kernel before its node; returns the float32 results, which are yet to be rounded to the format."""


def named(*rules: Rule) -> Mapping[str, Rule]:
    """Return rules by the names that `targets/data/arithmetic.txt` has for them: those of their functions."""
    return MappingProxyType({rule.__name__: rule for rule in rules})


def _graph_of(node: ir.Node) -> ir.Graph:
    graph = node.graph
    if not isinstance(graph, ir.Graph):
        raise TypeError(f"node '{node.name}' ({node.op_type}) is in no graph")
    return graph
