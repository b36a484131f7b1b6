"""The result of deciding: which nodes, values and uses are low, each node with its reason."""

from __future__ import annotations

import dataclasses
from typing import Literal

import onnx_ir as ir

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.precision.constraints import LowForm

__all__ = ["Assignment", "ConstantStorage", "Decision"]

ConstantStorage = Literal["offline", "whole", "runtime"]


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about one node.

    Attributes:
        precision: `low`, `high`, or `untouched` (no float32 tensor, or control flow).
        reason: one sentence.
        form: which slots go low, for a low node.
        takes_any: its float inputs are taken as they come.
        neutral: a high node that is so only because nothing low is near; gray rules look through it.
        rounded: outputs, by index, of a high node that are stored low.
    """

    precision: Literal["low", "high", "untouched"]
    reason: str
    form: LowForm | None = None
    takes_any: bool = False
    neutral: bool = False
    rounded: frozenset[int] = frozenset()


@dataclasses.dataclass(slots=True)
class Assignment:
    """A precision for every node, and what follows for the values between them.

    Attributes:
        low: the low format.
        decisions: node -> decision, for every node of every scope, in the order of execution.
        low_values: float32 values that are born low: outputs of low nodes, ports, graph inputs if asked for.
        low_uses: (node or graph, index) of control-flow ports and graph outputs that expect low.
        missing_kernels: operator -> nodes that stay high for want of a kernel.
        rounded_values: float32 results of high nodes that are stored low: what reads them high reads them rounded.
        outputs_as_computed: outputs of the program come in the precision that they are made in.
        constants: how constants become low. `offline`: in the file, with a float32 copy where high nodes read them too;
            `whole`: in the file where all their readers want them low, else by a cast; `runtime`: by a cast.
    """

    low: LowFormat
    outputs_as_computed: bool = False
    decisions: dict[ir.Node, Decision] = dataclasses.field(default_factory=dict)
    low_values: set[ir.Value] = dataclasses.field(default_factory=set)
    low_uses: set[tuple[ir.Node | ir.Graph, int]] = dataclasses.field(default_factory=set)
    missing_kernels: dict[str, int] = dataclasses.field(default_factory=dict)
    rounded_values: set[ir.Value] = dataclasses.field(default_factory=set)
    constants: ConstantStorage = "offline"

    def wanted(self, user: ir.Node | ir.Graph, index: int) -> Literal["low", "high", "any"]:
        """In what precision a float32 value is wanted at input `index` of a node or output `index` of a graph."""
        if (user, index) in self.low_uses:
            return "low"
        if isinstance(user, ir.Graph):
            return "any" if self.outputs_as_computed and user.opset_imports else "high"
        decision = self.decisions[user]
        if decision.takes_any:
            return "any"
        return "low" if decision.form is not None and index in decision.form.inputs else "high"
