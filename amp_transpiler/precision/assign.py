"""Deciding: from a typed program and a policy to a precision for every node. Pure: nothing is edited."""

from __future__ import annotations

import collections
from collections.abc import Mapping

import onnx_ir as ir

from amp_transpiler.graph.regions import DISABLE_AMP, FP16_GUARD, region_of
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.types import node_signature
from amp_transpiler.graph.walk import bodies, constant_of, control_ports
from amp_transpiler.ops.kinds import CAPPED
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.precision.assignment import Assignment, Decision
from amp_transpiler.precision.constraints import Constraint, Constraints, LowForm, is_float32, touches_float32
from amp_transpiler.precision.folded import folded_nodes
from amp_transpiler.precision.islands import islands
from amp_transpiler.precision.numerics import in_order, unsafe_nodes
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ports import settle_ports
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.rules import Leaning, Rules

__all__ = ["assign"]

_KEEP_PARAMETERS_HIGH = {"BatchNormalization", "LayerNormalization", "InstanceNormalization"}


def assign(model: ir.Model, policy: Policy, ranges: RangeFaults | None = None) -> Assignment:
    """Return the precision of every node of `model` under `policy`.

    The order in which a file lists independent nodes makes no difference: a decision rests on the node itself and on
    what was decided for the producers of its inputs.

    Args:
        model: a typed program, its functions inlined, nodes in topological order.
        policy: what to go by.
        ranges: a look-up of constants to go on using, since reading big weights takes time.
    """
    return _Assigner(model, policy, ranges or RangeFaults(policy.low, strict=policy.strict_ranges)).run()


