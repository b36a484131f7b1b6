"""Decides a precision for every node of a typed program under a policy. Nothing is edited."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16, FLOAT32
from amp_transpiler.graph.regions import DISABLE_AMP, INCLUDE, has_guard, is_kept, region_of
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.walk import (
    WIDENED,
    ControlPort,
    all_nodes,
    bodies,
    control_ports,
    has_bodies,
    in_order,
    scopes,
)
from amp_transpiler.ops.kinds import CAPPED, COMPUTE
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.precision.assignment import Assignment, Decision
from amp_transpiler.precision.constraints import (
    FIRST_OPSET_WITH_BFLOAT16,
    Constraint,
    Constraints,
    LowForm,
    touches_float32,
)
from amp_transpiler.precision.device_faults import DeviceFaults
from amp_transpiler.precision.folded import folded_nodes
from amp_transpiler.precision.masks import NO_MASKS, find_masks
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.quantized import is_quantizing, quantizes_low
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.state import DecisionState
from amp_transpiler.precision.thresholds import ThresholdFaults
from amp_transpiler.precision.values import decide_values

if TYPE_CHECKING:
    from amp_transpiler.cost.fused_patterns import Match
    from amp_transpiler.precision.cheapest_assignment import OpenDecisions
    from amp_transpiler.precision.custom_types import PortTypes
    from amp_transpiler.precision.cut_network import Choices, Weights
    from amp_transpiler.precision.evidence import TensorRange
    from amp_transpiler.precision.row_sums import RowSum

__all__ = ["OpenChoices", "assign", "open_choices"]

_LONGER = 16.0  # times the sizes of the samples: what grows with an open size fits up to there, where engines are built


def assign(model: ir.Model, policy: Policy, ranges: RangeFaults | None = None) -> Assignment:
    """Return the precision of every node of `model` under `policy`.

    The order in which a file lists independent nodes makes no difference: a decision depends on the node itself and on
    the decisions about the producers of its inputs.

    Args:
        model: a typed program, its functions inlined, nodes in topological order.
        policy: how to decide.
        ranges: measured constants to reuse, since reading large weights takes time.

    Raises:
        OptionError: a node that the user wants low by force cannot be low.
    """
    if policy.low is FLOAT32:
        return Assignment(FLOAT32, decisions={node: _in_float32(node) for node in all_nodes(model)})
    if policy.objective != "rules":
        opened = open_choices(model, policy, ranges)
        return opened.assignment(opened.choices.solve())
    assigner = _Assigner(model, policy, ranges or RangeFaults(policy.low, strict=policy.strict_ranges))
    decisions = assigner.decide()
    if policy.drop_islands == "quantized":
        _drop_islands(decisions, policy.objective)
    return assigner.assignment(decisions)


@dataclasses.dataclass(frozen=True, slots=True)
class OpenChoices:
    """An assignment of which only that is decided what the policy forces.

    Attributes:
        weights: what nodes and casts cost.
    """

    weights: Weights
    _open: OpenDecisions
    _assigner: _Assigner

    @property
    def choices(self) -> Choices:
        """What is open, with its costs."""
        return self._open.choices

    def assignment(self, low: Sequence[bool]) -> Assignment:
        """Return the assignment that a choice makes.

        Args:
            low: item of `choices` -> whether it is low.
        """
        decisions, ports = self._open.decided(low)
        return self._assigner.assignment(decisions, ports)


def open_choices(model: ir.Model, policy: Policy, ranges: RangeFaults | None = None) -> OpenChoices:
    """Return what a policy leaves open about a program.

    Args:
        model: a typed program, its functions inlined, nodes in topological order.
        policy: how to decide. Its objective says what nodes and casts cost.
        ranges: measured constants to reuse, since reading large weights takes time.

    Raises:
        OptionError: a node that the user wants low by force cannot be low, or the device or a dimension is not known.
    """
    # Only level auto weighs: the other levels need none of this.
    from amp_transpiler.precision.cheapest_assignment import open_decisions
    from amp_transpiler.precision.cut_weights import LowWeights, ShareWeights

    assigner = _Assigner(model, policy, ranges or RangeFaults(policy.low, strict=policy.strict_ranges))
    decisions = assigner.decide()
    if policy.objective == "low":  # predicted time counts every cast itself
        _drop_islands(decisions, policy.objective)
    wholes = assigner.wholes()
    together: list[Collection[ir.Node]] = [*wholes, *assigner.tied(decisions)]
    weights: Weights = ShareWeights() if policy.numerics == "compared" else LowWeights(wholes)
    if policy.objective == "time":
        from amp_transpiler.cost import find_device, prices
        from amp_transpiler.precision.least_time import fastest

        priced = prices(model, policy.low, find_device(policy.device), policy.dims, wholes)
        groups = [nodes for nodes in priced.fused if _stays_whole(nodes, decisions)]
        together += [[node for node in nodes if decisions[node].form is not None] for nodes in groups]
        with_casts = [nodes for nodes in groups if any(decisions[node].form is None for node in nodes)]
        opened = open_decisions(model, policy, decisions, together, weights)
        open_nodes = opened.choices.open_nodes
        fixed = [node for node, decision in decisions.items() if decision.precision == "low" and node not in open_nodes]
        weights = fastest(opened.choices, priced, with_casts, fixed, [weights])
        return OpenChoices(weights, opened.weighed(weights), assigner)
    return OpenChoices(weights, open_decisions(model, policy, decisions, together, weights), assigner)


def _drop_islands(decisions: dict[ir.Node, Decision], objective: str) -> None:
    """Make what lies between quantized operators float32, in place, where casts cost more than it saves."""
    if any(map(is_quantizing, decisions)):
        from amp_transpiler.precision.quantized_islands import islands  # few programs are quantized

        for node, reason in islands(decisions, objective):
            decisions[node] = Decision("high", reason, neutral=True)


def _stays_whole(nodes: Collection[ir.Node], decisions: Mapping[ir.Node, Decision]) -> bool:
    """Whether ONNX Runtime makes one operator of some nodes though some of them must be float32.

    It looks past casts in what computes in float32 inside, as a normalisation does, not next to a matrix product.
    """
    return all(decisions[node].form is not None for node in nodes) or not any(
        operator_name(node) in COMPUTE for node in nodes
    )


def _in_float32(node: ir.Node) -> Decision:
    """Decide about a node of a program that only becomes float32."""
    if has_bodies(node) or not touches_float32(node) or (node.op_type == "Cast" and is_standard(node)):
        return Decision("untouched", Reason("no-precision"))
    before = node.meta.get(WIDENED)
    return Decision("high", Reason("low-before", {"format": before}) if before else Reason("float32-before"))


def _with_declared_types(node: ir.Node, types: PortTypes) -> Decision:
    """Decide about a node as the user has declared the types of its operator, which bind."""
    from amp_transpiler.precision.custom_nodes import low_form  # few models have such operators

    form = low_form(node, types)
    if form.inputs or form.outputs:
        return Decision("low", Reason("custom-types", {"operator": operator_name(node)}), form, forced=True)
    if not touches_float32(node):
        return Decision("untouched", Reason("no-float32"))
    return Decision("high", Reason("custom-types", {"operator": operator_name(node)}))


class _Assigner:
    """Decides node by node, in the order of execution; repeatedly if the rules look ahead."""

    def __init__(self, model: ir.Model, policy: Policy, ranges: RangeFaults) -> None:
        self._model = model
        self._policy = policy
        self._ranges = ranges
        self._guarded = policy.use_guard and has_guard(model)
        self._rules = policy.rules.begin(model, guarded=self._guarded)
        self._constraints = Constraints(
            model, policy.target, policy.low, training=policy.training, float32_inputs=policy.float32_inputs
        )
        self._faults = DeviceFaults(
            model, policy.target, policy.low, policy.device, policy.dims, products=not policy.training
        )
        self._has_casts = policy.low is not BFLOAT16 or opset_of(model, "") >= FIRST_OPSET_WITH_BFLOAT16
        self._state = DecisionState(policy, self._constraints)
        self._decisions: dict[ir.Node, Decision] = {}
        self._folded = folded_nodes(in_order(model.graph))
        self._thresholds = ThresholdFaults(model, policy.thresholds, ranges, policy.dims)
        self._wholes: list[Match]
        self.masks, self._unsafe, self._wholes = NO_MASKS, dict[ir.Node, Reason](), []
        if policy.numerics != "ignore":
            self._judge()
        else:
            self._unsafe = {**self._positions(), **self._written_moments()}
        self._seen = self._seen_ranges()
        self.missing_kernels: dict[str, int] = {}
        self.without_form: list[ir.Node] = []

    def decide(self) -> dict[ir.Node, Decision]:
        self._decide_graph(self._model.graph)
        if self._rules.looks_ahead:
            self._decide_again()
        self._decide_wholes()
        forced = (decision for decision in self._decisions.values() if decision.forced)
        if self._policy.included and all(decision.reason.code == "custom-types" for decision in forced):
            raise OptionError("--include matches no node with a float32 tensor that is its own to choose the type of")
        return self._decisions

    def assignment(
        self, decisions: dict[ir.Node, Decision], low_ports: tuple[ControlPort, ...] | None = None
    ) -> Assignment:
        """Return the assignment that follows from decisions about every node."""
        policy = self._policy
        decisions = self._with_reasons_of_parts(self._for_engines(decisions))
        assignment = Assignment(
            policy.low,
            decisions=decisions,
            missing_kernels=self.missing_kernels,
            without_form=self.without_form,
            outputs_as_computed=policy.outputs_as_computed and not policy.training,
            constants=policy.constants,
            masks=self.masks.uses,
            row_sums=self._row_sums(decisions),
            parts=self._parts(decisions),
        )
        decide_values(self._model, policy, assignment, low_ports)
        return assignment

    def _for_engines(self, decisions: dict[ir.Node, Decision]) -> dict[ir.Node, Decision]:
        """Return the decisions with those changed that an engine's builder wants otherwise."""
        if not self._policy.target.builds_engines:
            return decisions
        from amp_transpiler.precision.before_recurrences import before_recurrences  # for these targets only

        changed = {node: Decision("high", reason) for node, reason in before_recurrences(decisions)}
        return {**decisions, **changed} if changed else decisions

    def _parts(self, decisions: Mapping[ir.Node, Decision]) -> dict[ir.Node, int]:
        parts = self._policy.parts
        low = (node for node, decision in decisions.items() if parts and decision.precision == "low")
        return {node: parts[str(node.name)].count for node in low if self._is_in_parts(node)}

    def _with_reasons_of_parts(self, decisions: dict[ir.Node, Decision]) -> dict[ir.Node, Decision]:
        """Return the decisions with a word on the products that are low in parts only."""
        parts = {node: self._policy.parts[str(node.name)] for node in self._parts(decisions)}
        reasons = {node: Reason("in-parts", {"parts": way.count, "fault": way.fault}) for node, way in parts.items()}
        changed = {node: dataclasses.replace(decisions[node], reason=reason) for node, reason in reasons.items()}
        return {**decisions, **changed} if changed else decisions

    def _is_in_parts(self, node: ir.Node) -> bool:
        """Whether a product is computed in parts where it is low."""
        way = self._policy.parts.get(str(node.name))
        if way is None:
            return False
        from amp_transpiler.precision.split_sums import may_split  # few products are

        return may_split(node, way.count, opset_of(self._model, ""))

    def _row_sums(self, decisions: Mapping[ir.Node, Decision]) -> dict[ir.Node, RowSum]:
        low = [node for node, decision in decisions.items() if decision.precision == "low"]
        products = ((node, self._faults.product(node)) for node in low)
        return {node: product for node, product in products if product is not None}

    def wholes(self) -> list[frozenset[ir.Node]]:
        """Return the nodes that are one operator, for each."""
        return [whole.nodes for whole in self._wholes]

    def tied(self, decisions: Mapping[ir.Node, Decision]) -> Iterator[tuple[ir.Node, ...]]:
        """Yield nodes with those that they may be low only together with (see `quantizes_low`)."""
        for node in self._unsafe:
            value = node.inputs[0] if decisions[node].form is not None and not decisions[node].forced else None
            if value is not None and (maker := value.producer()) is not None:
                yield node, maker

    def _decide_wholes(self) -> None:
        """Give the nodes that are one operator one precision: float32 if any of them must have it."""
        for whole in self._wholes:
            decisions = [self._decisions[node] for node in whole.nodes]
            reasons = {decision.reason for decision in decisions if decision.precision == "high"}
            if not reasons or len(reasons) == len(decisions) or any(decision.forced for decision in decisions):
                continue
            reason = Reason("whole", {"pattern": whole.pattern.name, "fault": min(reasons, key=str)})
            for node in whole.nodes:
                if self._decisions[node].precision == "low":
                    self._decisions[node] = Decision("high", reason)

    def _judge(self) -> None:
        """Find what is unsafe in the low format, and what only looks so."""
        # Other systems' levels ask for none of this.
        from amp_transpiler.cost.fused_patterns import NORMALISATION, Match, matches
        from amp_transpiler.precision.known_shapes import KnownShapes
        from amp_transpiler.precision.near_zero import near_zero
        from amp_transpiler.precision.numerics import exact_positions, from_integers, normalisations, unsafe_nodes
        from amp_transpiler.precision.range_growth import GROWS, degrees, growing, touches_growing
        from amp_transpiler.precision.size_chains import size_chains

        model, ranges = self._model, self._ranges
        nodes = list(in_order(model.graph))
        counting = dict.fromkeys(from_integers(nodes))
        integers = {value for node in counting for value in node.outputs}
        self.masks = find_masks(nodes, ranges, integers, self._is_fixed)
        self._wholes = list(matches(nodes))
        safe = {node for whole in self._wholes if whole.pattern.is_safe for node in whole.nodes}
        if self._shows:  # otherwise they are float32, node by node
            taken = {node for whole in self._wholes for node in whole.nodes}
            self._wholes += [Match(NORMALISATION, each) for each in normalisations(nodes) if not each & taken]
        sizing = dict.fromkeys(size_chains(nodes))  # whatever ranges say: a shape has no tolerance
        reasons = unsafe_nodes(model, self._policy.low, ranges, self.masks, safe, counting, sizing)
        is_compared, steep = self._policy.numerics == "compared", dict[ir.Node, Reason]()
        if not is_compared:
            steep = near_zero(nodes, self._policy.low, self._given_ranges(), self._policy.headroom, safe, integers)
        grown = growing(model, nodes, KnownShapes(model, {}))
        readers = (node for node in nodes if touches_growing(node, grown)) if grown else ()
        powers = degrees(nodes) if self._shown_ranges() is not None else {}
        exact = exact_positions(counting) if is_compared and self._policy.low is BFLOAT16 else counting
        grows = {
            node: GROWS
            for node in readers
            if node not in self.masks.nodes and not (is_compared and self._is_shown_safe(node, exact, powers, _LONGER))
        }
        unsafe = {
            node: reason
            for node, reason in reasons.items()
            if node in sizing or node in grows or not self._is_shown_safe(node, exact, powers, self._policy.headroom)
        }
        self._unsafe = {**grows, **steep, **unsafe}

    def _given_ranges(self) -> Mapping[str, TensorRange]:
        """Return the ranges that the user's data showed: made-up numbers do not say how small real ones may be."""
        evidence = self._policy.evidence
        return evidence.ranges if evidence is not None and evidence.given else {}

    def _is_shown_safe(
        self, node: ir.Node, counting: Collection[ir.Node], powers: Mapping[ir.Value, float], headroom: float
    ) -> bool:
        """Whether data speak for a node that is unsafe by its nature."""
        policy, ranges = self._policy, self._shown_ranges()
        if ranges is None:
            return False
        from amp_transpiler.precision.numerics import shown_safe

        return shown_safe(node, ranges, policy.low, headroom, counts=node in counting, degrees=powers)

    def _shown_ranges(self) -> Mapping[str, TensorRange] | None:
        """Return the ranges that decide about what is unsafe by its nature; None if data have no say."""
        evidence = self._policy.evidence
        return evidence.ranges if self._shows and evidence is not None else None

    @property
    def _shows(self) -> bool:
        """Whether the ranges that data show have a say about what is unsafe by its nature."""
        return self._policy.numerics in ("shown", "compared")

    def _written_moments(self) -> dict[ir.Node, Reason]:
        """Find written-out means in bfloat16, for an engine's builder, which fuses the casts around them."""
        if not self._policy.target.builds_engines or self._policy.low is not BFLOAT16:
            return {}
        from amp_transpiler.precision.written_moments import written_moments  # for these targets only

        return dict(written_moments(in_order(self._model.graph)))

    def _positions(self) -> dict[ir.Node, Reason]:
        """Find what is computed only from integers with a node that has no low form, such as a Range.

        Each of its results would be cast, and none is where the chain stays in float32 up to where it meets features.
        An engine's builder fuses casts, and float16 counts to 2048: there nobody asks. In bfloat16, which counts to
        256, positions are asked about that must be exact.
        """
        policy = self._policy
        if policy.drop_islands == "none" or (policy.target.builds_engines and policy.low is FLOAT16):
            return {}
        from amp_transpiler.precision.numerics import exact_positions, from_integers

        reasons: dict[ir.Node, Reason] = {}
        high: set[ir.Value | None] = set()
        counting = list(from_integers(list(in_order(self._model.graph))))
        asked = exact_positions(counting) if policy.target.builds_engines else counting
        for node in counting:
            if node.op_type == "Cast" or node not in asked:
                continue
            if self._constraint(node).form is None or any(value in high for value in node.inputs):
                high.update(node.outputs)
                reasons[node] = Reason("position")
        return reasons

    def _seen_ranges(self) -> Mapping[str, TensorRange]:
        """Return the ranges that data showed, but not those of constants, which are known, or of limited masks."""
        if self._policy.evidence is None:
            return {}
        known = {str(value.name) for value in self.masks.values}
        for scope in scopes(self._model):
            known.update(scope.graph.initializers)
        return {name: seen for name, seen in self._policy.evidence.ranges.items() if name not in known}

    def _is_fixed(self, node: ir.Node) -> bool:
        """Whether the user, or a search, keeps the node as it is."""
        settled = self._policy.settled.get(str(node.name))
        if settled is not None and settled.precision == "high":
            return True
        if str(node.name) in self._policy.forced_high or DISABLE_AMP in region_of(node):
            return True
        if self._thresholds.of(node):
            return True
        return is_kept(node, guarded=self._guarded)

    def _decide_graph(self, graph: ir.Graph) -> None:
        for node in graph:
            if has_bodies(node):
                self._decide_bodies(node)
            else:
                self._note(node, self._decide(node))

    def _decide_bodies(self, node: ir.Node) -> None:
        ports = control_ports(node)
        self._state.pass_on(ports, inward=True)
        for _, body in bodies(node):
            self._decide_graph(body)
        self._state.pass_on(ports, inward=False)
        self._decisions[node] = Decision("untouched", Reason("control-flow"))

    def _decide_again(self) -> None:
        """Decide again about the readers of a value that became low after they were decided, until nothing changes.

        A node is visited once for each of its inputs that becomes low. Values that a body passes on are not followed
        this way: if one of them becomes low, the whole program is decided again.
        """
        passed_on = {use.value for node in self._decisions for port in control_ports(node) for use in port.uses}
        ports_changed = True
        while ports_changed:
            ports_changed = False
            pending = collections.deque(node for value in self._state.low_somewhere() for node, _ in value.uses())
            while pending:
                for value in self._reconsider(pending.popleft()):
                    pending.extend(reader for reader, _ in value.uses())
                    ports_changed |= value in passed_on
            if ports_changed:
                self.missing_kernels.clear()
                self.without_form.clear()
                self._decide_graph(self._model.graph)

    def _reconsider(self, node: ir.Node) -> list[ir.Value]:
        """Decide about a float32 node again; return the values that some node computes or reads low since."""
        if self._decisions[node].precision != "high" or self._constraint(node).form is None:
            return []
        return self._note(node, self._decide(node))

    def _note(self, node: ir.Node, decision: Decision) -> list[ir.Value]:
        self._decisions[node] = decision
        return self._state.note(node, decision)

    def _decide(self, node: ir.Node) -> Decision:
        if is_standard(node) and node.op_type == "Constant":
            return Decision("untouched", Reason("constant"))
        if declared := self._policy.custom_types.get(operator_name(node)):
            return _with_declared_types(node, declared)
        if not touches_float32(node):
            return Decision("untouched", Reason("no-float32"))
        constraint = self._constraint(node)
        if constraint.reads_any:
            return Decision("untouched", constraint.reason or Reason("reads-any"), takes_any=True)
        if role_of(node) == "optimize":
            repaired = self._policy.forced_high.get(str(node.name))
            return Decision("high", repaired or Reason("optimizer"))
        return self._decide_by_policy(node, constraint)

    def _decide_by_policy(self, node: ir.Node, constraint: Constraint) -> Decision:
        if INCLUDE in region_of(node):
            return self._forced(node, constraint)
        if constraint.form is None:
            decides = self._has_casts and not is_kept(node, guarded=self._guarded)
            rounded = self._rules.decide_without_form(node) if decides else None
            return rounded or self._unsupported(node, constraint)
        if node in self._folded:
            return Decision("high", Reason("folded"), neutral=True)
        if reason := self._kept_by_user(node):
            return Decision("high", reason)
        if settled := self._policy.settled.get(str(node.name)):
            is_low = settled.precision == "low"
            return Decision(settled.precision, settled.reason, constraint.form if is_low else None, forced=is_low)
        if reason := self._must_stay_float32(node, constraint.form):
            return Decision("high", reason)
        return self._rules.decide(node, constraint.form, self._state)

    def _forced(self, node: ir.Node, constraint: Constraint) -> Decision:
        """Make a node low by force: lists, numerics and ranges do not count, a kernel only so far as one must exist."""
        which = f"--include: node '{node.name}' ({operator_name(node)})"
        if DISABLE_AMP in region_of(node):
            raise OptionError(f"{which} is inside a disable_amp region as well, which keeps it as it is: drop one")
        if constraint.form is not None:
            fault = self._faults.of(node)
            reason = Reason("forced") if fault is None else Reason("forced-faulty", {"fault": fault})
            return Decision("low", reason, constraint.form, forced=True)
        assert constraint.reason is not None, "no form, so a reason"
        elsewhere = self._constraints.of(node, anywhere=True) if constraint.missing_kernel else constraint
        if elsewhere.form is not None:
            reason = Reason("forced-elsewhere", {"fault": constraint.reason})
            return Decision("low", reason, elsewhere.form, forced=True)
        raise OptionError(f"{which} cannot be {self._policy.low}: {constraint.reason}; narrow the pattern")

    def _constraint(self, node: ir.Node) -> Constraint:
        constraint = self._constraints.of(node)
        if constraint.no_schema and (form := self._rules.form_without_schema(node)) is not None:
            return Constraint(form)
        if constraint.form is not None and self._is_in_parts(node):
            from amp_transpiler.precision.split_sums import PART_FORM

            return Constraint(PART_FORM)
        return constraint

    def _unsupported(self, node: ir.Node, constraint: Constraint) -> Decision:
        self.without_form.append(node)
        if constraint.missing_kernel:
            name = operator_name(node)
            self.missing_kernels[name] = self.missing_kernels.get(name, 0) + 1
        assert constraint.reason is not None, "no form, so a reason"
        if constraint.reason.code == "kept-input" and self._kept_by_user(node) is None:
            raise OptionError(
                f"--float32-inputs: node '{node.name}': {constraint.reason}; keep the whole operator with --black"
            )
        return Decision("high", constraint.reason)

    def _kept_by_user(self, node: ir.Node) -> Reason | None:
        """Say why the user's words, or a repair, keep the node in float32; None if they do not."""
        policy = self._policy
        if reason := policy.forced_high.get(str(node.name)):
            return reason
        if DISABLE_AMP in region_of(node):
            return Reason("disable-amp")
        if is_kept(node, guarded=self._guarded):
            return Reason("not-guarded")
        if listed := policy.rules.lists.black_varnames:
            names = {str(value.name) for value in (*node.inputs, *node.outputs) if value is not None}
            if black := sorted(names & listed):
                return Reason("black-variable", {"variable": black[0]})
        return self._thresholds.of(node)

    def _must_stay_float32(self, node: ir.Node, form: LowForm) -> Reason | None:
        """Say why the numerics keep the node in float32 whatever list it is on; None if they do not."""
        if fault := self._constant_fault(node, form):
            return fault
        if beyond := self._beyond_seen(node, form):
            return beyond
        unsafe = None if quantizes_low(node, self._state) else self._unsafe.get(node)
        return unsafe or self._faults.of(node) or self._faults.beyond_sum(node, self._seen, self._policy.headroom)

    def _beyond_seen(self, node: ir.Node, form: LowForm) -> Reason | None:
        """Say why the ranges that data showed forbid a node to be low; None if they do not."""
        if not self._seen:
            return None
        from amp_transpiler.precision.evidence import range_fault  # here: many conversions see no data

        return range_fault(node, form, self._seen, self._policy.low, self._policy.headroom)

    def _constant_fault(self, node: ir.Node, form: LowForm) -> Reason | None:
        """Say which constant the format cannot hold; None if none."""
        is_bound = node.op_type in CAPPED
        for index in sorted(form.inputs):
            value = node.inputs[index]
            fault = self._ranges.of_bound(value) if is_bound else self._ranges.of(value)
            if fault and (node, index) not in self.masks.uses:
                return fault
        return self._ranges.of_bound_attributes(node) if is_bound else None
