"""Holds the decisions so far, as rules query them: which values are low, and which are float32 by a decision."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.walk import ControlPort
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.constraints import Constraints, LowForm
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.rules import Leaning

__all__ = ["DecisionState"]


class DecisionState:
    """The `State` that rules query, filled node by node.

    Args:
        policy: the policy that decides.
        constraints: the constraints of the program's nodes.
    """

    def __init__(self, policy: Policy, constraints: Constraints) -> None:
        self._policy = policy
        self._constraints = constraints
        self._leaning: dict[ir.Value, Leaning] = {}  # of values whose producer has a precision of its own
        self._has_low: set[ir.Value] = set()  # filled for rules that look ahead only

    def leaning(self, value: ir.Value) -> Leaning | None:
        """The precision in which the producer of a value computes it; None if that has none of its own."""
        return self._leaning.get(value)

    def is_low(self, value: ir.Value) -> bool:
        """Whether the value is low where it is computed, by a decision or in the source program."""
        if value.dtype == self._policy.low.dtype or self._leaning.get(value) == "low":
            return True
        return value.name in self._policy.low_io and value.is_graph_input()

    def has_low(self, value: ir.Value) -> bool:
        """Whether the value is low, or some node reads it through a cast to low."""
        return value in self._has_low or self.is_low(value)

    def is_parameter(self, value: ir.Value) -> bool:
        """Whether the value is a constant, or a parameter of a training program."""
        return constant_of(value) is not None or value.name in self._policy.parameters

    def form_with(self, node: ir.Node, inputs: frozenset[int]) -> LowForm | None:
        """The form of a node in which exactly these float32 inputs are low; None if the target does not run it."""
        return self._constraints.of(node, inputs=inputs).form

    def low_somewhere(self) -> list[ir.Value]:
        """The values that some node computes or reads low."""
        return list(self._has_low)

    def note(self, node: ir.Node, decision: Decision) -> list[ir.Value]:
        """Take a decision in. Return the values that some node computes or reads low since, if rules look ahead."""
        form, neutral = decision.form, decision.precision == "untouched" or decision.neutral
        for index, value in enumerate(node.outputs if not neutral else ()):
            self._leaning[value] = "low" if form is not None and index in form.outputs else "high"
        if form is None or not self._policy.rules.looks_ahead:
            return []
        touched = [*(node.inputs[index] for index in form.inputs), *(node.outputs[index] for index in form.outputs)]
        new = [value for value in touched if value is not None and value not in self._has_low]
        self._has_low.update(new)
        return new

    def pass_on(self, ports: list[ControlPort], *, inward: bool) -> None:
        """Give values that control flow passes on the leaning of their sources; float32 wins if these differ.

        Args:
            ports: the ports of one control-flow node.
            inward: the values that enter the bodies, known before the bodies are decided; else those that leave them.
        """
        for port in ports:
            sources = [
                self._leaning.get(use.value)
                for use in port.uses
                if use.value is not None and isinstance(use.user, ir.Node) == inward
            ]
            leaning: Leaning | None = None
            if "high" in sources:
                leaning = "high"
            elif "low" in sources:
                leaning = "low"
            for value in port.definitions:
                if leaning is not None and (value.producer() is None) == inward:
                    self._leaning[value] = leaning
