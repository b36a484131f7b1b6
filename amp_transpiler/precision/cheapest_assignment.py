"""Finds the cheapest assignment: an exact minimum cut decides what the rules leave open."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.graph.operator_class import operator_class
from amp_transpiler.graph.walk import ControlPort
from amp_transpiler.ops.kinds import MOVEMENT
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.cut_network import Choices, Island, Weights, choices
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.reasons import Reason

__all__ = ["OpenDecisions", "open_decisions"]


@dataclasses.dataclass(frozen=True, slots=True)
class OpenDecisions:
    """Decisions of which some are open: about the nodes that may be either.

    Attributes:
        choices: what is open, with its costs.
    """

    choices: Choices
    _decisions: Mapping[ir.Node, Decision]
    _objective: str

    def weighed(self, weights: Weights) -> OpenDecisions:
        """Return the same decisions under other weights."""
        return dataclasses.replace(self, choices=self.choices.weighed(weights))

    def decided(self, low: Sequence[bool]) -> tuple[dict[ir.Node, Decision], tuple[ControlPort, ...]]:
        """Return the decision about every node, and the ports that are low.

        Args:
            low: item -> whether it is low.
        """
        decisions = dict(self._decisions)
        for node, other in self.choices.held():
            values = {"node": str(other.name), "fault": decisions[other].reason}
            decisions[node] = Decision("high", Reason("held", values))
        for island in self.choices.islands(low):
            decision = Decision("high", _reason(island, self._objective), neutral=True)
            decisions.update(dict.fromkeys(island.nodes, decision))
        return decisions, self.choices.low_ports(low)


def open_decisions(
    model: ir.Model,
    policy: Policy,
    decisions: Mapping[ir.Node, Decision],
    wholes: Iterable[Collection[ir.Node]],
    weights: Weights,
) -> OpenDecisions:
    """Return decisions with everything open that nothing forces.

    Args:
        model: the program.
        policy: the user's own lists bind, and so does what was decided by force.
        decisions: about every node, as if lower precision cost no casts.
        wholes: nodes that share one precision.
        weights: what nodes and casts cost.
    """
    binding = policy.rules.lists.custom_white_list
    forms = {
        node: decision.form
        for node, decision in decisions.items()
        if decision.form is not None and not decision.forced and not (binding and operator_class(node) in binding)
    }
    opened = choices(
        model,
        forms,
        {node: decision for node, decision in decisions.items() if node not in forms},
        wholes,
        weights,
        policy.low_io,
        low=policy.low,
        outputs_as_computed=policy.outputs_as_computed and not policy.training,
    )
    return OpenDecisions(opened, decisions, policy.objective)


def _reason(island: Island, objective: str) -> Reason:
    """Say why nodes that might be low are not."""
    casts = island.casts
    if objective == "time":
        return Reason("island-no-faster-casts", {"casts": casts}) if casts > 0 else Reason("island-no-faster")
    work = sum(not (is_standard(node) and node.op_type in MOVEMENT) for node in island.nodes)
    return Reason("island", {"casts": casts, "operators": work}) if work else Reason("island-moves", {"casts": casts})
