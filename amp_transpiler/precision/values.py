"""Decides the values between nodes by the decisions about nodes: which become low where they are defined."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from amp_transpiler.graph.walk import ControlPort
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.assignment import Assignment
from amp_transpiler.precision.constraints import is_float32
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ports import may_pass_low, settle_ports

__all__ = ["decide_values"]

# Paddle keeps their scales and shifts in float32, whatever their readers want.
_KEEP_PARAMETERS_FLOAT32 = {"BatchNormalization", "LayerNormalization", "InstanceNormalization"}


def decide_values(
    model: ir.Model, policy: Policy, assignment: Assignment, low_ports: Iterable[ControlPort] | None = None
) -> None:
    """Fill in the values of an assignment whose nodes are decided.

    Args:
        model: the program.
        policy: its `low_io`, `low_parameters` and `parameters` count.
        assignment: gets `low_values`, `low_uses` and `rounded_values`.
        low_ports: the ports that are low, if that is decided; else they vote.
    """
    low = assignment.low_values
    for node, decision in assignment.decisions.items():
        if decision.form is not None:
            low.update(node.outputs[index] for index in decision.form.outputs)
        assignment.rounded_values.update(node.outputs[index] for index in decision.rounded)
    graph, wanted = model.graph, policy.low_io
    low.update(value for value in graph.inputs if value.name in wanted and is_float32(value))
    if policy.low_parameters:
        low.update(value for value in graph.inputs if _is_low_parameter(value, policy, assignment))
    assignment.low_uses.update(
        (graph, index) for index, value in enumerate(graph.outputs) if value.name in wanted and is_float32(value)
    )
    if low_ports is not None:
        for port in low_ports:
            assignment.lower_port(port)
        return
    # Last: whether a port becomes low depends on the values that it passes on.
    settle_ports(assignment, lambda node: may_pass_low(model, node, assignment.low))


def _is_low_parameter(value: ir.Value, policy: Policy, assignment: Assignment) -> bool:
    """Whether a parameter is stored low: every reader wants it low, and none is a normalisation.

    A normalisation that wants its parameters low, as LayerNormalization does, reads them through casts.
    """
    if value.name not in policy.parameters or not is_float32(value):
        return False
    readers = 0
    for node, index in value.uses():
        decision = assignment.decisions.get(node)
        if decision is None or decision.takes_any:
            continue
        if decision.form is None or index not in decision.form.inputs:
            return False
        if is_standard(node) and node.op_type in _KEEP_PARAMETERS_FLOAT32:
            return False
        readers += 1
    return readers > 0
