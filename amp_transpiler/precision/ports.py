"""Decides the precision of values that control flow passes on: branch results, loop state, scan inputs and outputs.

Such a value has one type inside and outside the body. The majority decides, which saves casts: a vote for each source
of the value, and one for each precision in which each of its definitions is read. A tie goes to float32 for loop state,
since it accumulates, and to low otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.types import node_signature
from amp_transpiler.graph.walk import ControlPort, control_ports
from amp_transpiler.precision.assignment import Assignment
from amp_transpiler.precision.constraints import is_float32

__all__ = ["is_float32_port", "may_pass_low", "settle_ports"]


def settle_ports(assignment: Assignment, permitted: Callable[[ir.Node], bool] = lambda _: True) -> None:
    """Decide every float32 port of the program, inner ones before outer ones.

    Args:
        assignment: its nodes are decided and their low outputs are in `low_values`; gets `low_values` and `low_uses`.
        permitted: whether a control-flow node may pass the low format on.
    """
    settled: set[ir.Value] = set()
    for node in list(assignment.decisions):
        for port in control_ports(node):
            if not is_float32_port(port):
                continue
            if port.kind != "opaque" and permitted(node) and _wants_low(port, assignment, settled):
                assignment.lower_port(port)
            settled.update(port.definitions)


def is_float32_port(port: ControlPort) -> bool:
    """Whether all values of a port are float32 tensors."""
    return all(map(is_float32, (*port.definitions, *(use.value for use in port.uses))))


def may_pass_low(model: ir.Model, node: ir.Node, low: LowFormat) -> bool:
    """Whether the schema of a control-flow operator admits the low format; bfloat16 came late to it."""
    sig = node_signature(model, node)
    return sig is not None and f"tensor({low.name})" in sig.allowed.get("V", ())


def _wants_low(port: ControlPort, assignment: Assignment, settled: set[ir.Value]) -> bool:
    votes = [_source(use.value, assignment, settled) for use in port.uses]
    for value in port.definitions:
        votes += _read(value, assignment)
    low, high = votes.count("low"), votes.count("high")
    return low > high or (low == high and low > 0 and port.kind != "state")


def _source(value: ir.Value | None, assignment: Assignment, settled: set[ir.Value]) -> str | None:
    """The precision of a source; None for a constant, which can be either, or a port that is decided later."""
    assert value is not None  # it is a float32 value
    if constant_of(value) is not None:
        return None
    if value in assignment.low_values:
        return "low"
    is_body_input = value.producer() is None and value.graph is not None and not value.graph.opset_imports
    return None if is_body_input and value not in settled else "high"


def _read(value: ir.Value, assignment: Assignment) -> set[str]:
    """The precisions in which nodes, and the outputs of the program, read a value that leaves a port."""
    wants: set[str] = {assignment.wanted(use.node, use.idx) for use in value.uses()}
    graph = value.graph
    assert isinstance(graph, ir.Graph)
    if graph.opset_imports:  # the program's own: there it may be an output
        wants |= {assignment.wanted(graph, index) for index, output in enumerate(graph.outputs) if output is value}
    return wants
