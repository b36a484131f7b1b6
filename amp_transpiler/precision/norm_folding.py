"""Chooses the BatchNormalization nodes to fold into the operator before them."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from amp_transpiler.graph.regions import DISABLE_AMP, region_of
from amp_transpiler.precision.constraints import Constraints
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.rules import Rules

__all__ = ["folds_norm"]


def folds_norm(constraints: Constraints, rules: Rules, ranges: RangeFaults) -> Callable[[ir.Node], bool]:
    """Return a test for BatchNormalization nodes: fold one if it must stay float32 and its producer need not.

    Nodes in a `disable_amp` region are not rewritten, and no node is folded across the border of a region.
    """

    def can_be_low(node: ir.Node) -> bool:
        inputs = rules.low_inputs_of_norms if node.op_type == "BatchNormalization" else None
        form = constraints.of(node, inputs=inputs).form
        return form is not None and not any(ranges.of(node.inputs[index]) for index in form.inputs)

    def folds(node: ir.Node) -> bool:
        producer = node.inputs[0].producer() if node.inputs[0] is not None else None
        if producer is None or DISABLE_AMP in region_of(node) or region_of(node) != region_of(producer):
            return False
        return rules.may_fold(node, producer) and can_be_low(producer) and not can_be_low(node)

    return folds