class _Assigner:
    """Goes through a program, again where rules look ahead. It is the `State` that rules are shown."""

    def __init__(self, model: ir.Model, policy: Policy, ranges: RangeFaults) -> None:
        self._model = model
        self._policy = policy
        self._rules: Rules = policy.rules
        self._ranges = ranges
        self._constraints = Constraints(model, policy.target, policy.low, training=policy.training)
        self._result = Assignment(
            policy.low,
            outputs_as_computed=policy.outputs_as_computed and not policy.training,
            constants=policy.constants,
        )
        self._leaning: dict[ir.Value, Leaning] = {}  # of values whose producer has a precision of its own
        self._has_low: set[ir.Value] = set()  # what some node reads or makes low, for rules that look ahead
        self._unsafe: Mapping[ir.Node, str] = {}
        self._folded: set[ir.Node] = set()
        self._guarded = False

    def run(self) -> Assignment:
        model, policy, result = self._model, self._policy, self._result
        if policy.numerics == "static":
            self._unsafe = unsafe_nodes(model, policy.low, self._ranges)
        self._folded = folded_nodes(in_order(model.graph))
        self._guarded = policy.use_guard and any(FP16_GUARD in region_of(node) for node in model.graph.all_nodes())
        self._rules = self._rules.begin(model)
        self._graph(model.graph)
        if self._rules.looks_ahead:
            self._look_again()
        if policy.drop_islands:
            for node, reason in islands(result.decisions):
                result.decisions[node] = Decision("high", reason, neutral=True)
        for node, decision in result.decisions.items():
            if decision.form is not None:
                result.low_values.update(node.outputs[index] for index in decision.form.outputs)
            result.rounded_values.update(node.outputs[index] for index in decision.rounded)
        self._settle_io()
        if policy.low_parameters:
            result.low_values.update(value for value in model.graph.inputs if self._is_low_parameter(value))
        settle_ports(result, self._may_pass_low)
        return result

    # What rules are shown.

    def leaning(self, value: ir.Value) -> Leaning | None:
        return self._leaning.get(value)

    def is_low(self, value: ir.Value) -> bool:
        if value.dtype == self._policy.low.dtype or self._leaning.get(value) == "low":
            return True
        return value.name in self._policy.low_io and value.is_graph_input()

    def has_low(self, value: ir.Value) -> bool:
        return value in self._has_low or self.is_low(value)

    def is_parameter(self, value: ir.Value) -> bool:
        return constant_of(value) is not None or value.name in self._policy.parameters

    def form_with(self, node: ir.Node, inputs: frozenset[int]) -> LowForm | None:
        return self._constraints.of(node, inputs=inputs).form

    # The way through the program.

    def _look_again(self) -> None:
        """Decide again about what reads a value that became low after it was decided, until nothing changes.

        Each node is looked at as often as one of its inputs becomes low. What a body passes on is not followed this
        way: there the program is gone through once more.
        """
        passed_on = {use.value for node in self._result.decisions for port in control_ports(node) for use in port.uses}
        ports_changed = True
        while ports_changed:
            ports_changed = False
            pending = collections.deque(node for value in list(self._has_low) for node, _ in value.uses())
            while pending:
                node = pending.popleft()
                decision = self._result.decisions.get(node)
                if decision is None or decision.precision != "high" or self._constraint(node).form is None:
                    continue
                if (again := self._decide(node)).precision == "low":
                    for value in self._note(node, again):
                        pending.extend(reader for reader, _ in value.uses())
                        ports_changed |= value in passed_on
            if ports_changed:
                self._result.missing_kernels.clear()
                self._graph(self._model.graph)

    def _note(self, node: ir.Node, decision: Decision) -> list[ir.Value]:
        """Remember a decision; return the values that are low somewhere since."""
        self._result.decisions[node] = decision
        form, neutral = decision.form, decision.precision == "untouched" or decision.neutral
        for index, value in enumerate(node.outputs if not neutral else ()):
            self._leaning[value] = "low" if form is not None and index in form.outputs else "high"
        if form is None or not self._rules.looks_ahead:
            return []
        touched = [*(node.inputs[index] for index in form.inputs), *(node.outputs[index] for index in form.outputs)]
        new = [value for value in touched if value is not None and value not in self._has_low]
        self._has_low.update(new)
        return new

    def _is_low_parameter(self, value: ir.Value) -> bool:
        """Whether a parameter is stored low: every reader wants it low, and none is a normalisation.

        Paddle keeps the scales and shifts of normalisations in float32; where ONNX wants them low, as
        LayerNormalization does, they are cast when they are read.
        """
        if value.name not in self._policy.parameters or not is_float32(value):
            return False
        readers = 0
        for node, index in value.uses():
            decision = self._result.decisions.get(node)
            if decision is None or decision.takes_any:
                continue
            if decision.form is None or index not in decision.form.inputs:
                return False
            if is_standard(node) and node.op_type in _KEEP_PARAMETERS_HIGH:
                return False
            readers += 1
        return readers > 0

    def _may_pass_low(self, node: ir.Node) -> bool:
        """Whether the schema of a control-flow operator admits the low format; bfloat16 came late to it."""
        sig = node_signature(self._model, node)
        return sig is not None and f"tensor({self._policy.low.name})" in sig.allowed.get("V", ())

    def _graph(self, graph: ir.Graph) -> None:
        for node in graph:
            if any(True for _ in bodies(node)):
                self._control_flow(node)
                continue
            self._note(node, self._decide(node))

    def _control_flow(self, node: ir.Node) -> None:
        """Let what enters a body lean as what is passed in, and what leaves it as what the body makes."""
        ports = control_ports(node)
        for inward in (True, False):
            for port in ports:
                leanings = [
                    self._leaning.get(use.value)
                    for use in port.uses
                    if use.value is not None and isinstance(use.user, ir.Node) == inward
                ]
                for value in port.definitions:
                    if (value.producer() is None) == inward and (found := _combined(leanings)):
                        self._leaning[value] = found
            if inward:
                for _, body in bodies(node):
                    self._graph(body)
        self._result.decisions[node] = Decision("untouched", "control flow: its body is decided node by node")

    def _decide(self, node: ir.Node) -> Decision:
        if is_standard(node) and node.op_type == "Constant":
            return Decision("untouched", "a constant: converted as its readers need it")
        if not touches_float32(node):
            return Decision("untouched", "no float32 tensor goes in or out")
        found = self._constraint(node)
        if found.reads_any:
            return Decision("untouched", found.reason or "it takes its input in any precision", takes_any=True)
        if found.form is None:
            return self._rules.decide_without_form(node) or self._unsupported(node, found)
        if node in self._folded:
            return Decision("high", "computed from constants alone: folded when the model is loaded", neutral=True)
        reason = self._forbidden(node, found.form)
        if reason:
            return Decision("high", reason)
        return self._rules.decide(node, found.form, self)

    def _constraint(self, node: ir.Node) -> Constraint:
        found = self._constraints.of(node)
        if found.no_schema and (form := self._rules.form_without_schema(node)) is not None:
            return Constraint(form)
        return found

    def _unsupported(self, node: ir.Node, found: Constraint) -> Decision:
        if found.missing_kernel:
            name = operator_name(node)
            self._result.missing_kernels[name] = self._result.missing_kernels.get(name, 0) + 1
        return Decision("high", found.reason)

    def _forbidden(self, node: ir.Node, form: LowForm) -> str:
        """Why the node must stay high whatever list it is on; empty if nothing speaks against low."""
        policy, region = self._policy, region_of(node)
        if reason := policy.forced_high.get(str(node.name)):
            return reason
        if role_of(node) == "optimize":
            return "part of the optimizer, which works in float32"
        if DISABLE_AMP in region:
            return "inside a disable_amp region"
        if self._guarded and FP16_GUARD not in region:
            return "outside every fp16_guard region"
        names = {str(value.name) for value in (*node.inputs, *node.outputs) if value is not None}
        if black := sorted(names & policy.rules.lists.black_varnames):
            return f"reads or writes black variable '{black[0]}'"
        if node.op_type not in CAPPED:
            for index in sorted(form.inputs):
                if fault := self._ranges.of(node.inputs[index]):
                    return fault
        return self._unsafe.get(node, "")

    def _settle_io(self) -> None:
        graph, wanted = self._model.graph, self._policy.low_io
        self._result.low_values.update(v for v in graph.inputs if v.name in wanted and is_float32(v))
        self._result.low_uses.update(
            (graph, index) for index, value in enumerate(graph.outputs) if value.name in wanted and is_float32(value)
        )


def _combined(leanings: list[Leaning | None]) -> Leaning | None:
    return "high" if "high" in leanings else "low" if "low" in leanings else None
