"""The result of deciding: the precision of every node, with its reason, and of the values between the nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import onnx_ir as ir

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.walk import ControlPort
from amp_transpiler.precision.constraints import LowForm, is_float32
from amp_transpiler.precision.reasons import Reason

if TYPE_CHECKING:
    from amp_transpiler.precision.row_sums import RowSum

__all__ = ["Assignment", "ConstantStorage", "Decision"]

ConstantStorage = Literal["offline", "whole", "runtime"]


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """The precision of one node.

    Attributes:
        precision: `low`, `high` (float32), or `untouched` (no float32 tensor, or control flow).
        reason: why.
        form: the inputs and outputs that become low; None for a node that is not low.
        takes_any: the node accepts its float inputs in any precision.
        neutral: the node is float32 only because nothing near it is low. Rules that follow their inputs ignore it.
        rounded: outputs, by index, of a float32 node that are stored low.
        forced: the user made the node low by force (`include`): no rule, repair or saving of casts takes it back.
    """

    precision: Literal["low", "high", "untouched"]
    reason: Reason
    form: LowForm | None = None
    takes_any: bool = False
    neutral: bool = False
    rounded: frozenset[int] = frozenset()
    forced: bool = False


@dataclasses.dataclass(slots=True)
class Assignment:
    """A decision for every node, and the precision of the values between them that follows.

    Attributes:
        low: the low format.
        decisions: node -> decision, for every node of every scope, in the order of execution.
        low_values: float32 values that become low where they are defined: outputs of low nodes, values that control
            flow passes on, graph inputs if asked for.
        low_uses: (node or graph, index) of inputs of control flow and of graph outputs that expect low.
        missing_kernels: operator -> number of nodes that stay float32 only because no kernel exists.
        without_form: nodes that stay float32 since neither schema nor kernels let them be low.
        rounded_values: results of float32 nodes that are stored low: float32 readers get the rounded numbers too.
        outputs_as_computed: outputs of the program keep the precision they are computed in.
        constants: how constants become low. `offline`: in the file, with a float32 copy for float32 readers; `whole`:
            in the file if all readers want them low, else by a cast; `runtime`: by a cast.
        masks: (node, index) of constants that are masks: their "minus infinity" becomes half the format's largest
            magnitude, whatever the precision of the node.
        row_sums: low sums over rows -> the product that each is to be written as, since no kernel computes it right.
        parts: low products -> in how many parts each is to be computed, whose results are added up in float32.
    """

    low: LowFormat
    outputs_as_computed: bool = False
    decisions: dict[ir.Node, Decision] = dataclasses.field(default_factory=dict)
    low_values: set[ir.Value] = dataclasses.field(default_factory=set)
    low_uses: set[tuple[ir.Node | ir.Graph, int]] = dataclasses.field(default_factory=set)
    missing_kernels: dict[str, int] = dataclasses.field(default_factory=dict)
    without_form: list[ir.Node] = dataclasses.field(default_factory=list)
    rounded_values: set[ir.Value] = dataclasses.field(default_factory=set)
    constants: ConstantStorage = "offline"
    masks: frozenset[tuple[ir.Node, int]] = frozenset()
    row_sums: Mapping[ir.Node, RowSum] = dataclasses.field(default_factory=dict)
    parts: Mapping[ir.Node, int] = dataclasses.field(default_factory=dict)

    def with_parts(self, operands: Iterable[ir.Node], sums: Iterable[ir.Node]) -> Assignment:
        """Return the assignment of the program in which the products in parts are written so.

        Args:
            operands: the nodes that rearrange operands, and the parts themselves.
            sums: the nodes that add up.
        """
        reason = Reason("part-of-sum")
        decisions = {node: decision for node, decision in self.decisions.items() if node not in self.parts}
        low_values = set(self.low_values)
        for node in operands:
            inputs = frozenset(index for index, value in enumerate(node.inputs) if is_float32(value))
            decisions[node] = Decision("low", reason, LowForm(inputs, frozenset((0,))))
            low_values.add(node.outputs[0])
        decisions.update(dict.fromkeys(sums, Decision("high", reason)))
        return dataclasses.replace(self, decisions=decisions, low_values=low_values, parts={})

    def lower_port(self, port: ControlPort) -> None:
        """Make the values of a port low, on both sides."""
        self.low_values.update(port.definitions)
        self.low_uses.update((use.user, use.index) for use in port.uses)

    def wanted(self, user: ir.Node | ir.Graph, index: int) -> Literal["low", "high", "any"]:
        """The precision that input `index` of a node, or output `index` of a graph, wants of a float32 value."""
        if (user, index) in self.low_uses:
            return "low"
        if isinstance(user, ir.Graph):  # only the main graph has opset imports; bodies are graphs, too
            return "any" if self.outputs_as_computed and user.opset_imports else "high"
        decision = self.decisions[user]
        if decision.takes_any:
            return "any"
        return "low" if decision.form is not None and index in decision.form.inputs else "high"
